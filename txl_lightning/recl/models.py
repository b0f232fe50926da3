"""Models that `txl recl` compares, and their tokens of a text.

A `Member` is a checkpoint of a run (txl:), a causal model of Hugging Face (hf:) or the model that a Python function
returns (py:).
"""

from __future__ import annotations

import importlib
import inspect
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from os.path import commonprefix
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from txl_lightning.config.lengths import tokens_per_step, trained_clamp, training_lengths
from txl_lightning.config.schemas import RecurrentModelConfig
from txl_lightning.data.vocabulary import (
    SENTENCE,
    StreamDecoder,
    Vocabulary,
    close_sentences,
    code_points,
    without_marks,
)
from txl_lightning.errors import OptionError, UserError, notice, require
from txl_lightning.evaluation.losses import Array, Integers, WindowReader, device_of, read_windows, window_reader
from txl_lightning.files import file_checksum
from txl_lightning.model.language_model import LanguageModel
from txl_lightning.runs.trained import TrainedModel, load_trained

OPTION = "models"
FACTS = ("checkpoint", "sha256", "kind", "begin_of_text", "one_pass_difference", "clamp_len", "trained_len")
TRAINED, HUGGING_FACE, FUNCTION = "txl:", "hf:", "py:"
CHECK_SHARE, MOST_BEGINS = 0.02, 8
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
    if vocabulary.byte_lengths is None or (sizes := vocabulary.byte_lengths[tokens]).sum() != len(content):
        return TokenizedText(tokens, None, len(content))
    return TokenizedText(tokens, np.cumsum(sizes) - sizes, len(content))


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
        checkpoint: path of the checkpoint, or the reference `hf:NAME` or `py:module.function`.
        kind: size, encoding and recurrence, in words.
        sha256: SHA-256 of the checkpoint; None for a model from elsewhere.
        reader: reader of windows.
        tokenize: returns the tokens of a text; raises OptionError if the model cannot read it.
        trained: contents of the checkpoint; None for a model from elsewhere.
        trained_len: tokens that a token saw in training: segment, extended context and memory, which that of
            `window_reader` leaves out; of other models the positions; None if unknown.
        clamp_len: larger distances share one position; None for other models than Transformer-XL.
        begin_of_text: token read before every window; None for none.
        option: option that named the model, for errors.
        spell: returns the text of each token, where the bytes of tokens are unknown.
        one_pass_difference: largest difference in nats that `checked` saw; None where it did not compare.
    """

    name: str
    checkpoint: str
    kind: str
    sha256: str | None
    reader: WindowReader
    tokenize: Callable[[bytes], TokenizedText]
    trained: TrainedModel | None = None
    trained_len: int | None = None
    clamp_len: int | None = None
    begin_of_text: int | None = None
    option: str = OPTION
    spell: Callable[[np.ndarray], list[str]] = lambda tokens: [str(token) for token in tokens]
    one_pass_difference: float | None = None

    def require(self, condition: bool, allowed: str) -> None:
        """Raise an OptionError that names the model unless `condition` holds."""
        require(condition, self.option, self.checkpoint, allowed)

    def facts(self) -> dict[str, Any]:
        """Return what `recl.json` says about the model itself."""
        run, reader, facts = self.trained, self.reader, {name: getattr(self, name) for name in FACTS}
        facts |= {"scoring": "one pass" if reader.one_pass else "direct", "limit": reader.limit}
        tokens = run.step * tokens_per_step(run.config) if run else None
        return {**facts, "step": run.step if run else None, "tokens_trained": tokens}


def load_run(path: str, name: str, clamp_len: int | None, option: str) -> Member:
    """Load a checkpoint of a run.

    Args:
        path: path of the checkpoint.
        name: name in tables and figures.
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
    memory += f", variant={config.variant['name']}" if config.variant else ""

    def tokenize(content: bytes) -> TokenizedText:
        try:
            return with_vocabulary(trained.vocabulary, content, trained.closed_sentences)
        except UserError as error:
            raise OptionError(option, path, str(error)) from error

    kind = config.model.name if recurrent else f"{config.model.name}, {config.encoding.name}, {memory}"
    reader = window_reader(trained.model, lengths.window, clamp_len)
    about: dict[str, Any] = {"trained": trained, "trained_len": lengths.farthest_distance + 1, "clamp_len": clamp_len}
    about["spell"] = lambda tokens: [*map(StreamDecoder(trained.vocabulary).feed, without_marks(tokens)[:, None])]
    return Member(name, path, kind, file_checksum(path), reader, tokenize, option=option, **about)


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


