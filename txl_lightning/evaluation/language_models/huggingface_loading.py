"""Load models and tokenizers of Hugging Face transformers, which is imported here only."""

from __future__ import annotations

import importlib
import inspect
from pathlib import Path
from typing import Any

import numpy as np
import torch

from txl_lightning.errors import OptionError, require
from txl_lightning.evaluation.language_models.huggingface import RECURRENT_STATES, HuggingFaceModel, depends_on_length
from txl_lightning.evaluation.language_models.outside import OPTION, OutsideModel, checksum_of
from txl_lightning.evaluation.language_models.tokenized_text import (
    TokenizedText,
    character_starts,
    starts_of_spans,
)


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
