"""Models of a group: checkpoints of runs (txl:), models of Hugging Face (hf:) and of Python functions (py:)."""

from __future__ import annotations

import hashlib
import importlib
import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from txl_lightning.config.lengths import extended_context, first_states, longest_trained_distance, trained_clamp
from txl_lightning.config.schemas import Config, RecurrentModelConfig
from txl_lightning.errors import OptionError, UserError, require
from txl_lightning.evaluation.scoring.option_checks import chosen_device
from txl_lightning.evaluation.scoring.token_losses import device_of
from txl_lightning.evaluation.scoring.tokenized_text import (
    TokenizedText,
    character_starts,
    starts_of_spans,
    with_vocabulary,
)
from txl_lightning.evaluation.scoring.windows import WindowReader, window_reader
from txl_lightning.files import file_checksum
from txl_lightning.model.language_model import LanguageModel
from txl_lightning.runs.trained import TrainedModel, load_trained

OPTION = "models"
TRAINED, HUGGING_FACE, FUNCTION = PREFIXES = ("txl:", "hf:", "py:")
TRIED = 8  # tokens
LOGITS_AT_ONCE = 1 << 27  # 512 MiB in float32
CACHES = ("past_key_values", "cache", "cache_params", "state")  # arguments of transformers' models
LENGTH_DEPENDENT = ("dynamic", "longrope")  # rotations that depend on the length of the window


@dataclass(frozen=True)
class Member:
    """One model of a group, in evaluation mode.

    Args:
        name: name in tables and figures.
        path: path of the checkpoint, or the reference `hf:NAME` or `py:module.function`.
        kind: size, encoding and recurrence, in words.
        checksum: SHA-256 of everything that its losses depend on; None if unknown, then losses are not stored.
        reader: reader of windows.
        tokenize: returns the tokens of a text; raises OptionError if the model cannot read it.
        trained: contents of the checkpoint; None for a model from elsewhere.
        trained_len: tokens that a token saw in training: segment, extended context and memory; of other models the
            positions; None if unknown.
        clamp_len: larger distances share one position; None for other models than Transformer-XL.
        begin_of_text: token read before every window; None for none.
    """

    name: str
    path: str
    kind: str
    checksum: str | None
    reader: WindowReader
    tokenize: Callable[[bytes], TokenizedText]
    trained: TrainedModel | None = None
    trained_len: int | None = None
    clamp_len: int | None = None
    begin_of_text: int | None = None

    @property
    def option(self) -> str:
        """Option that named the model, for errors."""
        return "checkpoints" if self.trained else OPTION


def load_member(reference: str, name: str, options: Any) -> Member:
    """Load a model to the chosen device.

    Args:
        reference: txl:PATH, hf:NAME_OR_PATH or py:module.function.
        name: name in tables and figures.
        options: accelerator, batch_tokens, clamp_len of a Transformer-XL, begin_of_text and dtype of hf: models.

    Raises:
        OptionError: the model is not usable.
    """
    device = chosen_device(options.accelerator)
    if reference.startswith(TRAINED):
        member = _load_run(reference.removeprefix(TRAINED), name, device, options.clamp_len)
    elif reference.startswith(HUGGING_FACE):
        member = load_huggingface(reference, name, options.begin_of_text, options.dtype)
    else:
        member = load_function(reference, name)
    if hasattr(member.reader.model, "to"):
        member.reader.model.to(device)
    return replace(member, reader=replace(member.reader, batch_tokens=options.batch_tokens))


def _load_run(path: str, name: str, device: torch.device, clamp_len: int | None) -> Member:
    trained = load_trained(path, option="checkpoints")
    config, recurrent = trained.config, isinstance(trained.config.model, RecurrentModelConfig)
    own_clamp = trained_clamp(config)
    clamp_len = own_clamp if clamp_len is None or own_clamp is None else clamp_len
    trained.model.to(device)

    def tokenize(content: bytes) -> TokenizedText:
        try:
            return with_vocabulary(trained.vocabulary, content, trained.closed_sentences)
        except UserError as error:
            raise OptionError("checkpoints", path, str(error)) from error

    return Member(
        name=name,
        path=path,
        kind=config.model.name if recurrent else _kind(config),
        checksum=file_checksum(path),
        reader=window_reader(trained.model, config.data.segment_len + extended_context(config), clamp_len),
        tokenize=tokenize,
        trained=trained,
        trained_len=config.data.segment_len if recurrent else longest_trained_distance(config) + 1,
        clamp_len=clamp_len,
    )


