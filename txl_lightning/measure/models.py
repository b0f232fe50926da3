"""Models that `txl recl` compares, and the text that they read.

A `Member` is a checkpoint of a run (txl:), a causal model of Hugging Face (hf:) or the model that a Python function
returns (py:).
"""

from __future__ import annotations

import codecs
import hashlib
import importlib
import inspect
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial, reduce
from glob import glob
from os.path import commonprefix
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from txl_lightning.config.lengths import trained_clamp, training_lengths
from txl_lightning.config.schemas import DataConfig, RecurrentModelConfig, file_data
from txl_lightning.data.corpus import WHOLE, split_bytes
from txl_lightning.data.vocabulary import SENTENCE, Vocabulary, close_sentences, code_points, without_marks
from txl_lightning.errors import OptionError, UserError, notice, require
from txl_lightning.files import file_checksum
from txl_lightning.measure.commands import chosen_device
from txl_lightning.measure.losses import Array, Integers, WindowReader, device_of, read_windows, window_reader
from txl_lightning.measure.options import ReclOptions
from txl_lightning.model.language_model import LanguageModel
from txl_lightning.runs.trained import TrainedModel, checkpoint_corpus, load_trained, report_if_changed

OPTION = "models"
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
        checksum: SHA-256 of the checkpoint; None for a model from elsewhere.
        reader: reader of windows.
        tokenize: returns the tokens of a text; raises OptionError if the model cannot read it.
        trained: contents of the checkpoint; None for a model from elsewhere.
        trained_len: tokens that a token saw in training: segment, extended context and memory; of other models the
            positions; None if unknown.
        clamp_len: larger distances share one position; None for other models than Transformer-XL.
        begin_of_text: token read before every window; None for none.
        option: option that named the model, for errors.
        one_pass_difference: largest difference in nats that `checked` saw; None where it did not compare.
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
    option: str = OPTION
    one_pass_difference: float | None = None

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

    with foreign_errors(member.path, f"cannot read {longest} tokens"), torch.no_grad():
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
        self.window_lengths = [
            int(number) for number in re.findall(r"\d+", model.config.to_json_string(use_diff=False))
        ]
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
    return Member(name, reference, kind, None, reader, tokenize, trained_len=limit, begin_of_text=bos)


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
    for other in tokenizers[1:]:
        if encoded["input_ids"] != other(text, add_special_tokens=False, verbose=False)["input_ids"]:
            notice(
                f"{OPTION}={reference}: tokenizer.json has other tokens than AutoTokenizer: tokenizer=json reads them"
            )
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


def references(options: ReclOptions) -> list[str]:
    """Return the references of all models, `checkpoints` first, a pattern such as `run/step*.ckpt` as its files.

    Raises:
        OptionError: there is none, one is named twice, or a reference has no known prefix.
    """
    for model in options.models:
        known = model.startswith((TRAINED, HUGGING_FACE, FUNCTION))
        require(known, OPTION, model, "must begin with txl:, hf: or py:")
    paths = [file for path in options.checkpoints for file in _files(path)]
    named = [*(f"{TRAINED}{path}" for path in paths), *options.models]
    require(bool(named), "checkpoints", "[]", "must name at least one checkpoint")
    twice = [reference.removeprefix(TRAINED) for reference in named if named.count(reference) > 1]
    require(not twice, "checkpoints" if options.checkpoints else OPTION, twice[:1], "is named twice")
    return named


def _files(path: str) -> list[str]:
    """Return the files of a pattern, with numbers in names in their order; a path without files stays as it is."""
    found = [] if Path(path).is_file() else glob(str(Path(path).expanduser()))
    return sorted(found, key=lambda name: [(len(n), n) for n in re.findall(r"\d+|\D+", name)]) or [path]


