"""A custom corpus: well nested brackets. A closing one tells whether the model still knows which one was opened.

    export TXL_GUESTS=examples/brackets.py
    txl train data=brackets data.depth=16 hydra.run.dir=runs/brackets
    txl recl checkpoints=[runs/brackets/checkpoints/best.ckpt]

A corpus from existing files needs less: `return Source("letters", cut_file(Path("letters.txt")),
open_vocabulary(config))`.
"""

from dataclasses import dataclass

import numpy as np

from txl_lightning.config.schemas import DataConfig
from txl_lightning.data.sources import Source, cut_file, generated, open_vocabulary, register_corpus

OPENING = "([{<"
CLOSING = ")]}>"


@dataclass
class BracketsData(DataConfig):
    """Options for `data=brackets`: `depth`, the most brackets that are open at once, and the text's length."""

    depth: int = 8
    n_tokens: int = 200_000


def text(depth: int, n_tokens: int) -> str:
    """Return random brackets: each opens one more or closes the last one, with equal probability."""
    random = np.random.RandomState(1)
    opened: list[int] = []
    brackets = ""
    coins = random.randint(2, size=n_tokens)
    kinds = random.randint(len(OPENING), size=n_tokens)
    for opens, kind in zip(coins, kinds, strict=True):
        if not opened or (opens and len(opened) < depth):
            opened.append(kind)
            brackets += OPENING[kind]
        else:
            brackets += CLOSING[opened.pop()]
    return brackets


@register_corpus("brackets", "char", "byte", options=BracketsData)
def brackets(config: BracketsData) -> Source:
    """Return the text, written once into `data.cache_dir` and cut like a file: 90 %, 5 % and 5 %."""
    path = generated(config, text, config.depth, config.n_tokens)
    return Source(
        f"brackets, depth {config.depth}",
        cut_file(path),
        open_vocabulary(config),
    )
