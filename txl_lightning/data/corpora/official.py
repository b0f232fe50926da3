"""Download corpora from their official addresses into the folder where a user would put them."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from txl_lightning.data.corpora.download import Expected, download, require_answer, unpack, write
from txl_lightning.errors import UserError

HUNDRED_MB = 100_000_000
TRAIN_SHARDS_OF_LM1B = 99

ADDRESSES = {
    "enwik8": "http://mattmahoney.net/dc/enwik8.zip",
    "text8": "http://mattmahoney.net/dc/text8.zip",
    "ptb": "http://www.fit.vutbr.cz/~imikolov/rnnlm/simple-examples.tgz",
    "lm1b": "http://www.statmt.org/lm-benchmark/1-billion-word-language-modeling-benchmark-r13output.tar.gz",
}
ARCHIVES = {
    "ptb": Expected(md5="30177ea32e27c525793142b6bf2c8e2d"),
    "lm1b": Expected(1_792_209_805, sha256="01ba60381110baf7f189dfd2b8374de371e8c9a340835793f190bdae9e90a34e"),
}
CONTENTS = {
    "enwik8": Expected(HUNDRED_MB, md5="a1fa5ffddb56f4953e226637dabbb36a"),
    "text8": Expected(HUNDRED_MB, md5="3bea1919949baf155f99411df5fada7e"),
}
FILES = {
    "enwik8": "the file enwik8 (100,000,000 bytes)",
    "text8": "the file text8 (100,000,000 bytes)",
    "wikitext-103": "wiki.train.tokens, wiki.valid.tokens and wiki.test.tokens",
    "wikitext-2": "wiki.train.tokens, wiki.valid.tokens and wiki.test.tokens",
    "ptb": "train.txt, valid.txt and test.txt (ptb.char.train.txt … for characters)",
    "lm1b": "training-monolingual.tokenized.shuffled/news.en-* and heldout-monolingual.tokenized.shuffled/"
    "news.en.heldout-00000-of-00050",
    "wikipedia-2015": "wikipedia-2015.txt or wikipedia-2015.txt.xz",
}


def fetch(corpus: str, folder: Path) -> None:
    """Download a corpus into its folder.

    Raises:
        UserError: it cannot be downloaded; the message says why, and which files to put where.
    """
    try:
        if corpus in ADDRESSES:
            from_archive(corpus, folder, ADDRESSES[corpus])
        elif corpus.startswith("wikitext"):
            from_datasets(corpus, folder)
        else:
            raise UserError("there is no official address to download it from")
    except UserError as error:
        raise UserError(
            f"data={corpus}: not in {folder}, and {error}; put {FILES[corpus]} there "
            f"(the folder {folder.parent} is data.root or TXL_DATA)"
        ) from error


def from_archive(corpus: str, folder: Path, url: str) -> None:
    """Download an archive, unpack the corpus' files from it and delete it.

    Raises:
        UserError: see `download` and `unpack`.
    """
    with _all_or_nothing(folder) as (scratch, new):
        archive = scratch / url.rsplit("/", 1)[-1]
        download(url, archive, ARCHIVES.get(corpus, Expected()))
        members = _members_of(corpus)
        unpack(archive, {member: (new / name, expected) for member, (name, expected) in members.items()})


@contextmanager
def _all_or_nothing(folder: Path) -> Iterator[tuple[Path, Path]]:
    """Yield a scratch folder and a folder `new`; move the files of `new` to `folder` unless an error occurred."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{folder.name}.", dir=folder.parent) as name:
            scratch, new = Path(name), Path(name) / "new"
            yield scratch, new
            for path in sorted(new.rglob("*")):
                if path.is_file():
                    target = folder / path.relative_to(new)
                    target.parent.mkdir(parents=True, exist_ok=True)
                    path.replace(target)
    except OSError as error:
        raise UserError(f"{folder} cannot be written ({error.strerror or error})") from error


def _members_of(corpus: str) -> dict[str, tuple[str, Expected]]:
    """Return, for each needed member of an archive, its name in the corpus' folder and its expected contents."""
    if corpus in CONTENTS:
        return {corpus: (corpus, CONTENTS[corpus])}
    if corpus == "ptb":
        words = {f"ptb.{split}.txt": f"{split}.txt" for split in ("train", "valid", "test")}
        names = words | {f"ptb.char.{split}.txt": f"ptb.char.{split}.txt" for split in ("train", "valid", "test")}
    else:
        train, held_out = "training-monolingual.tokenized.shuffled", "heldout-monolingual.tokenized.shuffled"
        shards = [f"{train}/news.en-{i:05d}-of-00100" for i in range(1, TRAIN_SHARDS_OF_LM1B + 1)]
        names = {name: name for name in [*shards, f"{held_out}/news.en.heldout-00000-of-00050"]}
    return {member: (name, Expected()) for member, name in names.items()}


def from_datasets(corpus: str, folder: Path, load_dataset: Callable[..., Any] | None = None) -> None:
    """Download WikiText through `datasets`; every row is a line.

    Args:
        corpus: wikitext-2 or wikitext-103.
        folder: of the corpus.
        load_dataset: replaces `datasets.load_dataset` in tests.

    Raises:
        UserError: the hub cannot be reached, or cannot deliver the data.
    """
    load_dataset = load_dataset or _load_dataset_from_hub()
    try:
        splits = load_dataset("Salesforce/wikitext", f"{corpus}-v1")
    except Exception as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UserError(f"datasets cannot load Salesforce/wikitext ({reason})") from error
    with _all_or_nothing(folder) as (_, new):
        for split, hub_split in {"train": "train", "valid": "validation", "test": "test"}.items():
            write(new / f"wiki.{split}.tokens", _lines(splits[hub_split]))


def _load_dataset_from_hub() -> Callable[..., Any]:
    # Check first, because `load_dataset` retries for half a minute without a network.
    require_answer(os.environ.get("HF_ENDPOINT", "https://huggingface.co"))
    from datasets import load_dataset  # takes a second, and few runs need it

    return load_dataset


def _lines(dataset: Any) -> Iterator[bytes]:
    for batch in dataset.iter(batch_size=10_000):
        yield b"".join(line.rstrip("\n").encode() + b"\n" for line in batch["text"])
