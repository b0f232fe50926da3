"""A text without long dependencies: the lines of a corpus in a random order."""

from __future__ import annotations

import json
import random

from experiments.engine.corpora import at_hand
from experiments.engine.jobs import RUNS, composed
from experiments.engine.setup import Setup
from experiments.tables.arms import OtherCorpus
from txl_lightning.data.corpora.corpus import SPLITS, load_corpus

NAME = "shuffled lines"
SEED = 1
LONGEST = 1000  # letters of a line on average, beyond which it is no sentence
WORDS = 25


def shuffled_lines(setup: Setup) -> OtherCorpus:
    """The lines of the user's corpus, blank ones left out, shuffled within each split, as one file.

    The file is written once into the report's directory, under the checksum of what it was made from; the sizes of
    its splits beside it.
    """
    data = composed((f"profile={setup.profile.name}", *setup.overrides)).data
    unknown = OtherCorpus(NAME, ("data=file", "data.path=shuffled.txt", f"data.level={data.level}"))
    if setup.planning and not at_hand(data):
        return unknown
    corpus = load_corpus(data)
    level = corpus.vocabulary.level
    whole = setup.directory / "corpora" / f"shuffled-{corpus.checksum[:12]}.txt"
    if setup.planning and not whole.exists():
        return unknown
    sizes = whole.with_suffix(".json")
    if not sizes.exists():  # written last
        parts = [shuffle(corpus.vocabulary.decode(corpus.splits[split].tolist()), split) for split in SPLITS]
        whole.parent.mkdir(parents=True, exist_ok=True)
        whole.write_bytes(b"".join(parts))
        sizes.write_text(json.dumps([len(part) for part in parts]))
    found = json.loads(sizes.read_text())
    fractions = ",".join(repr(size / sum(found)) for size in found)
    path = f"{RUNS}/../{whole.parent.name}/{whole.name}"
    return OtherCorpus(NAME, ("data=file", f"data.path={path}", f"data.level={level}", f"data.fractions=[{fractions}]"))


def shuffle(text: str, split: str) -> bytes:
    """Its lines in another order, the same one every time."""
    lines = [line for line in text.split("\n") if line.strip()]
    if len(text) > LONGEST * len(lines):  # a corpus such as text8 has no lines
        words = text.split(" ")
        lines = [" ".join(words[i : i + WORDS]) for i in range(0, len(words), WORDS)]
    random.Random(f"{SEED} {split}").shuffle(lines)
    return "".join(f"{line}\n" for line in lines).encode()