def _kind(config: Config) -> str:
    memory = f"memory {config.memory.mem_len}" if config.memory.mem_len else "no recurrence"
    if first_states(config):
        memory += f" and the first {first_states(config)} states"
    if config.memory.compression is not None:
        rate = f"{config.memory.rate}:1 ({config.memory.compression})"
        memory += f" and {config.memory.compressed_len} compressed {rate}"
    if config.memory.n_tokens:
        memory = f"{memory} and {config.memory.n_tokens} memory tokens".removeprefix("no recurrence and ")
    return f"{config.model.name}, {config.encoding.name}, {memory}"


def load_function(reference: str, name: str) -> Member:
    """Call the function of `py:module.function` and return the language model it returns.

    The model has `score`. It may have `encode(text: bytes)`, which returns token numbers and the bytes of each token
    (both [K]; the bytes sum to the text's), `limit` and `one_pass`. Without `encode` its tokens are bytes. A module
    is also found in the working directory.

    Raises:
        OptionError: there is no such function, or it returns no language model.
    """
    module_name, _, function_name = reference.removeprefix(FUNCTION).rpartition(".")
    require(module_name.strip(".") == module_name != "", OPTION, reference, "must be py:module.function")
    if str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))
    try:
        function = getattr(importlib.import_module(module_name), function_name)
        inspect.signature(function).bind()
    except (ImportError, AttributeError, TypeError) as error:
        raise OptionError(OPTION, reference, f"must be a function without arguments ({error})") from error
    model = function()
    fits = isinstance(model, LanguageModel) and not isinstance(model, type)
    require(fits, OPTION, reference, f"must return a model with the method score, not {type(model).__name__}")
    limit = getattr(model, "limit", None)
    fits = limit is None or (isinstance(limit, int) and limit >= 1)
    require(fits, OPTION, reference, f"must have a limit >= 1 or None, not {limit!r}")
    if isinstance(model, nn.Module):
        model = model.eval().requires_grad_(False)
    reader = WindowReader(model, limit=limit, one_pass=getattr(model, "one_pass", True))

    def tokenize(content: bytes) -> TokenizedText:
        text = _encoded(model, content, reference)
        _try(reader, text, reference)
        return text

    return Member(name, reference, type(model).__name__, None, reader, tokenize, trained_len=limit)


def _encoded(model: Any, content: bytes, reference: str) -> TokenizedText:
    if not hasattr(model, "encode"):
        return TokenizedText(np.frombuffer(content, np.uint8), np.arange(len(content)), len(content))
    tokens, *others = (np.asarray(numbers, dtype=np.int64) for numbers in model.encode(content))
    sizes = others[0] if len(others) == 1 else np.zeros(0, dtype=np.int64)
    fits = tokens.shape == sizes.shape and sizes.sum() == len(content) and sizes.min(initial=0) >= 0
    require(fits, OPTION, reference, "encode must return tokens and their sizes, which sum to the bytes given")
    return TokenizedText(tokens, np.cumsum(sizes) - sizes, len(content))


def _try(reader: WindowReader, text: TokenizedText, reference: str) -> None:
    """Score the first tokens of a text.

    Raises:
        OptionError: losses have another shape, those of the last targets differ without the others, or those of a
            window's first tokens differ in a shorter window although `one_pass` is not False.
    """
    length = min(reader.visible(TRIED), len(text.tokens) - 1)
    if length < 2:
        return
    window_T = torch.from_numpy(text.tokens[: length + 1].astype(np.int64)).to(device_of(reader.model))
    tokens_BT, targets_BT = (part_T.repeat(2, 1) for part_T in (window_T[:-1], window_T[1:]))

    def losses(stop: int, n_targets: int) -> Tensor:
        targets = targets_BT[:, stop - n_targets : stop]
        result = reader.model.score(tokens_BT[:, :stop], targets, None)
        nll: Any = result[0] if isinstance(result, tuple | list) else None
        fits = isinstance(nll, Tensor) and nll.shape == targets.shape
        allowed = f"score must return a tensor of losses of shape {list(targets.shape)} for such targets, and a state"
        require(fits, OPTION, reference, allowed)
        return nll.float()

    def check(these: Tensor, others: Tensor, allowed: str) -> None:
        equal = torch.allclose(these, others, rtol=1e-3, atol=1e-3, equal_nan=True)
        require(equal, OPTION, reference, allowed)

    with torch.no_grad():
        whole_BT = losses(length, length)
        allowed = "score must give the last targets the same losses without the others"
        check(whole_BT[:, -1:], losses(length, 1), allowed)
        if reader.one_pass:
            allowed = "must have one_pass = False: losses depend on later tokens, or on the length of the window"
            check(whole_BT[:, :-1], losses(length - 1, length - 1), allowed)