def load_group(options: ReclOptions) -> list[Member]:
    """Load all models, in evaluation mode, on the chosen device.

    Args:
        options: options of the command.

    Raises:
        OptionError: a model is not usable.
    """
    named, device = references(options), chosen_device(options.accelerator)
    members = []
    for reference, name in zip(named, options.names or model_names(named), strict=True):
        if reference.startswith(TRAINED):
            option = OPTION if reference in options.models else "checkpoints"
            member = load_run(reference.removeprefix(TRAINED), name, device, options.clamp_len, option)
        elif reference.startswith(HUGGING_FACE):
            member = load_huggingface(reference, name, options.begin_of_text, options.tokenizer)
        else:
            member = load_function(reference, name)
        if hasattr(member.reader.model, "to"):
            member.reader.model.to(device)
        members.append(member)
    return members


def model_names(named: Sequence[str]) -> list[str]:
    """Return the shortest distinct names: `txl:ours/checkpoints/best.ckpt` is `ours`, or `ours/best`; `hf:a/b` is `b`.

    The references themselves if some names are still equal.
    """
    paths = [Path(one.removeprefix(TRAINED)).resolve().with_suffix("") for one in named if one.startswith(TRAINED)]
    parts = [[part for part in path.parts[1:] if part != "checkpoints"] for path in paths]
    tries = [(start, stop) for start in range(-2, -max(map(len, parts), default=1) - 1, -1) for stop in (-1, None)]
    of_runs = (["/".join(of_path[slice(*ends)]) for of_path in parts] for ends in tries)
    short = iter(next((names for names in of_runs if all(names) and len({*names}) == len(names)), map(str, paths)))
    names = [next(short) if one.startswith(TRAINED) else one.rstrip("/").split(":")[-1].split("/")[-1] for one in named]
    return names if len({*names}) == len(names) else list(named)


@dataclass(frozen=True)
class GroupText:
    """Text of a group.

    Args:
        corpus: entry `corpus` of `recl.json`: `name`, `sha256` (of the corpus or of the text), and `level`: byte, char,
            word or token; losses are per unit of it.
        of_member: tokens of the text, by name of the model.
        pieces: bounds 0 … n of the pieces of text that models are compared on, in bytes: those at which no tokenizer
            has a token that goes on. None if all have the same tokens.
    """

    corpus: dict[str, str]
    of_member: dict[str, TokenizedText]
    pieces: Integers | None = None

    @property
    def length(self) -> int:
        """Number of positions: bytes with `pieces`, tokens without."""
        first = next(iter(self.of_member.values()))
        return len(first.tokens) if self.pieces is None else first.n_bytes


def group_text(members: Sequence[Member], options: ReclOptions, split: str) -> GroupText:
    """Load a split of the text of all members, and its tokens.

    Checkpoints bring their corpus. Without any, or with `data_path`, it is that file.

    Raises:
        UserError: the text cannot be loaded, the members have different corpora, or they have different tokenizers or
            tokens and contexts are not counted in bytes.
    """
    by_bytes = options.context_unit == "byte"
    if not by_bytes and all(member.trained for member in members):
        return _encoded_corpus(members, options, split)
    for member in members:
        config = None if member.trained is None else member.trained.config
        resets, ids = config and config.memory.reset == "document", config and config.data.level == "ids"
        allowed = f"was trained with {'memory.reset=document' if resets else 'data.level=ids'}: "
        member.require(not (resets or ids), f"{allowed}it can be compared by tokens alone, and with checkpoints alone")
    name, content = _content(members, options.data_path, split)
    corpus = {"name": name, "sha256": hashlib.sha256(content).hexdigest()}
    of_member = {member.name: member.tokenize(content) for member in members}
    texts = list(of_member.values())
    for member, text in zip(members, texts, strict=True):
        if by_bytes:
            allowed = "cannot be compared in bytes: its tokens do not give back every byte of the text"
            member.require(text.starts is not None, allowed)
        else:
            known = text.starts is not None and texts[0].starts is not None
            name_of = "known_starts" if known else "tokens"  # token numbers may differ where bytes are known
            same = np.array_equal(getattr(text, name_of), getattr(texts[0], name_of))
            allowed = f"has another tokenizer than {members[0].path}: compare them with context_unit=byte"
            member.require(same, allowed)
    if by_bytes:
        pieces = np.append(reduce(np.intersect1d, [text.known_starts for text in texts]), len(content))
        return GroupText({**corpus, "level": "byte"}, of_member, pieces)
    single_bytes = all(len(text.tokens) == text.n_bytes for text in texts)
    levels = [member.trained.vocabulary.level for member in members if member.trained]
    return GroupText({**corpus, "level": [*levels, "byte" if single_bytes else "token"][0]}, of_member)


