"""Trial of a model from elsewhere on the first tokens of its text: whether and how it can be read."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from txl_lightning.errors import notice
from txl_lightning.measure.scoring.huggingface import HuggingFaceModel
from txl_lightning.measure.scoring.models import Member, first_sentence, foreign_errors
from txl_lightning.measure.scoring.token_losses import device_of
from txl_lightning.measure.scoring.tokenized_text import TokenizedText
from txl_lightning.measure.scoring.windows import CHUNK
from txl_lightning.model.language_model import LanguageModel

TRIED, PLACES = 256, 512  # tokens, and losses that are compared
LENGTHS = re.compile(r'"\w*(?:window|position|chunk|context|len|local_attention|topk|block_size)\w*": \[?\s*(\d+)')
# Shares of the losses' standard deviation. In float32, 60 architectures of transformers round to a tenth of the first.
EXACT, ROUGH = 1e-4, 1e-3


def tried(member: Member, text: TokenizedText, longest: int, segment_len: int | None = None) -> Member:
    """Return a model from elsewhere with the reader that is exact for it, and a model of a run as it is.

    - `one_pass` becomes false if shorter windows have other losses.
    - `carrier` becomes the model with its cache, if segments have the losses of a whole text. Otherwise, also if the
      cache raises an error, a line says why not. A Python function becomes it if it returns a state.

    The trial reads a window of some hundred tokens about ten times. It is longer than every length below `longest` in
    the configuration of the model, such as a window of attention or original positions. Models of Hugging Face compute
    in float32, whatever their type.

    Args:
        member: the model.
        text: text that it will read.
        longest: tokens that it will read at once, or from segment to segment.
        segment_len: tokens of a segment; None if no state will be carried.

    Raises:
        OptionError: the model fails; its losses depend on later tokens, or differ from one time to the next; or those
            of a Python function have another shape, or depend on the length of the window with `one_pass`.
    """
    reader, hub = member.reader, isinstance(member.reader.model, HuggingFaceModel)
    model: Any = reader.model
    longest = min(reader.visible(longest), len(text.tokens) - 1)
    if member.trained or longest < 2:
        return member
    named = LENGTHS.findall(model.model.config.to_json_string(use_diff=False)) if hub else []
    bounds = {n for n in map(int, named) if 0 < n < longest}
    step = segment_len or CHUNK
    # Three segments or more; the last one has one token, which recurrent models read by other code.
    length = min(longest, (max([TRIED, *bounds]) // step + 2) * step + 1)
    window_T = torch.from_numpy(text.tokens[: length + 1].astype(np.int64)).to(device_of(model))
    precision = _in_float32(model) if hub else nullcontext()
    with foreign_errors(member.path, f"cannot read {length} tokens"), torch.no_grad(), precision:
        trial = _Trial(member, hub, window_T)
        trial.check_targets()
        one_pass = trial.is_one_pass(bounds)
        carrier = trial.carrier(step) if segment_len else None
    return replace(member, reader=replace(reader, one_pass=one_pass, carrier=carrier))


class _Trial:
    def __init__(self, member: Member, hub: bool, window_T: Tensor) -> None:
        self.member, self.hub, self.window_T = member, hub, window_T
        self.model: Any = member.reader.model
        last = len(window_T) - 2
        # A large vocabulary has too many logits for every place of a long window.
        self.places_C = torch.tensor([*range(0, last, last // PLACES + 1), last], device=window_T.device)
        self.whole_C = self.losses(window_T)
        deviation = float(self.whole_C.nan_to_num(posinf=0, neginf=0).std(correction=0))
        self.rounding = 1e-6 + (EXACT if hub else ROUGH) * deviation

    def losses(self, window_T: Tensor) -> Tensor:
        """Return the losses, [C], of the targets of a window at the places that it has."""
        places_C = self.places_C[self.places_C < len(window_T) - 1]
        if self.hub:
            return self.model.losses_at(window_T[None, :-1], window_T[None, 1 + places_C], places_C)[0]
        return self.score(window_T, len(window_T) - 1)[places_C]

    def score(self, window_T: Tensor, n_targets: int) -> Tensor:
        """Return the losses of the last targets of a window, which is scored twice in a batch."""
        windows_BT = window_T.repeat(2, 1)
        result = self.model.score(windows_BT[:, :-1], windows_BT[:, -n_targets:], None)
        nll: Any = result[0] if isinstance(result, tuple | list) else None
        allowed = f"score must return a tensor of losses of shape {[2, n_targets]} for such targets, and a state"
        self.member.require(isinstance(nll, Tensor) and list(nll.shape) == [2, n_targets], allowed)
        return nll[0].float()

    def fault(self, losses_C: Tensor, expected_C: Tensor, words: str) -> str:
        """Return the words with the largest difference; nothing if it is rounding."""
        equal = torch.allclose(losses_C, expected_C, rtol=1e-6, atol=self.rounding, equal_nan=True)
        return "" if equal else f"{words} (up to {float((losses_C - expected_C).abs().max()):.2g} nats)"

    def check(self, losses_C: Tensor, expected_C: Tensor, words: str) -> None:
        fault = self.fault(losses_C, expected_C, words)
        self.member.require(not fault, fault)

    def check_targets(self) -> None:
        """Check that targets have the same losses again, and without the targets before them."""
        self.check(self.losses(self.window_T), self.whole_C, "must give the same tokens the same losses each time")
        allowed = "score must give the last targets the same losses without the others"
        self.check(self.score(self.window_T, 1), self.whole_C[-1:], allowed)

    def is_one_pass(self, bounds: set[int]) -> bool:
        """Return whether shorter windows have the same losses; if not, check that later tokens do not matter."""
        length, one_pass = len(self.window_T) - 1, self.member.reader.one_pass
        cuts = {length // 4, length // 2, 3 * length // 4, length - 1} - {0}
        parts = [self.losses(self.window_T[: n + 1]) for n in cuts | bounds if one_pass]
        allowed = "must have one_pass = False: losses depend on the length of the window"
        faults = [self.fault(part_C, self.whole_C[: len(part_C)], allowed) for part_C in parts]
        if one_pass and not any(faults):
            return True
        for cut in cuts:
            others_T = torch.cat([self.window_T[:cut], self.window_T[: length + 1 - cut]])
            n = int((self.places_C < cut - 1).sum())
            allowed = f"must be a causal language model: losses of {self.member.kind} depend on later tokens"
            self.check(self.losses(others_T)[:n], self.whole_C[:n], allowed)
        self.member.require(self.hub or not one_pass, max(faults, default=""))
        return False

    def carrier(self, segment_len: int) -> LanguageModel | None:
        """Return the model for segments with the state carried; None if its losses are not those of the whole."""
        tokens_BT, targets_BT = self.window_T[None, :-1], self.window_T[None, 1:]
        segments = zip(tokens_BT.split(segment_len, 1), targets_BT.split(segment_len, 1), strict=True)
        if not self.hub:
            return None if self.model.score(*next(segments), None)[1] is None else self.model
        carrier, state, parts = self.model.carrying(), None, []
        try:
            for segment in segments:
                part_BT, state = carrier.score(*segment, state)
                parts.append(part_BT[0])
            fault = self.fault(torch.cat(parts)[self.places_C], self.whole_C, "it gives other losses")
        except Exception as error:  # foreign code has no common error
            fault = first_sentence(error)
        if fault:
            notice(f"{self.member.path}: its cache is not carried from segment to segment: {fault}")
        return None if fault else carrier


@contextmanager
def _in_float32(model: nn.Module) -> Iterator[None]:
    """Compute in float32: weights in 16 bits are converted, those of a layer only while it computes."""
    tensors = (*model.parameters(), *model.buffers())
    dtypes = {tensor: tensor.dtype for tensor in tensors if tensor.dtype in (torch.bfloat16, torch.float16)}

    def convert(module: nn.Module, dtype: torch.dtype | None = None) -> None:
        for tensor in (*module.parameters(), *module.buffers()):
            if tensor in dtypes:
                tensor.data = tensor.data.to(dtype or dtypes[tensor])

    with ExitStack() as undo:
        undo.callback(convert, model)
        convert(model, torch.float32)
        for layer in [layer for layers in model.modules() if isinstance(layers, nn.ModuleList) for layer in layers]:
            convert(layer)
            before, after = lambda layer, _: convert(layer, torch.float32), lambda layer, *_: convert(layer)
            undo.callback(layer.register_forward_pre_hook(before).remove)
            undo.callback(layer.register_forward_hook(after, always_call=True).remove)
        yield
