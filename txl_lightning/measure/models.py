"""Models that are measured together, and the tokens that each makes of one text.

A `Member` is a checkpoint of a run (txl:), a causal model of Hugging Face (hf:) or the model that a Python function
returns (py:).
"""

from __future__ import annotations

import hashlib
import importlib
import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from txl_lightning.config.lengths import trained_clamp, training_lengths
from txl_lightning.config.schemas import RecurrentModelConfig
from txl_lightning.data.vocabulary import SENTENCE, Vocabulary, close_sentences, code_points
from txl_lightning.errors import OptionError, UserError, require
from txl_lightning.files import file_checksum
from txl_lightning.measure.losses import Integers, WindowReader, device_of, window_reader
from txl_lightning.model.language_model import LanguageModel
from txl_lightning.runs.trained import TrainedModel, load_trained

OPTION = "models"
HUGGING_FACE, FUNCTION = "hf:", "py:"
CACHES = ("past_key_values", "cache")  # arguments of transformers' models
TRIED = 64  # tokens
ROUNDING = 1e-3  # share of the losses' standard deviation, in float32


@dataclass(frozen=True)
class TokenizedText:
    """Tokens of a text of n bytes.

    Args:
        tokens: token numbers, [K].
        starts: first byte of each token, [K], ascending from 0; tokens that share a byte (parts of a character) have
            one start. A token ends where the next larger start is, the last one at byte n. None if unknown.
        n_bytes: n.
        documents: first token of each document, ascending from 0; None where they are unknown, are marked in the
            tokens, or do not matter.
    """

    tokens: np.ndarray
    starts: Integers | None
    n_bytes: int
    documents: Integers | None = None

    def document_begins(self, positions: Integers) -> Integers:
        """Return the first token of the document of the token before each position; 0 without documents."""
        if self.documents is None:
            return np.zeros_like(positions)
        return self.documents[np.searchsorted(self.documents, positions - 1, side="right") - 1]

    @property
    def known_starts(self) -> Integers:
        """First byte of each token.

        Raises:
            UserError: it is unknown.
        """
        if self.starts is None:
            raise UserError("the bytes of the tokens are unknown")
        return self.starts


def with_vocabulary(vocabulary: Vocabulary, content: bytes, closed: bool = False) -> TokenizedText:
    """Encode a text as a run does. Starts are unknown for words, and where bytes are dropped.

    Args:
        vocabulary: vocabulary of the run.
        content: the text.
        closed: put `<S>` at the ends of sentences too.

    Raises:
        UserError: a symbol is not in the vocabulary.
    """
    tokens = replace(vocabulary, lenient=False).encode(content)
    if closed:
        tokens, _ = close_sentences(tokens, vocabulary.numbers[SENTENCE])
    starts: Integers | None = None
    if vocabulary.level == "char":
        starts = character_starts(content.decode())
    elif vocabulary.level == "bpe" and vocabulary.byte_lengths is not None:
        starts = np.cumsum(vocabulary.byte_lengths[tokens]) - vocabulary.byte_lengths[tokens]
    elif vocabulary.level == "byte" and len(tokens) == len(content):
        starts = np.arange(len(content))
    return TokenizedText(tokens, starts, len(content))


def character_starts(text: str) -> Integers:
    """Return the first byte of every character in UTF-8."""
    points = code_points(text).astype(np.int64)
    sizes = 1 + (points >= 0x80) + (points >= 0x800) + (points >= 0x10000)
    return np.cumsum(sizes) - sizes


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
        carries: whether a state carried from segment to segment gives the losses of a whole text.
        option: option that named the model, for errors.
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
    carries: bool = True
    option: str = OPTION

    def require(self, condition: bool, allowed: str) -> None:
        """Raise an OptionError that names the model unless `condition` holds."""
        require(condition, self.option, self.path, allowed)


def load_run(path: str, name: str, device: torch.device, clamp_len: int | None, option: str) -> Member:
    """Load a checkpoint of a run to a device.

    Args:
        path: path of the checkpoint.
        name: name in tables and figures.
        device: device of the model.
        clamp_len: larger distances share one position; None for the length of the run's own evaluation.
        option: option that named the checkpoint, for errors.

    Raises:
        OptionError: the checkpoint cannot be read.
    """
    trained = load_trained(path, option=option)
    config, recurrent = trained.config, isinstance(trained.config.model, RecurrentModelConfig)
    own_clamp, lengths = trained_clamp(config), training_lengths(config)
    clamp_len = own_clamp if clamp_len is None or own_clamp is None else clamp_len
    memory = f"memory {config.memory.mem_len}" if config.memory.mem_len else "no recurrence"
    memory += f", beyond={config.beyond['name']}" if config.beyond else ""
    trained.model.to(device)

    def tokenize(content: bytes) -> TokenizedText:
        try:
            return with_vocabulary(trained.vocabulary, content, trained.closed_sentences)
        except UserError as error:
            raise OptionError(option, path, str(error)) from error

    return Member(
        name=name,
        path=path,
        kind=config.model.name if recurrent else f"{config.model.name}, {config.encoding.name}, {memory}",
        checksum=file_checksum(path),
        reader=window_reader(trained.model, lengths.window, clamp_len),
        tokenize=tokenize,
        trained=trained,
        trained_len=lengths.farthest_distance + 1,
        clamp_len=clamp_len,
        option=option,
    )


