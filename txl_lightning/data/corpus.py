"""Load a corpus: memory-mapped tokens for three splits, and its vocabulary; encoded once and cached."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import numpy as np

from txl_lightning.config.schemas import DataConfig, FileData
from txl_lightning.data import files, installed, published_corpora, recall  # noqa: F401 - register their corpora
from txl_lightning.data.cache import Description, cached, checksum_once
from txl_lightning.data.ids import vocabulary_of_ids
from txl_lightning.data.sources import (
    ALIGNMENT,
    CORPORA,
    LEVELS_OF,
    SPLITS,  # noqa: F401 - others import it from here
    WHOLE,
    Alignment,
    Part,
    Source,
    chunks,
    place_of_bad_byte,
    read,
)
from txl_lightning.data.subwords import N_BYTES, Positions, train_byte_pairs
from txl_lightning.data.vocabulary import Vocabulary
from txl_lightning.errors import OptionError, UserError, notice, require
from txl_lightning.files import not_special

LEVELS_OF_OPTIONS = {
    "vocab_size": ("bpe", "ids"),
    "min_count": ("word", "char"),
    "tokenizer": ("bpe",),
    "dtype": ("ids",),
    "names": ("ids",),
}
# Files that other libraries read, and what converts them.
CONVERSIONS = {
    ".model": "AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER) of transformers writes tokenizer.json",
    ".tiktoken": "TikTokenConverter(FILE).converted().save('tokenizer.json') of transformers.convert_slow_tokenizer",
}

NEWLINE = ord("\n")
MOST_SUBWORDS = 2048  # that are trained, unless data.vocab_size is given

Pattern = re.Pattern[bytes]
FindStarts = Callable[[np.ndarray], Positions]


@dataclass(frozen=True)
class Corpus:
    """Three splits as tokens.

    Args:
        name: as reports show it.
        splits: token numbers by split, memory-mapped. A marked token that begins a document is -1 - its number.
        vocabulary: the tokens' symbols.
        checksum: SHA-256 over the SHA-256 of every file that was read, and over the positions of the splits.
        cutoffs: usual cut-offs for this vocabulary's adaptive embedding and softmax; empty for none.
        documents: every document's first token by split, ascending from 0, memory-mapped; lm1b's sentences, and 0 alone
            if it is not known where documents start.
        unknown: share of `<unk>` tokens by split; empty without such a token.
    """

    name: str
    splits: dict[str, Any]
    vocabulary: Vocabulary
    checksum: str
    cutoffs: tuple[int, ...] = ()
    documents: dict[str, np.ndarray] = field(default_factory=dict)
    unknown: dict[str, float] = field(default_factory=dict)

    @property
    def sentences(self) -> dict[str, np.ndarray]:
        """The `documents` in a corpus of unordered sentences (lm1b), each beginning with `<S>`; empty otherwise."""
        return self.documents if self.vocabulary.starts_sentences else {}

    def facts(self) -> dict[str, Any]:
        """Return what results say about their corpus: name, level, checksum; how subwords are read, `<unk>` shares."""
        level = self.vocabulary.level
        facts: dict[str, Any] = {"name": self.name, "level": level, "sha256": self.checksum}
        if level == "bpe":
            facts["by_line"] = False  # as before 0.5.0
        if level == "word" or any(self.unknown.values()):
            facts["unknown"] = self.unknown
        return facts

    def unknown_share(self, split: str) -> str:
        """Return the share and number of `<unk>` in a split, worded to follow its name; empty if there is none."""
        share = self.unknown.get(split)
        if not share:
            return ""
        n_unknown = round(share * len(self.splits[split]))
        return f" with {share:.1%} <unk> ({n_unknown:,})"


def load_corpus(
    config: DataConfig,
    vocabulary: Vocabulary | None = None,
    marked: bool = False,
    whole: bool = False,
) -> Corpus:
    """Load the corpus that `config` names; download, split, encode, check and cache it on first use.

    Args:
        config: group `data`.
        vocabulary: encode the text with this one instead of the corpus's. An out-of-vocabulary word becomes `<unk>`. A
            missing character or byte is an error even if there is an `<unk>`: it was never trained. A lenient
            vocabulary accepts it.
        marked: mark each document's first token, for `memory.reset=document`. Documents are lm1b's sentences; elsewhere
            they begin with every file, every record and every line that `data.document_start` matches.
        whole: the text is one split, `WHOLE`.

    Raises:
        OptionError: the corpus or level is unknown, or `data.path` or `data.document_start` cannot be used.
        UserError: a file is missing, empty or damaged, the text is not UTF-8, `vocabulary` lacks a symbol, or
            the sizes are not the published ones.
    """
    for name, levels in LEVELS_OF_OPTIONS.items():
        value = getattr(config, name, None)
        require(
            value is None or config.level in levels,
            f"data.{name}",
            value,
            f"is for data.level={' or '.join(levels)}, not {config.level}",
        )
    source, checksum = corpus_source(config, whole)
    require(
        config.min_count in (None, 1) or not source.published,
        "data.min_count",
        config.min_count,
        f"must be null or 1 for data={config.name}, whose vocabulary is published",
    )
    try:
        if config.level == "ids":
            of_file = cast("FileData", config)
            vocabulary = vocabulary_of_ids(of_file, source, checksum, vocabulary)
        elif config.level == "bpe" and vocabulary is None:
            vocabulary = _tokenizer(config, source, checksum)
        return _encoded_corpus(config, source, checksum, vocabulary, marked)
    except UnicodeDecodeError as error:
        place = place_of_bad_byte(source.parts)
        convert = "convert it (iconv -f ENCODING -t UTF-8 FILE); you must know its encoding"
        reason = f"not UTF-8 text, {place}: {convert}, or read its bytes (data.level=byte)"
        raise UserError(f"{source.name}: {reason}") from error
    except OptionError:
        raise
    except UserError as error:
        raise UserError(f"{source.name}: {error}") from error


def _encoded_corpus(
    config: DataConfig, source: Source, checksum: str, given: Vocabulary | None, marked: bool
) -> Corpus:
    """Encode a corpus with a vocabulary, or one that is made from its text, and cache the tokens."""
    is_closed = getattr(config, "sentence_marks", "start") == "both"
    made_by = (source.name, config.level, config.min_count, source.published)
    inputs = (checksum, given or made_by, is_closed, marked and [config.document_start])

    def prepare(folder: Path) -> Description:
        vocabulary = given
        if vocabulary is None:
            vocabulary = source.vocabulary(
                read(
                    source.parts["train"],
                    ALIGNMENT[config.level],
                )
            )
        is_lenient = vocabulary.lenient if given else vocabulary.unknown >= 0
        encoder = replace(vocabulary, lenient=is_lenient, closed=is_closed)
        find_starts = None
        if marked and config.document_start is not None:
            find_starts = _finder(config.document_start, encoder)
        counts = {"vocabulary": len(vocabulary)}
        unknown = {}
        for split, parts in source.parts.items():
            documents = read_documents(parts, ALIGNMENT[encoder.level], find_starts)
            counts[split], n_unknown = _write_split(
                encoder,
                documents,
                folder / split,
                marked,
            )
            if encoder.unknown >= 0:
                unknown[split] = n_unknown / counts[split]
        for name, published in source.published.items():
            if given is None and counts[name] != published:
                differs = f"{counts[name]:,} ({name}) where {published:,} are published"
                raise UserError(f"it has {differs}: the file is another text, or incomplete")
        return {"vocabulary": vocabulary.state_dict(), "unknown": unknown}

    _, arrays, description = cached(config.cache_dir, inputs, prepare)
    used = Vocabulary.from_state_dict(description["vocabulary"])
    return Corpus(
        source.name,
        {split: arrays[split] for split in source.parts},
        used,
        checksum,
        source.cutoffs
        if len(used)
        > max(
            source.cutoffs,
            default=0,
        )
        else (),
        {split: arrays[f"{split}.starts"] for split in source.parts},
        description["unknown"],
    )


def split_bytes(config: DataConfig, split: str) -> tuple[str, str, bytes]:
    """Return name and checksum of the corpus that `config` names, and a split's text before encoding.

    Raises:
        OptionError: the corpus or level is unknown, or `data.path` cannot be used.
        UserError: a file is missing or damaged.
    """
    source, checksum = corpus_source(config, split == WHOLE)
    return source.name, checksum, b"".join(read(source.parts[split]))


def corpus_source(config: DataConfig, whole: bool = False) -> tuple[Source, str]:
    """Return a corpus's source and its checksum. It depends on contents, not on file names or times.

    With `whole` all the user's files are the split `WHOLE`.

    Raises:
        OptionError: an option in `config` is not allowed.
    """
    source_of = CORPORA.named(config.name)
    levels = LEVELS_OF[config.name]
    require(
        config.level in levels,
        "data.level",
        config.level,
        f"must be {' or '.join(levels)} for data={config.name}",
    )
    try:
        source = (
            files.file(
                cast("FileData", config),
                whole,
            )
            if whole
            else source_of(config)
        )
        checksum = _checksum(source, config.cache_dir)
    except OSError as error:
        raise UserError(f"{error.filename}: cannot be read ({error.strerror})") from error
    if source.checksum not in (None, checksum):
        reason = f"{source.name} is not the published text; losses of others cannot be compared"
        notice(f"data={config.name}: {reason}")
        source = replace(source, name=f"{source.name}, changed")
    return source, checksum


def _checksum(source: Source, cache_dir: str) -> str:
    digest = hashlib.sha256()
    for name, parts in source.parts.items():
        for part in parts:
            checksum = checksum_once(cache_dir, part.origin or part.path)
            place = [name, checksum, part.start, part.stop, part.alignment, part.format]
            if len(part.starts) > 0:
                place += [part.offset, hashlib.sha256(part.starts.tobytes()).hexdigest()]
            digest.update(repr(tuple(place)).encode())
    return digest.hexdigest()


def _tokenizer(config: DataConfig, source: Source, checksum: str) -> Vocabulary:
    """Read `data.tokenizer`, or train `data.vocab_size` tokens on the training split and cache the tokenizer.

    Raises:
        OptionError: the file is not a byte tokenizer, or the training split is too short for so many tokens.
    """
    size = config.vocab_size
    file = config.tokenizer
    if file is not None:
        require(
            size is None, "data.vocab_size", size, "must not be given together with data.tokenizer"
        )
        conversion = CONVERSIONS.get(Path(file).suffix)
        allowed = f"must be a tokenizer.json: {conversion}"
        require(conversion is None, "data.tokenizer", file, allowed)
        try:
            return Vocabulary.of_tokenizer(not_special(file).read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, UserError) as error:
            raise OptionError("data.tokenizer", file, f"cannot be read: {error}") from error

    def train(_: Path) -> Description:
        texts = map(bytes.decode, read(source.parts["train"], "char"))
        most = size or MOST_SUBWORDS
        return {"tokenizer": train_byte_pairs(texts, most, least=size or N_BYTES)}

    prepared = cached(config.cache_dir, (checksum, "byte pairs", size), train)
    return Vocabulary.of_tokenizer(prepared.description["tokenizer"])


def read_documents(
    parts: Iterable[Part], unit: Alignment, find_starts: FindStarts | None = None
) -> Iterator[list[Any]]:
    """Yield text or ids in chunks, divided where documents begin (see `Vocabulary.encode_documents`).

    A document begins with every part, where a part says so, and where `find_starts` finds one.

    Raises:
        UserError: a file cannot be read.
    """
    for number, part in enumerate(parts):
        content, starts = part.open()
        if find_starts is not None:
            starts = np.union1d(starts, find_starts(content))
        if number > 0:
            starts = np.append(0, starts)  # the first piece continues the part before
        at = 0
        for array in chunks(content, unit):
            chunk: Any = array
            if part.format == "plain":
                chunk = array.tobytes()
            first, last = np.searchsorted(
                starts,
                [at, at + len(chunk)],
            )
            cuts = [0, *(starts[first:last] - at).tolist(), len(chunk)]
            yield [chunk[start:stop] for start, stop in pairwise(cuts)]
            at += len(chunk)


def _finder(document_start: str, encoder: Vocabulary) -> FindStarts:
    """Return what finds the documents of a pattern in a part; `^` and `$` are the ends of lines.

    They begin with every line in which a match begins, and at level ids with every id whose number or name is a match.

    Raises:
        OptionError: it is not a regular expression.
    """
    try:
        pattern = re.compile(document_start.encode(), re.MULTILINE)
    except re.error as error:
        allowed = f"must be a regular expression ({error})"
        raise OptionError("data.document_start", document_start, allowed) from error
    if encoder.level != "ids":
        return partial(_lines_with_match, pattern)
    ids = []
    for number, name in enumerate(encoder.symbols):
        if pattern.fullmatch(name.encode()) or pattern.fullmatch(b"%d" % number):
            ids.append(number)
    return lambda content: np.flatnonzero(np.isin(content, ids))


def _lines_with_match(pattern: Pattern, content: np.ndarray) -> Positions:
    lines = np.append(
        0,
        1 + np.flatnonzero(content == NEWLINE),
    )
    matches = [match.start() for match in pattern.finditer(content)]  # type: ignore[call-overload]
    return lines[np.searchsorted(lines, matches, side="right") - 1]


def _write_split(
    encoder: Vocabulary, documents: Iterable[list[Any]], path: Path, marked: bool
) -> tuple[int, int]:
    """Write a split's tokens and the positions where documents begin; count tokens and `<unk>`."""
    dtype = np.dtype(np.int32) if marked else encoder.dtype
    file = path.with_name(f"{path.name}.{dtype.name}")
    starts = [np.zeros(1, np.int64)]
    n_tokens = 0
    n_unknown = 0
    with file.open("xb") as stored:
        for tokens, begins in encoder.encode_documents(documents):
            starts.append(n_tokens + begins)
            stored.write(tokens.astype(dtype).tobytes())
            n_tokens += len(tokens)
            n_unknown += int(np.count_nonzero(tokens == encoder.unknown))  # -1 never occurs
    if n_tokens == 0:
        reason = "it is too short"
        if encoder.level == "word":
            reason = "cuts are at the ends of lines, and it has too few: use data.level=bpe or char"
        raise UserError(f"the {path.name} split is empty: {reason}")
    positions = np.unique(np.concatenate(starts))  # empty documents begin with the next one
    positions = positions[positions < n_tokens]
    positions.tofile(path.with_name(f"{path.name}.starts.int64"))
    if marked:
        written = np.memmap(file, dtype, mode="r+")
        written[positions] = ~written[positions]
        written.flush()
    return n_tokens, n_unknown
