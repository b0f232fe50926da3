"""Causal language models from Hugging Face, read as transformers reads them; the result states what is uncertain."""

from __future__ import annotations

import copy
import importlib
import inspect
import re
from collections.abc import Sequence
from os.path import commonprefix
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from txl_lightning.errors import first_line, require
from txl_lightning.recl.effective_context import Entries
from txl_lightning.recl.models import HUGGING_FACE, MODELS, Member, TokenizedText, foreign_errors
from txl_lightning.recl.windows import WindowReader

TOKEN = 5  # some classes do not count the positions of padding, 0 to 3
SHOWN = 20  # characters around a changed text
NO_MODEL = {  # by a file that a folder without config.json has
    "*.ckpt": "a checkpoint of txl train goes into checkpoints=",
    "*.bin": "weights alone: give the folder that has config.json and a tokenizer too",
    "*.safetensors": "weights alone: give the folder that has config.json and a tokenizer too",
    "*.gguf": "a file for llama.cpp: give the folder of the original weights, with config.json",
    "adapter_config.json": "an adapter alone: merge it into its base model (PEFT's merge_and_unload), and save that",
}
NO_TOKENIZER = "has no tokenizer: save the model's own beside it (tokenizer.save_pretrained)"


class HuggingFaceModel(nn.Module):
    """Language model around a causal transformers model; it carries no state and is read in windows.

    Args:
        model: an `AutoModelForCausalLM`.
        begin_of_text: tokens read before a window's first token, in addition to its context.
    """

    def __init__(self, model: Any, begin_of_text: Sequence[int] = ()) -> None:
        super().__init__()
        self.model: Any = model
        self.begin_of_text = list(begin_of_text)
        self.selects = "logits_to_keep" in inspect.signature(model.forward).parameters
        config = model.config.to_json_string(use_diff=False)
        self.window_lengths = list(map(int, re.findall(r"\d+", config)))
        self.loaded: list[tuple[nn.Module, Entries]] = []

    def restore(self) -> None:
        """Restore all modules as they were loaded.

        Some rotations keep the angles from the longest window so far, and some classes exchange their attention for
        good.
        """
        if not self.loaded:
            for module in self.model.modules():
                self.loaded.append((module, _copied(vars(module))))
        for module, attributes in self.loaded:
            vars(module).clear()
            vars(module).update(_copied(attributes))

    def score(
        self,
        tokens_BT: Tensor,
        targets_BT: Tensor,
        state: None = None,
    ) -> tuple[Tensor, None]:
        """Return each target's loss in nats, in float32; with fewer targets than tokens, the first tokens are only
        context.
        """
        T = tokens_BT.shape[1]
        places_C = torch.arange(
            T - targets_BT.shape[1],
            T,
            device=tokens_BT.device,
        )
        return self.losses_at(tokens_BT, targets_BT, places_C), None

    def losses_at(self, tokens_BT: Tensor, targets_BC: Tensor, places_C: Tensor) -> Tensor:
        """Return the losses, [B, C], for the targets after the tokens at `places_C` in a text that begins with them."""
        begin_BT = tokens_BT.new_tensor([self.begin_of_text] * len(tokens_BT))
        tokens_BT = torch.cat([begin_BT, tokens_BT], dim=1)
        places_C = places_C + len(self.begin_of_text)
        self.restore()
        if self.selects:
            logits_BCV = self.model(input_ids=tokens_BT, logits_to_keep=places_C).logits
        else:
            logits_BCV = self.model(input_ids=tokens_BT).logits[:, places_C]
        logits_BVC = logits_BCV.float().transpose(1, 2)
        return nn.functional.cross_entropy(logits_BVC, targets_BC, reduction="none")


def _copied(attributes: Entries) -> Entries:
    """Return a module's attributes, with copies of its parts' dictionaries."""
    parts = {name: copy.copy(value) for name, value in attributes.items() if type(value) is dict}
    return {**attributes, **parts}


def load_huggingface(
    reference: str,
    longest_context: int,
    begin_of_text: bool | None = None,
) -> Member:
    """Load a causal language model and its tokenizer, by name on the hub or from the folder it was saved in.

    Code in a repository is never run (`trust_remote_code` is off).

    Args:
        reference: `hf:` and a name on the hub, such as `gpt2`, or a folder.
        longest_context: tokens that the model should read.
        begin_of_text: read the tokenizer's begin-of-text token before every window; None for what the tokenizer itself
            puts before a text.

    Raises:
        OptionError: the folder has no model or tokenizer, weights are missing, or it has an encoder.
    """
    transformers: Any = importlib.import_module("transformers")
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    source = _source(reference)
    model, not_read = _load_model(transformers, source, reference)
    with foreign_errors(reference, "has no tokenizer that can be loaded"):
        tokenizer = transformers.AutoTokenizer.from_pretrained(source, trust_remote_code=False)
        begin = begin_tokens(tokenizer, begin_of_text, reference)
    code_not_run = None
    if "auto_map" in {**vars(model.config), **tokenizer.init_kwargs}:
        code_not_run = f"{type(model).__name__}, {type(tokenizer).__name__}"
    positions = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    scored = HuggingFaceModel(model, begin)
    limit, limit_reason = readable_length(scored, longest_context, reference)
    if limit is None and positions and positions < longest_context:
        limit_reason = f"none, it reads on beyond the {positions} positions of its config"

    def tokenize(content: bytes) -> TokenizedText:
        return tokenized(tokenizer, content.decode(), reference)

    findings = {
        "not_read": not_read,
        "code_not_run": code_not_run,
        "trained_len": positions,
        "begin_of_text": begin,
        "limit_reason": limit_reason,
    }
    reader = WindowReader(scored, limit=limit, one_pass=True)
    kind = f"{model.config.model_type}, Hugging Face"
    return Member(reference, kind, reader, findings, tokenize=tokenize)