class HuggingFaceModel(nn.Module):
    """Language model around a causal model of transformers; every text is read at once, from position 0.

    Args:
        model: model of `AutoModelForCausalLM`.
        begin_of_text: token read before the first token of a text, in addition to its context; None for none.
    """

    def __init__(self, model: Any, begin_of_text: int | None = None) -> None:
        super().__init__()
        self.model: Any = model
        self.begin_of_text = begin_of_text

    def score(self, tokens_BT: Tensor, targets_BT: Tensor, state: None = None) -> tuple[Tensor, None]:
        """Return the loss of each target in nats, in float32 whatever the precision of the model, and no state.

        Args:
            tokens_BT: tokens; the first ones are context if there are fewer targets.
            targets_BT: next tokens of the last tokens.
            state: None; a text is not continued.

        Raises:
            TypeError: a state is given.
        """
        if state is not None:
            raise TypeError("a model of Hugging Face is not continued from a state: score the text at once")
        logits_BTV = self.model(input_ids=self.with_begin(tokens_BT), use_cache=False).logits
        return _losses(logits_BTV[:, -targets_BT.shape[1] :], targets_BT), None

    def losses_at(self, tokens_BT: Tensor, targets_BC: Tensor, places_C: Tensor) -> Tensor:
        """Return the losses, [B, C], of the targets after the tokens at `places_C` of a text that begins with them.

        Only their logits are computed if the model allows it, for a few rows at a time.
        """
        tokens_BT = self.with_begin(tokens_BT)
        places_C = places_C + (self.begin_of_text is not None)
        selects = "logits_to_keep" in inspect.signature(self.model.forward).parameters
        selected = {"logits_to_keep": places_C} if selects else {}
        n_logits = len(places_C) if selects else tokens_BT.shape[1]
        rows = max(1, LOGITS_AT_ONCE // (n_logits * _vocab_size(self.model)))
        parts = []
        for some_tokens_BT, some_targets_BC in zip(tokens_BT.split(rows), targets_BC.split(rows), strict=True):
            logits_BCV = self.model(input_ids=some_tokens_BT, use_cache=False, **selected).logits
            parts.append(_losses(logits_BCV if selects else logits_BCV[:, places_C], some_targets_BC))
        return torch.cat(parts)

    def with_begin(self, tokens_BT: Tensor) -> Tensor:
        """Return the tokens after the begin-of-text token, if there is one."""
        if self.begin_of_text is None:
            return tokens_BT
        return nn.functional.pad(tokens_BT, (1, 0), value=self.begin_of_text)


class CarriedCache(nn.Module):
    """Language model whose state is the cache of a causal model of transformers, from segment to segment.

    Where the positions of the model end within a segment, its text begins anew, without context.

    Args:
        model: the model.
        argument: name of the cache as argument and in the output.
        limit: tokens that the model has positions for; None for any number.
    """

    def __init__(self, model: HuggingFaceModel, argument: str, limit: int | None) -> None:
        super().__init__()
        self.model, self.argument, self.limit = model, argument, limit

    def score(self, tokens_BT: Tensor, targets_BT: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        """Return the loss of each target in nats, in float32, and the state: the cache and the tokens in it.

        Arguments as `HuggingFaceModel.score`, but `state` is that of the segment before.
        """
        cache, n_read = state or (None, 0)
        if self.limit is not None and n_read + tokens_BT.shape[1] > self.limit:
            cache, n_read = None, 0
        read_BT = self.model.with_begin(tokens_BT) if cache is None else tokens_BT
        output = self.model.model(input_ids=read_BT, use_cache=True, **{self.argument: cache})
        losses_BT = _losses(output.logits[:, -targets_BT.shape[1] :], targets_BT)
        return losses_BT, (getattr(output, self.argument), n_read + tokens_BT.shape[1])


def carrying(member: Member, text: TokenizedText) -> LanguageModel | None:
    """Return a model from elsewhere for segments one after another, each with the state of the segment before.

    None if its state is None, or if a cache of transformers gives two segments other losses than one.

    Args:
        member: the model.
        text: text whose first tokens are tried.
    """
    model: Any = member.reader.model
    tokens_BT = torch.from_numpy(text.tokens[: 2 * TRIED + 1].astype(np.int64))[None].to(device_of(model))
    halves = [(tokens_BT[:, i : i + TRIED], tokens_BT[:, i + 1 : i + 1 + TRIED]) for i in (0, TRIED)]
    with torch.no_grad():
        if not isinstance(model, HuggingFaceModel):
            return None if model.score(*halves[0], None)[1] is None else model
        arguments = [name for name in CACHES if name in inspect.signature(model.model.forward).parameters]
        if not arguments:
            return None
        carrier = CarriedCache(model, arguments[0], member.reader.limit)
        first_BT, state = carrier.score(*halves[0])
        second_BT, _ = carrier.score(*halves[1], state)
        whole_BT, _ = model.score(tokens_BT[:, :-1], tokens_BT[:, 1:])
    rounding = 1e-4 if next(model.parameters()).dtype == torch.float32 else 5e-2
    return carrier if torch.allclose(torch.cat([first_BT, second_BT], 1), whole_BT, rounding, rounding) else None


def with_carrier(member: Member, text: TokenizedText) -> Member:
    """Return a member whose long windows are read in chunks, if it is of Hugging Face and `carrying` allows it."""
    hub = isinstance(member.reader.model, HuggingFaceModel)
    return replace(member, reader=replace(member.reader, carrier=carrying(member, text))) if hub else member


def _losses(logits_BTV: Tensor, targets_BT: Tensor) -> Tensor:
    return nn.functional.cross_entropy(logits_BTV.float().transpose(1, 2), targets_BT, reduction="none")


def _vocab_size(model: Any) -> int:
    return int(model.config.get_text_config().vocab_size)


def depends_on_length(config: Any) -> bool:
    """Return whether positions are rotated by angles that depend on the length of the window."""
    scaling = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    of_layers = [value for value in scaling.values() if isinstance(value, dict)] or [scaling]
    return any(kind.get("rope_type", kind.get("type")) in LENGTH_DEPENDENT for kind in of_layers)


def load_huggingface(reference: str, name: str, begin_of_text: bool, dtype: str) -> Member:
    """Load a causal language model and its tokenizer, by name on the hub or from the folder it was saved in.

    Code of a repository is never run (`trust_remote_code` is off).

    Args:
        reference: `hf:` and a name on the hub, such as `gpt2`, or a folder.
        name: name in tables and figures.
        begin_of_text: read the tokenizer's begin-of-text token before every window.
        dtype: type of the weights, a name in torch.

    Raises:
        OptionError: transformers is not installed, the model cannot be loaded, weights are missing, or it is not
            causal.
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
    try:
        config = transformers.AutoConfig.from_pretrained(source, trust_remote_code=False)
        tokenizer = transformers.AutoTokenizer.from_pretrained(source, trust_remote_code=False)
        options = {"trust_remote_code": False, "dtype": getattr(torch, dtype), "output_loading_info": True}
        model, loaded = transformers.AutoModelForCausalLM.from_pretrained(source, **options)
        model.eval().requires_grad_(False)
        causal = not config.is_encoder_decoder and _is_causal(model)
    except Exception as error:  # transformers, safetensors and the hub have no common error
        reason = " ".join(str(error).split()).split(". ")[0]
        raise OptionError(OPTION, reference, f"cannot be loaded ({reason})") from error
    require(causal, OPTION, reference, f"{config.model_type} is not a causal language model")
    missing = sorted(set(loaded["missing_keys"]) & {name for name, _ in model.named_parameters()})
    # transformers replaces them by random numbers.
    require(not missing, OPTION, reference, f"has no weights for {', '.join(missing[:1])}")
    bos = tokenizer.bos_token_id if begin_of_text else None
    require(not begin_of_text or bos is not None, "begin_of_text", True, f"{reference} has no such token")
    positions = _positions(model)
    limit = None if positions is None else positions - (bos is not None)

    def tokenize(content: bytes) -> TokenizedText:
        text, known = _tokenized(tokenizer, content), _vocab_size(model)
        largest = int(text.tokens.max(initial=0))
        allowed = f"knows {known} tokens, but its tokenizer gives number {largest}"
        require(largest < known, OPTION, reference, allowed)
        return text

    return Member(
        name=name,
        path=reference,
        kind=f"{config.model_type}, Hugging Face",
        checksum=_checksum(model, f"{config.to_json_string()} {bos}"),
        reader=WindowReader(
            HuggingFaceModel(model, bos), limit=limit, one_pass=not depends_on_length(config.get_text_config())
        ),
        tokenize=tokenize,
        trained_len=limit,
        begin_of_text=bos,
    )


def _checksum(model: nn.Module, description: str) -> str:
    """Return the SHA-256 of a description and of the names, types and numbers of all parameters and buffers."""
    digest = hashlib.sha256(description.encode())
    for name, tensor in model.state_dict().items():
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


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
    if {"cache_params", "state"} & set(inspect.signature(model.forward).parameters):
        return None  # a recurrent state; RWKV calls the length of its training so
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
