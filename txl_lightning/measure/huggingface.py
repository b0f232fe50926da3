"""Causal language models of Hugging Face as members of a group (`hf:`), and their tokens."""

from __future__ import annotations

import importlib
import inspect
import re
from contextlib import suppress
from os.path import commonprefix
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from txl_lightning.errors import OptionError, notice, require
from txl_lightning.measure.losses import Integers, WindowReader
from txl_lightning.measure.models import HUGGING_FACE, OPTION, Member, TokenizedText, character_starts, foreign_errors


class HuggingFaceModel(nn.Module):
    """Language model around a causal model of transformers, which carries no state: it is read in windows.

    Args:
        model: model of `AutoModelForCausalLM`.
        begin_of_text: token read before the first token of a window, in addition to its context; None for none.
    """

    def __init__(self, model: Any, begin_of_text: int | None = None) -> None:
        super().__init__()
        self.model: Any = model
        self.begin_of_text = begin_of_text
        self.selects = "logits_to_keep" in inspect.signature(model.forward).parameters
        numbers = re.findall(r"\d+", model.config.to_json_string(use_diff=False))
        self.window_lengths = [int(number) for number in numbers]
        self.fresh: list[tuple[nn.Module, dict[str, Any], dict[str, Tensor]]] = []

    def forget(self) -> None:
        """Restore the attributes of modules with buffers: some rotations keep those of the longest window so far."""
        for module, attributes, buffers in self.fresh:
            vars(module).update(attributes)
            for name, buffer in buffers.items():
                setattr(module, name, buffer)
        for module in () if self.fresh else self.model.modules():
            if buffers := dict(module.named_buffers(recurse=False)):
                attributes = {name: value for name, value in vars(module).items() if not name.startswith("_")}
                self.fresh.append((module, attributes, buffers))

    def score(self, tokens_BT: Tensor, targets_BT: Tensor, state: None = None) -> tuple[Tensor, None]:
        """Return the loss of each target in nats, in float32; the first tokens are context if targets are fewer."""
        T = tokens_BT.shape[1]
        places_C = torch.arange(T - targets_BT.shape[1], T, device=tokens_BT.device)
        return self.losses_at(tokens_BT, targets_BT, places_C), None

    def losses_at(self, tokens_BT: Tensor, targets_BC: Tensor, places_C: Tensor) -> Tensor:
        """Return the losses, [B, C], of the targets after the tokens at `places_C` of a text that begins with them."""
        if self.begin_of_text is not None:
            tokens_BT, places_C = nn.functional.pad(tokens_BT, (1, 0), value=self.begin_of_text), places_C + 1
        options = {"logits_to_keep": places_C} if self.selects else {}
        self.forget()
        logits_BCV = self.model(input_ids=tokens_BT, **options).logits
        logits_BCV = logits_BCV if self.selects else logits_BCV[:, places_C]
        return nn.functional.cross_entropy(logits_BCV.float().transpose(1, 2), targets_BC, reduction="none")


