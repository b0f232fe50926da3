"""A text without long dependencies: the lines of a corpus in a random order."""

from __future__ import annotations

import os
import random

from experiments.arms import OtherCorpus, Setup
from experiments.corpora import at_hand
from experiments.jobs import composed
from txl_lightning.data.corpora import SPLITS, load_corpus

NAME = "shuffled lines"
SEED = 1
LONGEST = 1000  # letters of a line on average, beyond which it is no sentence
WORDS = 25


def shuffled_lines(setup: Setup) -> OtherCorpus:
    """The lines of the user's corpus, blank ones left out, shuffled within each split, as one file.

    The file is written once into the report's directory, under the checksum of what it was made from.
    """
    data = composed((f"profile={setup.profile.name}", *setup.overrides)).data
    unknown = OtherCorpus(NAME, ("data=file", "data.path=shuffled.txt", f"data.level={data.level}"))
    if setup.planning and not at_hand(data):
        return unknown
    corpus = load_corpus(data)
    level = corpus.vocabulary.level
    folder = setup.directory / "corpora"
    parts = {split: folder / f"shuffled-{corpus.checksum[:12]}.{split}" for split in SPLITS}
    whole = folder / f"shuffled-{corpus.checksum[:12]}.txt"
    if setup.planning and not whole.exists():
        return unknown
    if not whole.exists():
        folder.mkdir(parents=True, exist_ok=True)
        for split, path in parts.items():
            path.write_bytes(shuffle(corpus.vocabulary.decode(corpus.splits[split].tolist()), split))
        part = whole.with_suffix(".part")
        part.write_bytes(b"".join(path.read_bytes() for path in parts.values()))
        os.replace(part, whole)
    sizes = [path.stat().st_size for path in parts.values()]
    fractions = ",".join(repr(size / sum(sizes)) for size in sizes)
    words = ("data=file", f"data.path={whole}", f"data.level={level}", f"data.fractions=[{fractions}]")
    return OtherCorpus(NAME, words)


def shuffle(text: str, split: str) -> bytes:
    """Its lines in another order, the same one every time."""
    lines = [line for line in text.split("\n") if line.strip()]
    if len(text) > LONGEST * len(lines):  # a corpus such as text8 has no lines
        words = text.split(" ")
        lines = [" ".join(words[i : i + WORDS]) for i in range(0, len(words), WORDS)]
    random.Random(f"{SEED} {split}").shuffle(lines)
    return "".join(f"{line}\n" for line in lines).encode()