def _encoded_corpus(members: Sequence[Member], options: ReclOptions, split: str) -> GroupText:
    """Load the corpus of all members, which are of runs, or the text `data_path`, as each member reads it.

    For a member with `memory.reset=document` the first token of every document is marked. The others get the places
    where documents begin: those of a marked text, or those that the corpus has. With `documents=ignore` neither is so.
    """
    respects, path = options.documents == "respect", members[0].path
    runs = [(member, member.trained) for member in members if member.trained is not None]
    corpora = [
        checkpoint_corpus(run, member.path, options.data_path, member.option, split == WHOLE) for member, run in runs
    ]
    first, of_member = corpora[0], {}
    documents = np.asarray(max((corpus.documents[split] for corpus in corpora), key=len))
    for (member, run), corpus in zip(runs, corpora, strict=True):
        level, level_of_first = corpus.vocabulary.level, first.vocabulary.level
        allowed = f"reads {level} tokens, {path} {level_of_first} tokens: use context_unit=byte"
        member.require(level == level_of_first, allowed)
        allowed = f"was trained on another corpus ({corpus.name}) than {path} ({first.name})"
        member.require(corpus.checksum == first.checksum, allowed)
        plain = without_marks(corpus.splits[split])
        same = corpus.vocabulary == first.vocabulary and np.array_equal(plain, without_marks(first.splits[split]))
        allowed = f"reads other tokens than {path}: their vocabularies, the starts of documents (data.document_start) "
        member.require(same, f"{allowed}or the marks of sentences (data.sentence_marks) differ")
        marked = run.config.memory.reset == "document"
        own = plain if marked and not respects else corpus.splits[split]
        hides = respects and not marked and len(documents) > 1
        of_member[member.name] = TokenizedText(own, None, len(own), documents if hides else None)
    return GroupText(first.facts(), of_member)


def _content(members: Sequence[Member], path: Any, split: str) -> tuple[str, bytes]:
    """Return the name and the bytes of the text; of UTF-8 text without a character that is cut at either end."""
    runs = [(member, member.trained) for member in members if member.trained]
    configs = [run.config.data for _, run in runs]
    require(bool(configs) or path is not None, "data_path", path, "must be a text file: no checkpoint brings a corpus")
    if path is not None:
        configs = [file_data(configs[0] if configs else DataConfig(), path, "byte")]
    try:
        texts = [split_bytes(config, split) for config in configs]
    except OptionError as error:
        if path is None:
            raise UserError(f"{error}; if this corpus has moved, give data_path=") from error
        raise OptionError("data_path", path, error.allowed) from error
    name, _, content = texts[0]
    if path is None:
        for (member, run), (other_name, checksum, other) in zip(runs, texts, strict=True):
            report_if_changed(run, f"{member.option}={member.path}", other_name, checksum)
            allowed = f"was trained on another corpus ({other_name}) than {runs[0][0].path} ({name})"
            member.require(other == content, allowed)
    try:
        content = whole_characters(content).encode()
    except UserError as error:
        if any(member.path.startswith(HUGGING_FACE) for member in members):
            raise OptionError("data_path" if path else OPTION, path or name, str(error)) from error
    return name, content


def whole_characters(content: bytes) -> str:
    """Return UTF-8 text without a character that is cut at either end.

    Raises:
        UserError: the bytes are not UTF-8.
    """
    first = next((i for i, byte in enumerate(content[:4]) if byte & 0xC0 != 0x80), 0)
    try:
        return codecs.getincrementaldecoder("utf-8")().decode(content[first:])
    except UnicodeDecodeError as error:
        raise UserError(f"is not UTF-8 text (byte {first + error.start})") from error