def load_huggingface(reference: str, name: str, begin_of_text: bool, tokenizer_of: str = "auto") -> Member:
    """Load a causal language model and its tokenizer, by name on the hub or from the folder it was saved in.

    Code of a repository is never run (`trust_remote_code` is off).

    Args:
        reference: `hf:` and a name on the hub, such as `gpt2`, or a folder.
        name: name in tables and figures.
        begin_of_text: read the tokenizer's begin-of-text token before every window.
        tokenizer_of: auto, the one of `AutoTokenizer`; or json, the one of tokenizer.json.

    Raises:
        OptionError: transformers is not installed, the model cannot be loaded, weights are missing, or it has an
            encoder.
    """
    try:
        transformers: Any = importlib.import_module("transformers")
    except ImportError as error:
        raise OptionError(OPTION, reference, "needs transformers: pip install 'txl_lightning[hf]'") from error
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    source = reference.removeprefix(HUGGING_FACE)
    folder = Path(source).expanduser()
    if source.startswith((".", "/", "~")) or source.count("/") > 1 or ("/" in source and folder.parent.is_dir()):
        require((folder / "config.json").is_file(), OPTION, reference, "has no config.json")
        source = str(folder)
    safe = {"trust_remote_code": False}
    with foreign_errors(reference, "cannot be loaded"):
        whole = getattr(transformers.AutoConfig.from_pretrained(source, **safe), "is_encoder_decoder", False)
        require(not whole, OPTION, reference, "must be a causal language model, not an encoder-decoder")
        tokenizers = [transformers.AutoTokenizer.from_pretrained(source, **safe)]
        with suppress(ValueError, OSError):  # there is no tokenizer.json
            tokenizers.append(transformers.PreTrainedTokenizerFast.from_pretrained(source))
        options = {**safe, "dtype": torch.float32, "output_loading_info": True}
        model, loaded = transformers.AutoModelForCausalLM.from_pretrained(source, **options)
        model.eval().requires_grad_(False).config.use_cache = False
    drawn = sorted({*loaded["missing_keys"]} & {key for key, _ in model.named_parameters()})
    require(not drawn, OPTION, reference, f"has no weights for {', '.join(drawn[:3])}, of {len(drawn)}")
    if unread := sorted(loaded["unexpected_keys"]):
        notice(f"{OPTION}={reference}: by its config {len(unread)} of its weights are not read, such as {unread[0]}")
    if (folder / "adapter_config.json").is_file() and not transformers.utils.is_peft_available():
        notice(f"{OPTION}={reference}: its adapter is not read, which needs peft: pip install peft")
    tokenizers = tokenizers[tokenizer_of == "json" :]
    require(bool(tokenizers), "tokenizer", tokenizer_of, f"{reference} has no tokenizer.json")
    bos = tokenizers[0].bos_token_id if begin_of_text else None
    require(not begin_of_text or bos is not None, "begin_of_text", True, f"{reference} has no such token")
    config = model.config.get_text_config()
    limits = [getattr(config, "max_position_embeddings", None) or getattr(config, "max_seq_len", None) or 0]
    for path, table in model.named_modules():  # RoBERTa counts positions from the padding token's number on
        if "position" in path and getattr(table, "padding_idx", None) is not None:
            limits.append(table.num_embeddings - table.padding_idx - 1)
    limit = min((int(n) - (bos is not None) for n in limits if n > 0), default=None)
    reader = WindowReader(HuggingFaceModel(model, bos), limit=limit, one_pass=True)

    def tokenize(content: bytes) -> TokenizedText:
        text, known = _tokenized(tokenizers, content, reference), int(config.vocab_size)
        largest = int(text.tokens.max(initial=0))
        allowed = f"knows {known} tokens, but its tokenizer gives number {largest}"
        require(largest < known, OPTION, reference, allowed)
        return text

    kind = f"{model.config.model_type}, Hugging Face"
    about: dict[str, Any] = {"trained_len": limit, "begin_of_text": bos}
    about["spell"] = lambda tokens: tokenizers[0].batch_decode(tokens[:, None])
    return Member(name, reference, kind, None, reader, tokenize, **about)


def _tokenized(tokenizers: list[Any], content: bytes, reference: str) -> TokenizedText:
    """Return the tokens of a text without any special token, and the bytes they stand for if that is known.

    Bytes are unknown if the tokens do not give the text back, which is said, or the tokenizer has no offsets.

    Args:
        tokenizers: the tokenizer, and another one that should give the same tokens, if there is one.
        content: the text.
        reference: the model.
    """
    text, tokenizer = content.decode(), tokenizers[0]
    if tokenizer.is_fast:
        tokenizer.backend_tokenizer.post_processor = None  # adds special tokens, or leaves spaces out of the offsets
    encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=tokenizer.is_fast, verbose=False)
    tokens = np.asarray(encoded["input_ids"], dtype=np.int64)
    others = [other(text, add_special_tokens=False, verbose=False)["input_ids"] for other in tokenizers[1:]]
    if others not in ([], [encoded["input_ids"]]):
        line = "tokenizer.json has other tokens than AutoTokenizer: tokenizer=json reads them"
        notice(f"{OPTION}={reference}: {line}")
    back, text_read = tokenizer.decode(tokens.tolist(), clean_up_tokenization_spaces=False).lstrip(), text.lstrip()
    if back != text_read:
        at = len(commonprefix([back, text_read]))  # noqa: RUF071 - of characters
        notice(f"{OPTION}={reference}: its tokens read {back[at : at + 20]!r} for {text_read[at : at + 20]!r}")
    if back != text_read or not tokenizer.is_fast:
        return TokenizedText(tokens, None, len(content))
    bounds = np.append(character_starts(text), len(content))
    spans = bounds[np.asarray(encoded["offset_mapping"], dtype=np.int64)]
    return TokenizedText(tokens, starts_of_spans(spans[:, 0], spans[:, 1]), len(content))


def starts_of_spans(begins: Integers, ends: Integers) -> Integers:
    """Return one start for each token from spans [begin, end), which may overlap and leave gaps, [K].

    Bytes between two tokens belong to the second one, so the first start is 0. A token that begins before the end of
    an earlier one shares the start of that one.
    """
    covered = np.concatenate([[0], np.maximum.accumulate(ends)[:-1]])
    separate = begins >= covered
    separate[:1] = True
    first_of_group = np.maximum.accumulate(np.where(separate, np.arange(len(begins)), 0))
    starts: Integers = covered[first_of_group]
    return starts
