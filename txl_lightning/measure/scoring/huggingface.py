"""Models of Hugging Face (hf:) as language models: loaded, scored in windows or with their cache carried, tokenized."""

from __future__ import annotations

import hashlib
import importlib
import inspect
from copy import copy
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from txl_lightning.errors import OptionError, notice, require
from txl_lightning.measure.scoring.models import HUGGING_FACE, OPTION, Member, foreign_errors
from txl_lightning.measure.scoring.tokenized_text import TokenizedText, character_starts, starts_of_spans
from txl_lightning.measure.scoring.windows import Integers, WindowReader

LOGITS_AT_ONCE = 1 << 27  # 512 MiB in float32
LARGEST_GROUP = 16  # tokens of one character
POSITIONS = ("max_position_embeddings", "max_seq_len", "max_target_positions")  # MPT, Whisper
CACHES = ("past_key_values", "cache", "cache_params", "state")  # arguments of transformers' models


class HuggingFaceModel(nn.Module):
    """Language model around a causal model of transformers.

    Every text is read at once, from position 0. `carrying` returns one whose state is its cache, from segment to
    segment; where the positions end within a segment, its text begins anew, without context.

    Args:
        model: model of `AutoModelForCausalLM`.
        begin_of_text: token read before the first token of a text, in addition to its context; None for none.
        limit: tokens that the model has positions for; None for any number.
    """

    def __init__(self, model: Any, begin_of_text: int | None = None, limit: int | None = None) -> None:
        super().__init__()
        self.model: Any = model
        self.begin_of_text, self.limit = begin_of_text, limit
        known = inspect.signature(model.forward).parameters
        self.selects = "logits_to_keep" in known
        self.cache, self.carries = next((name for name in CACHES if name in known), CACHES[0]), False

    def carrying(self) -> HuggingFaceModel:
        """Return the same model with its cache as state."""
        carrier = copy(self)
        carrier.carries = True
        return carrier

    def score(self, tokens_BT: Tensor, targets_BT: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        """Return the loss of each target in nats, in float32, and the state: the cache and the tokens in it, or None.

        Args:
            tokens_BT: tokens; the first ones are context if there are fewer targets.
            targets_BT: next tokens of the last tokens.
            state: returned for the segment before; None for the start of a text.
        """
        cache, n_read = state or (None, 0)
        if self.limit is not None and n_read + tokens_BT.shape[1] > self.limit:
            cache, n_read = None, 0
        given = {self.cache: cache} if self.carries else {}
        read_BT = self.with_begin(tokens_BT) if cache is None else tokens_BT
        output = self.model(input_ids=read_BT, use_cache=self.carries, **given)
        losses_BT = _losses(output.logits[:, -targets_BT.shape[1] :], targets_BT)
        return losses_BT, (getattr(output, self.cache), n_read + tokens_BT.shape[1]) if self.carries else None

    def losses_at(self, tokens_BT: Tensor, targets_BC: Tensor, places_C: Tensor) -> Tensor:
        """Return the losses, [B, C], of the targets after the tokens at `places_C` of a text that begins with them.

        Only their logits are computed if the model allows it, for a few rows at a time.
        """
        tokens_BT = self.with_begin(tokens_BT)
        places_C = places_C + (self.begin_of_text is not None)
        selected = {"logits_to_keep": places_C} if self.selects else {}
        n_logits = len(places_C) if self.selects else tokens_BT.shape[1]
        rows = max(1, LOGITS_AT_ONCE // (n_logits * _vocab_size(self.model)))
        parts = []
        for some_tokens_BT, some_targets_BC in zip(tokens_BT.split(rows), targets_BC.split(rows), strict=True):
            logits_BCV = self.model(input_ids=some_tokens_BT, use_cache=False, **selected).logits
            parts.append(_losses(logits_BCV if self.selects else logits_BCV[:, places_C], some_targets_BC))
        return torch.cat(parts)

    def with_begin(self, tokens_BT: Tensor) -> Tensor:
        """Return the tokens after the begin-of-text token, if there is one."""
        return nn.functional.pad(tokens_BT, (int(self.begin_of_text is not None), 0), value=self.begin_of_text or 0)


def _losses(logits_BTV: Tensor, targets_BT: Tensor) -> Tensor:
    return nn.functional.cross_entropy(logits_BTV.float().transpose(1, 2), targets_BT, reduction="none")


def _vocab_size(model: Any) -> int:
    return int(model.config.get_text_config().vocab_size)


def load_huggingface(reference: str, name: str, begin_of_text: bool, dtype: str) -> Member:
    """Load a causal language model and its tokenizer, by name on the hub or from the folder it was saved in.

    Code of a repository is never run (`trust_remote_code` is off).

    Args:
        reference: `hf:` and a name on the hub, such as `gpt2`, or a folder.
        name: name in tables and figures.
        begin_of_text: read the tokenizer's begin-of-text token before every window.
        dtype: type of the weights, a name in torch.

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
    if source.startswith((".", "/", "~")) or source.count("/") > 1:
        require(folder.is_dir(), OPTION, reference, "no such folder")
    if folder.is_dir():
        require((folder / "config.json").is_file(), OPTION, reference, "has no config.json")
        source = str(folder)
    with foreign_errors(reference, "cannot be loaded"):
        config = transformers.AutoConfig.from_pretrained(source, trust_remote_code=False)
        tokenizer = transformers.AutoTokenizer.from_pretrained(source, trust_remote_code=False)
        options = {"trust_remote_code": False, "dtype": getattr(torch, dtype), "output_loading_info": True}
        model, loaded = transformers.AutoModelForCausalLM.from_pretrained(source, **options)
        model.eval().requires_grad_(False)
        begun = tokenizer("a")["input_ids"][:1] == [tokenizer.bos_token_id]
    require(not config.is_encoder_decoder, OPTION, reference, f"{config.model_type} is not a causal language model")
    _check_weights(model, loaded, reference)
    bos = tokenizer.bos_token_id if begin_of_text else None
    require(not begin_of_text or bos is not None, "begin_of_text", True, f"{reference} has no such token")
    if begun and not begin_of_text:
        notice(f"{reference}: texts of its training begin with {tokenizer.bos_token}: begin_of_text=true reads it")
    limit = _positions(model)
    limit = None if limit is None else limit - (bos is not None)
    reader = WindowReader(HuggingFaceModel(model, bos, limit), limit=limit, one_pass=True)
    kind, checksum = f"{config.model_type}, Hugging Face", _checksum(model, f"{config.to_json_string()} {bos}")

    def tokenize(content: bytes) -> TokenizedText:
        text, known = _tokenized(tokenizer, content), _vocab_size(model)
        largest = int(text.tokens.max(initial=0))
        allowed = f"knows {known} tokens, but its tokenizer gives number {largest}"
        require(largest < known, OPTION, reference, allowed)
        return text

    return Member(name, reference, kind, checksum, reader, tokenize, trained_len=limit, begin_of_text=bos)


def _check_weights(model: nn.Module, loaded: dict[str, Any], reference: str) -> None:
    """Refuse a model with parameters that its files lack: transformers draws them. Report other differences."""
    missing, unused = (sorted(loaded[key]) for key in ("missing_keys", "unexpected_keys"))
    drawn = sorted({*missing} & {name for name, _ in model.named_parameters()})
    require(not drawn, OPTION, reference, f"has no weights for {', '.join(drawn[:3])}, of {len(drawn)}")
    differences = {"lack {} buffers of the model": missing, "have {} weights that the model does not": unused}
    for what, names in differences.items():
        if names:
            notice(f"{reference}: its files {what.format(len(names))}: {', '.join(names[:3])}")


def _checksum(model: nn.Module, description: str) -> str:
    """Return the SHA-256 of a description and of the names, types and numbers of all parameters and buffers."""
    digest = hashlib.sha256(description.encode())
    for name, tensor in model.state_dict().items():
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _positions(model: Any) -> int | None:
    """Return the number of tokens that a model has positions for; None for any number."""
    if {"cache_params", "state"} & set(inspect.signature(model.forward).parameters):
        return None  # a recurrent state; RWKV calls the length of its training so
    for name, module in model.named_modules():
        # RoBERTa and its relatives begin after the position of padding.
        if name.endswith("position_embeddings") and getattr(module, "padding_idx", None) is not None:
            return int(module.num_embeddings - module.padding_idx - 1)
    config = model.config.get_text_config()
    named = (getattr(config, name, None) for name in POSITIONS)
    return next((int(number) for number in named if number and number > 0), None)  # XLNet has -1


def _tokenized(tokenizer: Any, content: bytes) -> TokenizedText:
    """Return the tokens of a text without any special token, and the bytes they stand for if that is known.

    Bytes are unknown if the tokens do not give the text back.
    """
    text = content.decode()
    offsets = bool(tokenizer.is_fast)
    if offsets:
        tokenizer.backend_tokenizer.post_processor = None  # adds special tokens, or leaves spaces out of the offsets
    encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=offsets, verbose=False)
    tokens = np.asarray(encoded["input_ids"], dtype=np.int64)
    lossless = tokenizer.decode(tokens.tolist(), clean_up_tokenization_spaces=False).lstrip() == text.lstrip()
    if not lossless:
        return TokenizedText(tokens, None, len(content))
    if not offsets:
        return TokenizedText(tokens, _starts_by_decoding(tokenizer, tokens, content), len(content))
    bounds = np.append(character_starts(text), len(content))
    spans = bounds[np.asarray(encoded["offset_mapping"], dtype=np.int64)]
    return TokenizedText(tokens, starts_of_spans(spans[:, 0], spans[:, 1]), len(content))


def _starts_by_decoding(tokenizer: Any, tokens: np.ndarray, content: bytes) -> Integers | None:
    """Return the first byte of each token, [K]; None if the text is not that of one token, or a few, after another."""
    piece = cache(lambda group: tokenizer.decode(list(group), clean_up_tokenization_spaces=False).encode())
    starts, begin, group = [], 0, list[int]()
    for token in tokens.tolist():
        starts.append(begin)
        group.append(token)
        if (found := piece(tuple(group))) and content.startswith(found, begin):
            begin, group = begin + len(found), []
        elif len(group) == LARGEST_GROUP:
            break
    return np.asarray(starts) if begin == len(content) and not group else None
