"""Load a corpus: memory-mapped tokens of its three splits, and its vocabulary."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from txl_lightning.config.schemas import DataConfig
from txl_lightning.data import benchmarks, sources
from txl_lightning.data.byte_pairs import N_BYTES, train_byte_pairs
from txl_lightning.data.cache import array_writer, cache_key, cached
from txl_lightning.data.documents import Pattern, close_sentences, mark, split_documents, start_pattern
from txl_lightning.data.reading import Part, fingerprint, read, unpacked
from txl_lightning.data.sources import SPLITS, Source, Split
from txl_lightning.data.vocabulary import SENTENCE, Vocabulary
from txl_lightning.errors import OptionError, UserError, require

__all__ = ["CORPORA", "SPLITS", "Corpus", "Split", "load_corpus", "split_bytes"]

BPE_VOCAB_SIZE = 8192  # unless `data.vocab_size` is given

CORPORA: dict[str, Callable[[DataConfig], Source]] = {
    "python-stdlib": sources.python_stdlib,
    "file": sources.file,
    "enwik8": benchmarks.enwik8,
    "text8": benchmarks.text8,
    "wikitext-103": benchmarks.wikitext,
    "wikitext-2": benchmarks.wikitext,
    "lm1b": benchmarks.lm1b,
    "ptb": benchmarks.ptb,
    "wikipedia-2015": benchmarks.wikipedia_2015,
}


@dataclass(frozen=True)
class Corpus:
    """Encoded tokens of three splits.

    Args:
        name: as reports show it.
        splits: token numbers by split, memory-mapped.
        vocabulary: symbols of the tokens.
        checksum: SHA-256 over the SHA-256 of all files that were read, and over the positions of the splits.
        cutoffs: usual cut-offs of the adaptive embedding and softmax for this vocabulary; empty for none.
        sentences: position of every sentence's first token (`<S>`) by split, memory-mapped; empty unless the
            corpus is a list of unordered sentences (lm1b).
        documents: position of every document's first token by split, ascending from 0, memory-mapped; empty if it is
            not known where documents start.
    """

    name: str
    splits: dict[str, np.ndarray]
    vocabulary: Vocabulary
    checksum: str
    cutoffs: tuple[int, ...] = ()
    sentences: dict[str, np.ndarray] = field(default_factory=dict)
    documents: dict[str, np.ndarray] = field(default_factory=dict)


def load_corpus(config: DataConfig, vocabulary: Vocabulary | None = None, marked: bool = False) -> Corpus:
    """Load the corpus that `config` names; download, split, encode, check and cache it on first use.

    Args:
        config: group `data`.
        vocabulary: encode the text with this one instead of the corpus' own. A word missing from it becomes
            `<unk>`. A missing character or byte is an error even if there is an `<unk>`, which was never trained.
        marked: mark the first token of every document, for `memory.reset=document`. Documents are the sentences of
            lm1b; elsewhere they begin with every file and every line that `data.document_start` matches.

    Raises:
        OptionError: the corpus or level is unknown, or `data.path` or `data.document_start` cannot be used.
        UserError: a file is missing, empty or damaged, the text is not UTF-8, `vocabulary` lacks a symbol, or
            the sizes are not the published ones.
    """
    source, checksum = _source(config)
    directory = Path(config.cache_dir).expanduser()
    check_tokenizer_options(config)
    if vocabulary is None and config.level == "bpe":
        vocabulary = tokenizer_vocabulary(config, source, checksum)
    key = cache_key(checksum, source.recipe, source.published)
    if vocabulary is not None:
        sentences = " of sentences" if source.documents and vocabulary.starts_sentences else ""
        key = cache_key(checksum, f"given vocabulary{sentences}{source.marks}", vocabulary)
    prepare = partial(_prepare, source, vocabulary)
    if marked:
        prepare = partial(prepare, marked=True, pattern=start_pattern(config.document_start))
        key = cache_key(key, "marked", config.document_start)
    try:
        arrays, description = cached(directory, key, prepare)
    except UserError as error:
        raise UserError(f"{source.name}: {error}") from error
    vocabulary = Vocabulary.from_state_dict(description["vocabulary"])
    large = bool(source.cutoffs) and len(vocabulary) > source.cutoffs[-1]
    starts: dict[str, np.ndarray] = {split: arrays[f"{split}.starts"] for split in SPLITS}
    return Corpus(
        name=source.name,
        splits={split: arrays[split] for split in SPLITS},
        vocabulary=vocabulary,
        checksum=checksum,
        cutoffs=source.cutoffs if large else (),
        sentences=starts if vocabulary.starts_sentences else {},
        documents=starts if (source.documents or marked) and not vocabulary.starts_sentences else {},
    )


def split_bytes(config: DataConfig, split: str) -> tuple[str, str, bytes]:
    """Return name and checksum of the corpus that `config` names, and the text of a split as it is before encoding.

    Raises:
        OptionError: the corpus or level is unknown, or `data.path` cannot be used.
        UserError: a file is missing or damaged.
    """
    source, checksum = _source(config)
    with tempfile.TemporaryDirectory() as folder:
        (parts,) = (parts for name, parts in source.parts.items() if name == split)
        return source.name, checksum, b"".join(read(unpacked(parts, Path(folder))))


def _source(config: DataConfig) -> tuple[Source, str]:
    """Return the source of a corpus and its checksum, which depends on contents, not on names or times of files."""
    require(config.name in CORPORA, "data", config.name, f"must be one of {', '.join(CORPORA)}")
    source, known = CORPORA[config.name](config), Path(config.cache_dir).expanduser() / "fingerprints"
    digest = hashlib.sha256()
    listed = [source.vocabulary_file[0]] if source.vocabulary_file else []
    for name, parts in [*source.parts.items(), ("vocabulary", listed)]:
        for part in parts:
            cuts = (name, fingerprint(part.path, known), part.start, part.stop, part.alignment, part.format)
            digest.update(repr(cuts).encode())
    return source, digest.hexdigest()


def _prepare(
    source: Source, given: Vocabulary | None, folder: Path, marked: bool = False, pattern: Pattern | None = None
) -> dict[str, Any]:
    """Write the tokens of every split into `folder`, chunk by chunk, and return the description."""
    parts = {split: unpacked(source.parts[split], folder) for split in SPLITS}
    if given is not None:
        vocabulary = given
    elif source.vocabulary_file:
        file, words_of = source.vocabulary_file
        vocabulary = words_of(file)
    else:
        vocabulary = source.vocabulary(read(parts["train"]))
    encoder = vocabulary if given is None else vocabulary.of_known_characters()
    apart = (source.documents or marked) and not encoder.starts_sentences
    counts: dict[str, int] = {}
    for split in SPLITS:
        documents = split_documents(parts[split], pattern) if apart else [read(parts[split])]
        counts[split] = _write_split(encoder, documents, folder, split, source.closed_sentences, marked)
        if not counts[split]:
            raise UserError(f"the {split} split is empty")
    if source.published and given is None:
        source.published.check(len(vocabulary), counts)
    for path in folder.glob("*.unpacked"):
        path.unlink()
    return {"vocabulary": vocabulary.state_dict(), "tokens": counts}


def _write_split(
    vocabulary: Vocabulary, documents: Iterable[Iterable[bytes]], folder: Path, split: str, closed: bool, marked: bool
) -> int:
    """Write the tokens of a split and the positions where sentences or documents begin; return the number of tokens."""
    dtype = np.dtype(np.int32) if marked else vocabulary.dtype
    with (
        array_writer(folder, split, dtype) as tokens,
        array_writer(folder, f"{split}.starts", np.dtype(np.int64)) as starts,
    ):
        for document in documents:
            first = tokens.length
            for chunk in vocabulary.encode_chunks(document):
                if not vocabulary.starts_sentences:
                    begins = np.arange(min(len(chunk), 1) if tokens.length == first else 0)
                elif closed:
                    chunk, begins = close_sentences(chunk, vocabulary.numbers[SENTENCE])
                else:
                    begins = np.flatnonzero(chunk == vocabulary.numbers[SENTENCE])
                starts.append(tokens.length + begins)
                tokens.append(mark(chunk, begins) if marked else chunk)
        return tokens.length


def check_tokenizer_options(config: DataConfig) -> None:
    """Check `data.vocab_size` and `data.tokenizer`.

    Raises:
        OptionError: one is given at another level than bpe, both are given, or the vocabulary is smaller than 256.
    """
    size, file = config.vocab_size, config.tokenizer
    if config.level != "bpe":
        require(size is None, "data.vocab_size", size, f"is for data.level=bpe, not {config.level}")
        require(file is None, "data.tokenizer", file, f"is for data.level=bpe, not {config.level}")
    require(size is None or file is None, "data.vocab_size", size, "must not be given together with data.tokenizer")
    require(size is None or size >= N_BYTES, "data.vocab_size", size, f"must be an integer >= {N_BYTES}, the bytes")


def tokenizer_vocabulary(config: DataConfig, source: Source, checksum: str) -> Vocabulary:
    """Read `data.tokenizer`, or train `data.vocab_size` tokens on the training split and cache the tokenizer.

    Raises:
        OptionError: the file is not a byte-level tokenizer, or the training split is too short for so many tokens.
    """
    if config.tokenizer is not None:
        try:
            return Vocabulary.of_tokenizer(Path(config.tokenizer).expanduser().read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            raise OptionError("data.tokenizer", config.tokenizer, f"cannot be read ({error})") from error
        except UserError as error:
            raise OptionError("data.tokenizer", config.tokenizer, str(error)) from error
    size = BPE_VOCAB_SIZE if config.vocab_size is None else config.vocab_size
    key = cache_key(checksum, "byte pairs", size)
    train = partial(_train_byte_pairs, source.parts["train"], size)
    return Vocabulary.of_tokenizer(cached(Path(config.cache_dir).expanduser(), key, train)[1]["tokenizer"])


def _train_byte_pairs(parts: list[Part], size: int, folder: Path) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        try:
            return {"tokenizer": train_byte_pairs(read(unpacked(parts, Path(scratch))), size)}
        except UserError as error:
            raise OptionError("data.vocab_size", size, str(error)) from error