@contextmanager
def foreign_errors(reference: str, fault: str) -> Iterator[None]:
    """Raise an OptionError with the fault of a model, and the first sentence, instead of an error of foreign code."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:  # foreign code has no common error
        sentence = " ".join(str(error).split()).split(". ")[0] or type(error).__name__
        raise OptionError(OPTION, reference, f"{fault} ({sentence})") from error


def checked(member: Member, text: TokenizedText) -> Member:
    """Return a model from elsewhere as it can be read exactly; a model of a run as it is.

    The first tokens of the text are read in one window, and in halves. If the first half alone has other losses, later
    tokens or the length of a window matter: `one_pass` becomes false, and the losses must not change with the tokens
    after their targets. If the second half has other losses after the state of the first, `carries` becomes false.

    Raises:
        OptionError: the model fails, its losses have another shape, or depend on later tokens.
    """
    n = min(member.reader.visible(TRIED), len(text.tokens) - 1)
    if member.trained is not None or n < 2:
        return member
    model: Any = member.reader.model
    text_T = torch.from_numpy(text.tokens[: n + 1].astype(np.int64)).to(device_of(model))
    middle = n // 2

    def score(tokens_T: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        windows_BT = tokens_T.repeat(2, 1)
        result = model.score(windows_BT[:, :-1], windows_BT[:, 1:], state)
        nll: Any = result[0] if isinstance(result, tuple | list) else None
        shape = [2, len(tokens_T) - 1]
        fits = isinstance(nll, Tensor) and list(nll.shape) == shape
        member.require(fits, f"score must return a tensor of losses of shape {shape} for such targets, and a state")
        return nll[0].float(), result[1]

    with foreign_errors(member.path, f"cannot read {n} tokens"), torch.no_grad():
        whole_T, (half_T, state) = score(text_T)[0], score(text_T[: middle + 1])
        dtype = next((p.dtype for p in getattr(model, "parameters", list)()), torch.float32)
        share = max(ROUNDING, 8 * torch.finfo(dtype).eps)
        deviation = float(whole_T.nan_to_num(posinf=0, neginf=0).std(correction=0))
        close = partial(torch.allclose, rtol=1e-6, atol=1e-6 + share * deviation, equal_nan=True)
        if not close(half_T, whole_T[:middle]):
            other_T, _ = score(torch.cat([text_T[: middle + 1], text_T[: n - middle]]))
            allowed = f"must be a causal language model: losses of {member.kind} depend on later tokens"
            member.require(close(other_T[:middle], whole_T[:middle]), allowed)
            return replace(member, reader=replace(member.reader, one_pass=False), carries=False)
        carries = state is not None and close(score(text_T[middle:], state)[0], whole_T[middle:])
    return replace(member, carries=carries)


class HuggingFaceModel(nn.Module):
    """Language model around a causal model of transformers; its state is the cache of keys and values.

    Where the positions end within a segment, its text begins again, without context.

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
        self.cache = next((name for name in CACHES if name in known), None)
        self.selects = "logits_to_keep" in known

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
        options = {} if self.cache is None else {self.cache: cache, "use_cache": True}
        output = self.model(input_ids=tokens_BT if cache is not None else self._with_begin(tokens_BT), **options)
        nll_BT = _losses(output.logits[:, -targets_BT.shape[1] :], targets_BT)
        cache = None if self.cache is None else getattr(output, self.cache, None)
        return nll_BT, None if cache is None else (cache, n_read + tokens_BT.shape[1])

    def losses_at(self, tokens_BT: Tensor, targets_BC: Tensor, places_C: Tensor) -> Tensor:
        """Return the losses, [B, C], of the targets after the tokens at `places_C` of a text that begins with them."""
        places_C = places_C + (self.begin_of_text is not None)
        options = {"logits_to_keep": places_C} if self.selects else {}
        logits_BCV = self.model(input_ids=self._with_begin(tokens_BT), **options).logits
        return _losses(logits_BCV if self.selects else logits_BCV[:, places_C], targets_BC)

    def _with_begin(self, tokens_BT: Tensor) -> Tensor:
        return nn.functional.pad(tokens_BT, (int(self.begin_of_text is not None), 0), value=self.begin_of_text or 0)