def _source(reference: str) -> str:
    """Return the folder or the name on the hub.

    Raises:
        OptionError: the path is a file, or a folder without a model.
    """
    source = reference.removeprefix(HUGGING_FACE)
    path = Path(source).expanduser()
    is_path = source.startswith((".", "/", "~")) or source.count("/") > 1 or path.exists()
    if not is_path:
        return source
    fault = "has no config.json"
    for pattern, words in NO_MODEL.items():
        if path.match(pattern) or any(path.glob(pattern)):
            fault = f"has no config.json, and is {words}"
    require((path / "config.json").is_file(), MODELS, reference, fault)
    return str(path)


def _load_model(transformers: Any, source: str, reference: str) -> tuple[Any, list[str]]:
    """Return the model, and what is not read from its folder.

    Raises:
        OptionError: weights are missing, or the model has an encoder.
    """
    config = transformers.AutoConfig.from_pretrained(source, trust_remote_code=False)
    has_encoder = getattr(config, "is_encoder_decoder", False)
    allowed = "must be a causal language model, not an encoder-decoder"
    require(not has_encoder, MODELS, reference, allowed)
    model, loaded = transformers.AutoModelForCausalLM.from_pretrained(
        source,
        trust_remote_code=False,
        dtype=torch.float32,
        output_loading_info=True,
    )
    model.eval().requires_grad_(False)
    model.config.use_cache = False
    parameters = dict(model.named_parameters())
    missing = sorted(parameters.keys() & loaded["missing_keys"])
    allowed = f"has no weights for {', '.join(missing[:3])}"
    require(not missing, MODELS, reference, allowed)
    not_read = sorted(loaded["unexpected_keys"])[:3]
    has_adapter = (Path(source) / "adapter_config.json").is_file()
    if has_adapter and not transformers.utils.is_peft_available():
        not_read.append("its adapter, which needs peft: pip install peft")
    return model, not_read


def begin_tokens(tokenizer: Any, begin_of_text: bool | None, reference: str) -> list[int]:
    """Return the tokens to read before every window.

    Args:
        tokenizer: the model's tokenizer.
        begin_of_text: True: its begin-of-text token; False: none; None: what it puts before a text itself.
        reference: the model.

    Raises:
        OptionError: the tokenizer has no such token.
    """
    if begin_of_text is True:
        has_token = tokenizer.bos_token_id is not None
        require(has_token, "begin_of_text", True, f"{reference} has no such token")
        return [tokenizer.bos_token_id]
    tokens = tokenizer("a b")["input_ids"]
    first = tokenizer("a b", add_special_tokens=False)["input_ids"][:1]
    require(len(first) > 0, MODELS, reference, NO_TOKENIZER)
    if begin_of_text is False:
        return []
    return list(tokens[: tokens.index(first[0])])


def readable_length(
    model: HuggingFaceModel, longest: int, reference: str
) -> tuple[int | None, str | None]:
    """Return how many tokens the model reads before it fails, and its error; two None if it reads the longest.

    Only a table of positions ends. Rotations, biases by distance and recurrences do not, whatever the config says.

    Args:
        model: it is on the CPU: a GPU would not survive the error.
        longest: number of tokens that it should read.
        reference: the model, as typed.

    Raises:
        OptionError: it cannot read a single token.
    """
    limit = 0
    fault = None
    fails = longest + 1
    tried = longest
    while limit + 1 < fails:
        tokens_BT = torch.full((1, tried + 1), TOKEN)
        try:
            model.score(tokens_BT[:, :-1], tokens_BT[:, -1:])
            limit = tried
        except Exception as error:  # the classes have no common error
            fails = tried
            fault = f"more tokens fail ({first_line(error)})"
        tried = (limit + fails) // 2
    if fault is None:
        return None, None
    require(limit > 0, MODELS, reference, f"reads no token: {fault}")
    return limit, fault


def tokenized(tokenizer: Any, text: str, reference: str) -> TokenizedText:
    """Return the tokens of a text without any special token, and where they read another text.

    Raises:
        OptionError: the tokenizer knows no token in the text: its files are missing.
    """
    encoded = tokenizer(
        text,
        add_special_tokens=False,
        return_offsets_mapping=tokenizer.is_fast,
        verbose=False,
    )
    ids = encoded["input_ids"]
    knows_text = not set(ids) <= set(tokenizer.all_special_ids)
    require(knows_text, MODELS, reference, NO_TOKENIZER)
    ends = [end for _, end in encoded.get("offset_mapping", [])]
    bounds = np.maximum.accumulate([0, *ends])

    def spell(begin: int, stop: int) -> list[str]:
        if tokenizer.is_fast:
            return [text[bounds[k] : bounds[k + 1]] for k in range(begin, stop)]
        return [tokenizer.decode([token]) for token in ids[begin:stop]]

    changed = None
    read = tokenizer.decode(ids, clean_up_tokenization_spaces=False).lstrip()
    stripped = text.lstrip()
    if read != stripped:
        start = len(commonprefix([stripped, read]))  # noqa: RUF071 - of characters
        shown = slice(start, start + SHOWN)
        changed = {"text": stripped[shown], "read": read[shown]}
    return TokenizedText(
        np.asarray(ids),
        "token",
        spell,
        findings={"changed_text": changed},
    )
