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

from txl_lightning.errors import require
from txl_lightning.recl.effective_context import Entries
from txl_lightning.recl.models import HUGGING_FACE, MODELS, Member, TokenizedText, foreign_errors
from txl_lightning.recl.windows import WindowReader

MOST_RESERVED = 8  # rows in a position table
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
        if self.begin_of_text:
            begin_BT = tokens_BT.new_tensor(self.begin_of_text).expand(
                len(tokens_BT),
                -1,
            )
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
    name: str,
    longest_context: int,
    begin_of_text: bool | None = None,
) -> Member:
    """Load a causal language model and its tokenizer, by name on the hub or from the folder it was saved in.

    Code in a repository is never run (`trust_remote_code` is off).

    Args:
        reference: `hf:` and a name on the hub, such as `gpt2`, or a folder.
        name: name in tables and figures.
        longest_context: tokens that the model should read.
        begin_of_text: read the tokenizer's begin-of-text token before every window; None for what the tokenizer itself
            puts before a text.

    Raises:
        OptionError: transformers is not installed, the model or its tokenizer cannot be loaded,
            weights are missing, or it has an encoder.
    """
    with foreign_errors(reference, "needs transformers: pip install 'txl_lightning[hf]'"):
        transformers: Any = importlib.import_module("transformers")
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    source = _source(reference)
    with foreign_errors(reference, "cannot be loaded"):
        model, findings = _load_model(transformers, source, reference)
    with foreign_errors(reference, "has no tokenizer that can be loaded"):
        tokenizer = transformers.AutoTokenizer.from_pretrained(source, trust_remote_code=False)
        begin = begin_tokens(tokenizer, begin_of_text, reference)
    if "auto_map" in tokenizer.init_kwargs:
        findings["code_not_run"] = f"{type(model).__name__}, {type(tokenizer).__name__}"
    config = model.config.get_text_config()
    positions = getattr(config, "max_position_embeddings", None)
    positions = positions or getattr(config, "max_seq_len", None)
    limit = None
    limit_reason = None
    table = position_table(model, positions) if positions else None
    if table is not None:
        limit = table[0] - len(begin)
        limit_reason = f"its table of positions, {table[1]}"
    elif positions and positions < longest_context:
        limit_reason = f"no table of positions ends at the {positions} of its config"

    def tokenize(content: bytes) -> TokenizedText:
        with foreign_errors(reference, "cannot read the text"):
            return tokenized(tokenizer, content.decode(), reference)

    return Member(
        name=name,
        reference=reference,
        kind=f"{model.config.model_type}, Hugging Face",
        reader=WindowReader(HuggingFaceModel(model, begin), limit=limit, one_pass=True),
        tokenize=tokenize,
        findings={
            **findings,
            "trained_len": positions,
            "begin_of_text": begin,
            "limit_reason": limit_reason,
        },
    )


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


def _load_model(transformers: Any, source: str, reference: str) -> tuple[Any, Entries]:
    """Return the model, and `recl.json` entries about what is not used from its folder.

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
    require(
        not missing,
        MODELS,
        reference,
        f"has no weights for {', '.join(missing[:3])}",
    )
    not_read = sorted(loaded["unexpected_keys"])[:3]
    has_adapter = (Path(source) / "adapter_config.json").is_file()
    if has_adapter and not transformers.utils.is_peft_available():
        not_read.append("its adapter, which needs peft: pip install peft")
    code_not_run = None
    if getattr(config, "auto_map", None):
        code_not_run = type(model).__name__
    return model, {"not_read": not_read, "code_not_run": code_not_run}


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


def position_table(model: Any, positions: int) -> tuple[int, str] | None:
    """Return how many positions the model's table has, and the table's name; None without one.

    Rotations, biases by distance and recurrences do not end, whatever the config says.

    Args:
        model: a transformers model.
        positions: number of positions by its config.
    """
    for path, tensor in [*model.named_parameters(), *model.named_buffers()]:
        is_named = "pos" in path or ".wpe." in path
        if not is_named or tensor.dim() != 2:
            continue
        module = model.get_submodule(path.rpartition(".")[0])
        makes_longer = hasattr(module, "make_weights")  # XGLM
        if makes_longer or not positions <= len(tensor) <= positions + MOST_RESERVED:
            continue
        reserved = getattr(module, "offset", 0)
        padding = getattr(module, "padding_idx", None)
        if padding is not None:  # RoBERTa counts positions from the padding token's number on
            reserved = padding + 1
        return len(tensor) - reserved, path
    return None


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
    return TokenizedText(np.asarray(ids), "token", spell, findings={"changed_text": changed})