def _losses(logits_BTV: Tensor, targets_BT: Tensor) -> Tensor:
    return nn.functional.cross_entropy(logits_BTV.float().transpose(1, 2), targets_BT, reduction="none")


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
        require((folder / "config.json").is_file(), OPTION, reference, "has no config.json")
        source = str(folder)
    with foreign_errors(reference, "cannot be loaded"):
        tokenizer = transformers.AutoTokenizer.from_pretrained(source, trust_remote_code=False)
        options = {"trust_remote_code": False, "dtype": getattr(torch, dtype), "output_loading_info": True}
        model, loaded = transformers.AutoModelForCausalLM.from_pretrained(source, **options)
        model.eval().requires_grad_(False)
    drawn = sorted({*loaded["missing_keys"]} & {key for key, _ in model.named_parameters()})
    require(not drawn, OPTION, reference, f"has no weights for {', '.join(drawn[:3])}, of {len(drawn)}")
    bos = tokenizer.bos_token_id if begin_of_text else None
    require(not begin_of_text or bos is not None, "begin_of_text", True, f"{reference} has no such token")
    config = model.config.get_text_config()
    limit = getattr(config, "max_position_embeddings", None) or getattr(config, "max_seq_len", None)
    limit = None if limit is None or limit <= 0 else int(limit) - (bos is not None)
    reader = WindowReader(HuggingFaceModel(model, bos, limit), limit=limit, one_pass=True)
    digest = hashlib.sha256(f"{model.config.to_json_string()} {bos}".encode())
    for key, tensor in model.state_dict().items():
        digest.update(f"{key} {tensor.dtype} {list(tensor.shape)}".encode())
        digest.update(tensor.detach().contiguous().flatten().view(torch.uint8).numpy().data)

    def tokenize(content: bytes) -> TokenizedText:
        text, known = _tokenized(tokenizer, content), int(config.vocab_size)
        largest = int(text.tokens.max(initial=0))
        allowed = f"knows {known} tokens, but its tokenizer gives number {largest}"
        require(largest < known, OPTION, reference, allowed)
        return text

    kind = f"{model.config.model_type}, Hugging Face"
    return Member(name, reference, kind, digest.hexdigest(), reader, tokenize, trained_len=limit, begin_of_text=bos)


def _tokenized(tokenizer: Any, content: bytes) -> TokenizedText:
    """Return the tokens of a text without any special token, and the bytes they stand for if that is known.

    Bytes are unknown if the tokens do not give the text back, or the tokenizer has no offsets.
    """
    text = content.decode()
    if tokenizer.is_fast:
        tokenizer.backend_tokenizer.post_processor = None  # adds special tokens, or leaves spaces out of the offsets
    encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=tokenizer.is_fast, verbose=False)
    tokens = np.asarray(encoded["input_ids"], dtype=np.int64)
    lossless = tokenizer.decode(tokens.tolist(), clean_up_tokenization_spaces=False).lstrip() == text.lstrip()
    if not (lossless and tokenizer.is_fast):
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


def load_function(reference: str, name: str) -> Member:
    """Call the function of `py:module.function` and return the language model it returns.

    The model has `score`. It may have `encode(text: bytes)`, which returns token numbers and the bytes of each token
    (both [K]; the bytes sum to the text's), `limit`, the tokens that it can see, and `one_pass`. Without `encode` its
    tokens are bytes. A module is also found in the working directory.

    Raises:
        OptionError: there is no such function, or it returns no language model.
    """
    module_name, _, function_name = reference.removeprefix(FUNCTION).rpartition(".")
    require(module_name.strip(".") == module_name != "", OPTION, reference, "must be py:module.function")
    if str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))
    with foreign_errors(reference, "must be a function without arguments that returns a model"):
        model = getattr(importlib.import_module(module_name), function_name)()
    fits = isinstance(model, LanguageModel) and not isinstance(model, type)
    require(fits, OPTION, reference, f"must return a model with the method score, not {type(model).__name__}")
    limit = getattr(model, "limit", None)
    if isinstance(model, nn.Module):
        model = model.eval().requires_grad_(False)
    reader = WindowReader(model, limit=limit, one_pass=getattr(model, "one_pass", True))

    def tokenize(content: bytes) -> TokenizedText:
        if not hasattr(model, "encode"):
            return TokenizedText(np.frombuffer(content, np.uint8), np.arange(len(content)), len(content))
        tokens, sizes = (np.asarray(numbers, dtype=np.int64) for numbers in model.encode(content))
        fits = tokens.shape == sizes.shape and sizes.sum() == len(content) and sizes.min(initial=0) >= 0
        require(fits, OPTION, reference, "encode must return tokens and their sizes, which sum to the bytes given")
        return TokenizedText(tokens, np.cumsum(sizes) - sizes, len(content))

    return Member(name, reference, type(model).__name__, None, reader, tokenize, trained_len=limit)
