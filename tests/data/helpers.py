"""Corpora of small files that tests write, cached beside them."""

from itertools import pairwise
from pathlib import Path
from typing import Any

from txl_lightning.config.schemas import FileData
from txl_lightning.data.corpus import SPLITS, WHOLE, Corpus, load_corpus
from txl_lightning.data.vocabulary import without_marks


def files(folder: Path, contents: dict[str, str | bytes]) -> list[str]:
    """Write files and return their paths."""
    paths = []
    for name, content in contents.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        paths.append(str(path))
    return paths


def corpus_of(path: Any, folder: Path, marked: bool = False, **options: Any) -> Corpus:
    """Load `data=file` with a cache in a folder."""
    config = FileData(
        name="file",
        path=path,
        cache_dir=str(folder / "cache"),
        **options,
    )
    return load_corpus(config, marked=marked)


def text_of(corpus: Corpus, *splits: str) -> str:
    """Return the text of splits, by default of all, one after the other."""
    return "".join(
        corpus.vocabulary.decode(without_marks(corpus.splits[split])) for split in splits or SPLITS
    )


def documents_of(corpus: Corpus, split: str = WHOLE) -> list[str]:
    """Return the text of every document of a split."""
    tokens, starts = without_marks(corpus.splits[split]), corpus.documents[split].tolist()
    return [corpus.vocabulary.decode(tokens[a:b]) for a, b in pairwise([*starts, len(tokens)])]
