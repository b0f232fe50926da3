"""Causal language models of Hugging Face transformers, with the interface of our own."""

from __future__ import annotations

import copy
import importlib
import inspect
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from txl_lightning.errors import OptionError, require
from txl_lightning.evaluation.language_models.outside import OPTION, OutsideModel, checksum_of
from txl_lightning.evaluation.language_models.tokenized_text import (
    TokenizedText,
    character_starts,
    starts_of_spans,
)

LOGITS_AT_ONCE = 1 << 27  # 512 MiB in float32
RECURRENT_STATES = ("cache_params", "state")  # a state of recurrent layers takes one token at a time
LENGTH_DEPENDENT = ("dynamic", "longrope")  # rotations that depend on the length of the window
TRIED = (5, 4)  # tokens before and after a state


class HuggingFaceModel(nn.Module):
    """Language model around a causal model of transformers; every text is read from position 0.

    Args:
        model: model of `AutoModelForCausalLM`.
        begin_of_text: token read before the first token of a text, in addition to its context; None for none.
    """

    def __init__(self, model: Any, begin_of_text: int | None = None) -> None:
        super().__init__()
        self.model: Any = model
        self.begin_of_text = begin_of_text
        self._accepted = inspect.signature(model.forward).parameters
        names = [name for name in (*RECURRENT_STATES, "past_key_values") if name in self._accepted]
        self._state_name = names[0] if names else None

    def score(self, tokens_BT: Tensor, targets_BT: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        """Return the loss of each target in nats, and the model's own cache after the last token.

        The given state stays as it is. Losses are in float32 whatever the precision of the model.

        Args:
            tokens_BT: tokens; the first ones are context if there are fewer targets.
            targets_BT: next tokens of the last tokens.
            state: state that an earlier call returned; None at the beginning of a text.

        Raises:
            TypeError: a state is given, but the model takes none, or gives other losses with it.
        """
        if state is None:
            tokens_BT = self._with_begin(tokens_BT)
        elif state[0] is None or not self.continues:
            name = type(self.model).__name__
            raise TypeError(f"{name} does not continue a text from its state: score the text at once")
        logits_BTV, state = self._read(tokens_BT, state)
        return _losses(logits_BTV[:, -targets_BT.shape[1] :], targets_BT), state

    def losses_at(self, tokens_BT: Tensor, targets_BC: Tensor, places_C: Tensor) -> Tensor:
        """Return the losses, [B, C], of the targets after the tokens at `places_C` of a text that begins with them.

        Only their logits are computed if the model allows it, for a few rows at a time.
        """
        tokens_BT = self._with_begin(tokens_BT)
        places_C = places_C + (self.begin_of_text is not None)
        selects = "logits_to_keep" in self._accepted
        n_logits = len(places_C) if selects else tokens_BT.shape[1]
        rows = max(1, LOGITS_AT_ONCE // (n_logits * self.vocab_size))
        parts = []
        for some_tokens_BT, some_targets_BC in zip(tokens_BT.split(rows), targets_BC.split(rows), strict=True):
            selected = {"logits_to_keep": places_C} if selects else {}
            logits_BCV = self.model(input_ids=some_tokens_BT, use_cache=False, **selected).logits
            parts.append(_losses(logits_BCV if selects else logits_BCV[:, places_C], some_targets_BC))
        return torch.cat(parts)

    @cached_property
    def continues(self) -> bool:
        """Whether a text that is continued from a state has the same predictions as the text read at once.

        Tried with a few tokens. In some releases of transformers the states of some models are not exact.
        """
        if depends_on_length(self.model.config.get_text_config()):
            return False
        weights = self.model.get_input_embeddings().weight
        tokens_T = (torch.arange(sum(TRIED), device=weights.device) * 7 + 1) % self.vocab_size
        tokens_BT = torch.stack([tokens_T, tokens_T.flip(0)])  # RWKV of transformers mixes texts that it reads together
        before_BT, after_BT = tokens_BT.split(TRIED, dim=1)
        with torch.no_grad():
            whole_BTV, _ = self._read(tokens_BT, None)
            _, state = self._read(before_BT, None)
            continued_BTV, _ = self._read(after_BT, state)
        expected_BTV = whole_BTV[:, -TRIED[1] :].float()
        rounding = 1e-4 if weights.dtype == torch.float32 else 5e-2
        if continued_BTV.shape != expected_BTV.shape:
            return False
        return bool((continued_BTV.float() - expected_BTV).abs().max() <= rounding * expected_BTV.abs().max())

    @property
    def vocab_size(self) -> int:
        """Number of tokens that the model predicts."""
        return int(self.model.config.get_text_config().vocab_size)

    def _read(self, tokens_BT: Tensor, state: Any) -> tuple[Tensor, Any]:
        """Return the logits, and the cache and the number of tokens that are read by then."""
        cache, n_read = state or (None, 0)
        alone = cache is not None and self._state_name in RECURRENT_STATES
        cache = copy.deepcopy(cache)  # transformers changes it in place
        parts = []
        for piece_BT in tokens_BT.split(1 if alone else tokens_BT.shape[1], dim=1):
            output = self.model(input_ids=piece_BT, use_cache=True, **self._continuing(cache, n_read, piece_BT))
            parts.append(output.logits)
            cache = getattr(output, self._state_name or "", None)
            n_read += piece_BT.shape[1]
        return torch.cat(parts, dim=1), (cache, n_read)

    def _with_begin(self, tokens_BT: Tensor) -> Tensor:
        if self.begin_of_text is None:
            return tokens_BT
        return torch.cat([tokens_BT.new_full((len(tokens_BT), 1), self.begin_of_text), tokens_BT], dim=1)

    def _continuing(self, cache: Any, n_read: int, piece_BT: Tensor) -> dict[str, Any]:
        """Return the arguments with which the model goes on after `n_read` tokens."""
        if cache is None or self._state_name is None:
            return {}
        given = {self._state_name: cache}
        if "cache_position" in self._accepted:
            given["cache_position"] = torch.arange(n_read, n_read + piece_BT.shape[1], device=piece_BT.device)
        return given


def depends_on_length(config: Any) -> bool:
    """Return whether positions are rotated by angles that depend on the length of the window."""
    scaling = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    of_layers = [value for value in scaling.values() if isinstance(value, dict)] or [scaling]
    return any(kind.get("rope_type", kind.get("type")) in LENGTH_DEPENDENT for kind in of_layers)


def _losses(logits_BTV: Tensor, targets_BT: Tensor) -> Tensor:
    return nn.functional.cross_entropy(logits_BTV.float().transpose(1, 2), targets_BT, reduction="none")


def load_huggingface(name: str, begin_of_text: bool, dtype: str) -> OutsideModel:
    """Load a causal language model and its tokenizer, by name on the hub or from the folder it was saved in.

    Code of a repository is never run (`trust_remote_code` is off).

    Args:
        name: name on the hub, such as `gpt2`, or a folder.
        begin_of_text: read the tokenizer's begin-of-text token before every window.
        dtype: type of the weights, a name in torch.

    Raises:
        OptionError: transformers is not installed, the model cannot be loaded, weights are missing, or it is not
            causal.
    """
    reference = f"hf:{name}"
    transformers = _transformers(reference)
    folder = Path(name).expanduser()
    is_path = name.startswith((".", "/", "~")) or name.count("/") > 1
    require(folder.is_dir() or not is_path, OPTION, reference, "no such folder")
    source = str(folder) if folder.is_dir() else name
    require(not folder.is_dir() or (folder / "config.json").is_file(), OPTION, reference, "has no config.json")
    try:
        config = transformers.AutoConfig.from_pretrained(source, trust_remote_code=False)
        tokenizer = transformers.AutoTokenizer.from_pretrained(source, trust_remote_code=False)
        options = {"trust_remote_code": False, "dtype": getattr(torch, dtype), "output_loading_info": True}
        model, loaded = transformers.AutoModelForCausalLM.from_pretrained(source, **options)
        model.eval().requires_grad_(False)
        causal = not config.is_encoder_decoder and _is_causal(model)
    except Exception as error:  # transformers, safetensors and the hub have no common error
        raise OptionError(OPTION, reference, _reason(error)) from error
    require(causal, OPTION, reference, f"{config.model_type} is not a causal language model")
    missing = sorted(set(loaded["missing_keys"]) & {name for name, _ in model.named_parameters()})
    # transformers replaces them by random numbers.
    require(not missing, OPTION, reference, f"has no weights for {', '.join(missing[:1])}")
    bos = tokenizer.bos_token_id if begin_of_text else None
    require(not begin_of_text or bos is not None, "begin_of_text", True, f"{reference} has no such token")
    positions = _positions(model)
    return OutsideModel(
        model=HuggingFaceModel(model, bos),
        kind=f"{config.model_type}, Hugging Face",
        checksum=checksum_of(model, f"{config.to_json_string()} {bos}"),
        tokenize=lambda content: _readable(_tokenized(tokenizer, content), model, reference),
        limit=None if positions is None else positions - (bos is not None),
        one_pass=not depends_on_length(config.get_text_config()),
        begin_of_text=bos,
    )


def _transformers(reference: str) -> Any:
    """Import transformers, without its progress bars and warnings."""
    try:
        transformers = importlib.import_module("transformers")
    except ImportError as error:
        raise OptionError(OPTION, reference, "needs transformers: pip install 'txl_lightning[hf]'") from error
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    return transformers


def _reason(error: Exception) -> str:
    """Return one line for a failure to load."""
    text = " ".join(str(error).split())
    if "trust_remote_code" in text:
        return "brings code of its own, which is not run"
    if "Unrecognized configuration class" in text:
        return "is not a causal language model"
    if "connect" in text or "offline" in text.lower():
        return "is neither a folder nor in the local cache, and the hub cannot be reached"
    if "valid model identifier" in text or "Repo id" in text or "Repository Not Found" in text:
        return "is neither a folder nor the name of a model on the hub"
    if "mismatched" in text:
        return "has weights that do not fit its config.json"
    return f"cannot be loaded ({text.split('. ')[0]})"


def _is_causal(model: Any) -> bool:
    """Return whether another last token leaves the predictions before it as they are, up to rounding."""
    weights = model.get_input_embeddings().weight
    tokens_BT = (torch.arange(6) * 7 + 1).repeat(2, 1) % len(weights)
    tokens_BT[1, -1] = (tokens_BT[1, -1] + 1) % len(weights)
    with torch.no_grad():
        one_TV, other_TV = model(input_ids=tokens_BT, use_cache=False).logits[:, :-1].float()
    rounding = 1e-5 if weights.dtype == torch.float32 else 1e-2
    return bool((one_TV - other_TV).abs().max() <= rounding * one_TV.abs().max())


def _positions(model: Any) -> int | None:
    """Return the number of tokens that a model has positions for; None for any number."""
    if set(RECURRENT_STATES) & set(inspect.signature(model.forward).parameters):
        return None  # RWKV calls the length of its training so
    for name, module in model.named_modules():
        # RoBERTa and its relatives begin after the position of padding.
        if name.endswith("position_embeddings") and getattr(module, "padding_idx", None) is not None:
            return int(module.num_embeddings - module.padding_idx - 1)
    config = model.config.get_text_config()
    positions = getattr(config, "max_position_embeddings", None)
    return positions if positions is not None else getattr(config, "max_seq_len", None)  # MPT


def _tokenized(tokenizer: Any, content: bytes) -> TokenizedText:
    """Return the tokens of a text without any special token, and the bytes they stand for if that is known.

    Bytes are unknown if the tokenizer gives no offsets, or if the tokens do not give the text back.
    """
    text = content.decode()
    offsets = bool(tokenizer.is_fast)
    if offsets:
        tokenizer.backend_tokenizer.post_processor = None  # adds special tokens, or leaves spaces out of the offsets
    encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=offsets, verbose=False)
    tokens = np.asarray(encoded["input_ids"], dtype=np.int64)
    lossless = tokenizer.decode(tokens.tolist(), clean_up_tokenization_spaces=False).lstrip() == text.lstrip()
    if not (offsets and lossless):
        return TokenizedText(tokens, None, len(content))
    bounds = np.append(character_starts(text), len(content))
    spans = bounds[np.asarray(encoded["offset_mapping"], dtype=np.int64)]
    return TokenizedText(tokens, starts_of_spans(spans[:, 0], spans[:, 1]), len(content))


def _readable(text: TokenizedText, model: Any, reference: str) -> TokenizedText:
    """Return the text if the model knows all of its tokens."""
    largest, known = int(text.tokens.max(initial=0)), int(model.config.get_text_config().vocab_size)
    allowed = f"knows {known} tokens, but its tokenizer gives number {largest}"
    require(largest < known, OPTION, reference, allowed)
    return text