def checked(member: Member, text: TokenizedText, contexts: Sequence[int], n_positions: int) -> Member:
    """Return a model from elsewhere as it can be read exactly; a model of a run as it is.

    One pass must give the losses of fresh windows of exactly c tokens: at the shortest, a middle and the longest
    context, and around every length between them in `window_lengths` of the model, of Hugging Face the integers of the
    config. Otherwise `one_pass` becomes false, and the losses must not change with the tokens after their targets.

    Args:
        member: the model.
        text: the text, longer than the longest context.
        contexts: grid of contexts, in tokens of the model.
        n_positions: P of the grid. The check reads at most 2 % of its tokens, but two windows of each length.

    Raises:
        OptionError: the model fails, its losses have another shape, or depend on later tokens.
    """
    if member.trained is not None:
        return member
    model: Any = member.reader.model
    seen = np.unique([min(member.reader.visible(context), len(text.tokens) - 1) for context in contexts])
    around = np.add.outer(getattr(model, "window_lengths", []), [-1, 0, 1]).ravel()
    between = around[(around > seen[0]) & (around < seen[-1])]
    tried_C = np.union1d(seen[[0, len(seen) // 2, -1]], between).astype(np.int64)
    longest, middle = int(seen[-1]), int(tried_C[len(tried_C) // 2])
    n_begins = int(np.clip(CHECK_SHARE * n_positions * longest / (longest + tried_C.sum()), 2, MOST_BEGINS))
    begins_N = np.repeat(np.linspace(0, len(text.tokens) - 1 - longest, n_begins, dtype=np.int64), len(tried_C))
    targets_N = begins_N + np.tile(tried_C, n_begins)

    def losses(tokens: np.ndarray, one_pass: bool) -> Array:
        reader = replace(member.reader, one_pass=one_pass)
        return np.nan_to_num(read_windows(reader, tokens, begins_N, targets_N, targets_N), posinf=0, neginf=0)

    with foreign_errors(member.checkpoint, f"cannot read {longest} tokens"), torch.no_grad():
        windows_BT = torch.from_numpy(text.tokens[: seen[0] + 1].astype(np.int64)).to(device_of(model)).repeat(2, 1)
        result, shape = model.score(windows_BT[:, :-1], windows_BT[:, 1:], None), [2, int(seen[0])]
        nll: Any = result[0] if isinstance(result, tuple | list) else None
        fits = isinstance(nll, Tensor) and list(nll.shape) == shape
        member.require(fits, f"score must return a tensor of losses of shape {shape} for such targets, and a state")
        if not member.reader.one_pass:
            return member
        own_N, whole_N = losses(text.tokens, False), losses(text.tokens, True)
        member = replace(member, one_pass_difference=float(abs(own_N - whole_N).max()))
        close = partial(np.allclose, rtol=1e-6, atol=1e-6 + ROUNDING * own_N.std())
        if close(whole_N, own_N):
            return member
        other_N = losses(np.append(text.tokens[: middle + 1], text.tokens[:middle:-1]), True)
    before = targets_N <= middle
    allowed = f"must be a causal language model: losses of {member.kind} depend on later tokens"
    member.require(close(other_N[before], whole_N[before]), allowed)
    return replace(member, reader=replace(member.reader, one_pass=False))


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
