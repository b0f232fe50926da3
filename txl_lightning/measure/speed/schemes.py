"""Timed schemes at one attention length: the vanilla model's sliding window and state reuse (Table 9)."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from txl_lightning.model.inference.cached import CachedTransformerXL
from txl_lightning.model.inference.sliding_window import SlidingWindow
from txl_lightning.model.language_model import LanguageModel
from txl_lightning.model.transformer_xl import TransformerXL

RATIOS = ("vanilla/hidden", "vanilla/cached", "vanilla_fused/cached")
TURN_SECONDS, MOST_SEGMENTS = 0.3, 64  # a turn is one segment, or as many as take TURN_SECONDS
RANK_OFFSET = 2.7  # Mandelbrot's correction of Zipf's law for the most frequent words


@dataclass
class TimedScheme:
    """Model that reads a text in a loop, segment by segment, with its state carried along, and is timed.

    Args:
        model: model to time.
        text_1n: tokens, read in a loop.
        segment_len: tokens in a segment.
        state: state after the last segment.
        position: position of the next token to read.
        segments: segments in a turn.
        clock: function that returns seconds.
        seconds: seconds per token in every recorded turn.
    """

    model: LanguageModel
    text_1n: Tensor
    segment_len: int
    state: Any = None
    position: int = 0
    segments: int = 1
    clock: Callable[[], float] = time.perf_counter
    seconds: list[float] = field(default_factory=list)

    @property
    def tokens(self) -> int:
        """Tokens predicted in a turn."""
        return self.segments * self.segment_len

    @torch.no_grad()
    def read(self) -> Tensor:
        """Return the losses of the next segment, [1, segment_len], in nats."""
        places = torch.arange(self.position, self.position + self.segment_len + 1, device=self.text_1n.device)
        tokens_1T = self.text_1n[:, places % self.text_1n.shape[1]]
        self.position += self.segment_len
        nll_1T, self.state = self.model.score(tokens_1T[:, :-1], tokens_1T[:, 1:], self.state)
        return nll_1T

    def warm_up(self) -> float:
        """Take an unrecorded turn, choose the number of segments of later turns, and estimate the seconds of one."""
        self.read()  # the first call of a product on a GPU loads its kernel
        seconds = self.turn() * self.segment_len
        self.segments = max(1, min(MOST_SEGMENTS, round(TURN_SECONDS / seconds)))
        return (self.segments + (self.segment_len > 1)) * seconds

    def turn(self) -> float:
        """Return seconds per token over one turn."""
        if self.segment_len > 1:
            self.read()  # untimed: refills the CPU cache after the turn of another scheme
        self._finish()
        started = self.clock()
        for _ in range(self.segments):
            self.read()
        self._finish()
        return (self.clock() - started) / self.tokens

    def _finish(self) -> None:
        if self.text_1n.is_cuda:
            torch.cuda.synchronize()


def make_schemes(
    model: TransformerXL, vanilla: TransformerXL, attention_len: int, segment_len: int, text_1n: Tensor
) -> dict[str, TimedScheme]:
    """Return the four schemes, each with the full attention length L from its first token on.

        vanilla        a forward pass over the L tokens before each prediction, softmax of the last position only
        vanilla_fused  vanilla with fused attention, which never holds all scores: its fastest form here
        hidden         segments with L hidden states as memory, the paper's scheme
        cached         segments with L keys and values as memory

    Every query attends to exactly L keys (`same_length`), its own included. The memories start as zeros, which
    does not change the times, and are never reset.
    """
    start = {"memory_start": "zeros", "memory_reset": "never", "extra_key": False}
    lengths = {"mem_len": attention_len, "same_length": True, "ext_len": 0, **start}
    vanilla = vanilla.with_lengths(memory_reset="never")
    window_1L = text_1n[:, torch.arange(attention_len, device=text_1n.device) % text_1n.shape[1]]
    schemes = {}
    for name, fused in (("vanilla", False), ("vanilla_fused", True)):
        sliding = SlidingWindow(vanilla, attention_len, fused=fused)
        schemes[name] = TimedScheme(sliding, text_1n, 1, state=window_1L, position=attention_len)
    schemes["hidden"] = TimedScheme(model.with_lengths(**lengths), text_1n, segment_len)
    schemes["cached"] = TimedScheme(CachedTransformerXL(model, **lengths), text_1n, segment_len)
    return schemes


def vanilla_of(model: TransformerXL, n_layer: int | None = None) -> TransformerXL:
    """Return the vanilla counterpart of a Transformer-XL: equal sizes, absolute sinusoids; no memory, no forgetting.

    Weights that both models have are copied.
    """
    n_layer = n_layer or model.config.n_layer
    without: dict[str, Any] = {"interpolation": 1.0, "forget_gate": False}
    absolute = replace(model.config, encoding="absolute", terms="a", **without)
    vanilla = TransformerXL(replace(absolute, mem_len=0, n_layer=n_layer))
    vanilla.to(model.embedding.tables[0])
    shapes, weights = {name: x.shape for name, x in vanilla.state_dict().items()}, model.state_dict()
    vanilla.load_state_dict({k: x for k, x in weights.items() if shapes.get(k) == x.shape}, strict=False)
    return vanilla.eval()


def random_text(vocab_size: int, n: int, by_rank: bool, seed: int) -> Tensor:
    """Return random tokens [1, n]: uniform, or `by_rank` with P(r) ∝ 1 / (r + 2.7), like words ordered by frequency.

    The tokens affect times only in the adaptive softmax, which skips clusters without targets.
    """
    generator = torch.Generator().manual_seed(seed)
    if not by_rank:
        return torch.randint(vocab_size, (1, n), generator=generator)
    weights = 1 / (torch.arange(vocab_size, dtype=torch.float64) + RANK_OFFSET)
    return torch.multinomial(weights, n, replacement=True, generator=generator)[None]
