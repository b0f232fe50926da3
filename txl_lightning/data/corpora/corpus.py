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
from txl_lightning.data.corpora import benchmarks, sources
from txl_lightning.data.corpora.bpe_tokenizer import check_tokenizer_options, tokenizer_vocabulary
from txl_lightning.data.corpora.cache import ArrayWriter, cache_key, cached
from txl_lightning.data.corpora.sources import SPLITS, Source, Split
from txl_lightning.data.documents import Pattern, close_sentences, mark, split_documents, start_pattern
from txl_lightning.data.reading import fingerprint, read, unpacked
from txl_lightning.data.vocabulary.symbols import SENTENCE, Vocabulary
from txl_lightning.errors import UserError, require

__all__ = ["CORPORA", "SPLITS", "Corpus", "Split", "load_corpus", "split_bytes"]

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
    require(config.name in CORPORA, "data", config.name, f"must be one of {', '.join(CORPORA)}")
    directory = Path(config.cache_dir).expanduser()
    source = CORPORA[config.name](config)
    checksum = _checksum(source, directory / "fingerprints")
    check_tokenizer_options(config)
    if vocabulary is None and config.level == "bpe":
        vocabulary = tokenizer_vocabulary(config, source, checksum)
    key = cache_key(checksum, source.recipe, source.published)
    if vocabulary is not None:
        sentences = " of sentences" if source.documents and vocabulary.starts_sentences else ""
        key = cache_key(checksum, f"given vocabulary{sentences}{source.marks}", vocabulary)
    prepare = partial(_prepare, source, vocabulary)
    if marked:
        prepare = partial(prepare, marked=True, starts=start_pattern(config.document_start))
        key = cache_key(key, "marked", config.document_start)
    try:
        arrays, description = cached(directory, key, prepare)
    except UserError as error:
        raise UserError(f"{source.name}: {error}") from error
    vocabulary = Vocabulary.from_state_dict(description["vocabulary"])
    large = bool(source.cutoffs) and len(vocabulary) > source.cutoffs[-1]
    return Corpus(
        name=source.name,
        splits={split: arrays[split] for split in SPLITS},
        vocabulary=vocabulary,
        checksum=checksum,
        cutoffs=source.cutoffs if large else (),
        sentences={split: arrays[f"{split}.sentences"] for split in SPLITS if f"{split}.sentences" in arrays},
        documents={split: arrays[f"{split}.documents"] for split in SPLITS if f"{split}.documents" in arrays},
    )


def split_bytes(config: DataConfig, split: str) -> tuple[str, str, bytes]:
    """Return name and checksum of the corpus that `config` names, and the text of a split as it is before encoding.

    Raises:
        OptionError: the corpus or level is unknown, or `data.path` cannot be used.
        UserError: a file is missing or damaged.
    """
    require(config.name in CORPORA, "data", config.name, f"must be one of {', '.join(CORPORA)}")
    source = CORPORA[config.name](config)
    checksum = _checksum(source, Path(config.cache_dir).expanduser() / "fingerprints")
    with tempfile.TemporaryDirectory() as folder:
        (parts,) = (parts for name, parts in source.parts.items() if name == split)
        return source.name, checksum, b"".join(read(unpacked(parts, Path(folder))))


def _checksum(source: Source, known_checksums: Path) -> str:
    # Depends on the contents only, not on names, folders or times of files.
    digest = hashlib.sha256()
    listed = [source.vocabulary_file[0]] if source.vocabulary_file else []
    for name, parts in [*source.parts.items(), ("vocabulary", listed)]:
        for part in parts:
            cuts = (name, fingerprint(part.path, known_checksums), part.start, part.stop, part.alignment, part.format)
            digest.update(repr(cuts).encode())
    return digest.hexdigest()


def _prepare(
    source: Source, given: Vocabulary | None, folder: Path, marked: bool = False, starts: Pattern | None = None
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
    counts: dict[str, int] = {}
    for split in SPLITS:
        encoder = vocabulary if given is None else vocabulary.of_known_characters()
        if (source.documents or marked) and not encoder.starts_sentences:
            counts[split] = _write_documents(encoder, split_documents(parts[split], starts), folder, split, marked)
        else:
            counts[split] = _write_tokens(encoder, read(parts[split]), folder, split, source.closed_sentences, marked)
        if not counts[split]:
            raise UserError(f"the {split} split is empty")
    if source.published and given is None:
        source.published.check(len(vocabulary), counts)
    for path in folder.glob("*.unpacked"):
        path.unlink()
    return {"vocabulary": vocabulary.state_dict(), "tokens": counts}


def _write_tokens(
    vocabulary: Vocabulary, chunks: Iterable[bytes], folder: Path, split: str, closed: bool, marked: bool
) -> int:
    """Write the tokens of a split and, for lm1b, the positions of its sentences; return the number of tokens."""
    with ArrayWriter(folder / f"{split}.npy", vocabulary.dtype) as tokens:
        if not vocabulary.starts_sentences:
            for chunk in vocabulary.encode_chunks(chunks):
                tokens.append(chunk)
        else:
            with ArrayWriter(folder / f"{split}.sentences.npy", np.dtype(np.int64)) as sentences:
                for chunk in vocabulary.encode_chunks(chunks):
                    starts = np.flatnonzero(chunk == vocabulary.numbers[SENTENCE])
                    if closed:
                        chunk, starts = close_sentences(chunk, vocabulary.numbers[SENTENCE])
                    sentences.append(tokens.length + starts)
                    tokens.append(mark(chunk, starts) if marked else chunk)
        return tokens.length


def _write_documents(
    vocabulary: Vocabulary, documents: Iterable[Iterable[bytes]], folder: Path, split: str, marked: bool = False
) -> int:
    """Write the tokens of a split and the positions of its documents; return the number of tokens."""
    starts_file = folder / f"{split}.documents.npy"
    dtype = np.dtype(np.int32) if marked else vocabulary.dtype
    with ArrayWriter(folder / f"{split}.npy", dtype) as tokens:
        with ArrayWriter(starts_file, np.dtype(np.int64)) as starts:
            for document in documents:
                start = tokens.length
                for chunk in vocabulary.encode_chunks(document):
                    first = marked and tokens.length == start
                    tokens.append(mark(chunk, slice(1)) if first else chunk)
                if tokens.length > start:
                    starts.append(np.array([start]))
        return tokens.length
