"""Corpus without long dependencies: the lines of another corpus in random order."""

from __future__ import annotations

import json
import random
from pathlib import Path

from experiments.engine.jobs import RUNS, at_hand, composed
from experiments.engine.setup import Setup
from experiments.tables.arms import OtherCorpus
from txl_lightning.data.corpus import SPLITS, load_corpus
from txl_lightning.files import write_json

NAME = "shuffled lines"
SEED = 1
MAX_MEAN_LINE = 1000  # characters; a corpus with a longer mean line has no sentences on lines of their own
WORDS_PER_PIECE = 25


def shuffled_lines(setup: Setup) -> OtherCorpus:
    """Return the user's corpus with the lines of each split shuffled and blank lines left out.

    The corpus is written once, as one file in the report's folder named after the checksum of the original, with the
    sizes of its splits in a JSON file beside it.
    """
    data = composed((f"profile={setup.profile.name}", *setup.overrides)).data
    unknown = OtherCorpus(NAME, ("data=file", "data.path=shuffled.txt", f"data.level={data.level}"))
    if setup.planning and not at_hand(data):
        return unknown
    corpus = load_corpus(data)
    level = corpus.vocabulary.level
    whole = setup.directory / "corpora" / f"shuffled-{corpus.checksum[:12]}.txt"
    sizes = _sizes(whole)
    if setup.planning and sizes is None:
        return unknown
    if sizes is None:
        parts = [shuffle(corpus.vocabulary.decode(corpus.splits[split].tolist()), split) for split in SPLITS]
        whole.parent.mkdir(parents=True, exist_ok=True)
        whole.write_bytes(b"".join(parts))
        sizes = [len(part) for part in parts]
        write_json(whole.with_suffix(".json"), sizes)
    fractions = ",".join(repr(size / sum(sizes)) for size in sizes)
    path = f"{RUNS}/../{whole.parent.name}/{whole.name}"
    return OtherCorpus(NAME, ("data=file", f"data.path={path}", f"data.level={level}", f"data.fractions=[{fractions}]"))


def _sizes(whole: Path) -> list[int] | None:
    """Read the sizes of the splits, written last; None if the text is not there or may be incomplete."""
    try:
        sizes: list[int] = json.loads(whole.with_suffix(".json").read_text())
        return sizes if sum(sizes) == whole.stat().st_size else None
    except (OSError, ValueError):
        return None


def shuffle(text: str, split: str) -> bytes:
    """Return the lines of a text in an order that depends on the split's name only."""
    lines = [line for line in text.split("\n") if line.strip()]
    if len(text) > MAX_MEAN_LINE * len(lines):  # a corpus without lines, such as text8: shuffle pieces of words
        words = text.split(" ")
        lines = [" ".join(words[i : i + WORDS_PER_PIECE]) for i in range(0, len(words), WORDS_PER_PIECE)]
    random.Random(f"{SEED} {split}").shuffle(lines)
    return "".join(f"{line}\n" for line in lines).encode()
