"""What is published about the corpora, and the check of a preparation against it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from txl_lightning.errors import UserError


@dataclass(frozen=True)
class Published:
    """Sizes that a faithful preparation reaches.

    Args:
        vocabulary: number of entries.
        tokens: number of tokens by split, `<eos>` counted.
        slack: how many tokens a split may lack.
    """

    vocabulary: int | None = None
    tokens: Mapping[str, int] = field(default_factory=dict)
    slack: int = 0

    def check(self, vocabulary: int, tokens: Mapping[str, int]) -> None:
        """Compare a preparation.

        Raises:
            UserError: naming what was found and what is published.
        """
        wrong = []
        if self.vocabulary not in (None, vocabulary):
            wrong.append(f"a vocabulary of {vocabulary:,} where {self.vocabulary:,} are published")
        wrong += [
            f"{tokens[split]:,} tokens in {split} where {published:,} are published"
            for split, published in self.tokens.items()
            if not published - self.slack <= tokens[split] <= published
        ]
        if wrong:
            raise UserError(f"the preparation has {', '.join(wrong)}: it is not the published text, or not all of it")


def _splits(train: int, valid: int, test: int) -> dict[str, int]:
    return {"train": train, "valid": valid, "test": test}


CHARACTERS = _splits(90_000_000, 5_000_000, 5_000_000)
WIKITEXT_EVALUATION = {"valid": 217_646, "test": 245_569}

PUBLISHED: dict[str, Published] = {
    "enwik8, newlines kept": Published(205, CHARACTERS),
    # Without its line breaks the number of bytes is not published; that of the symbols is.
    "enwik8, newlines dropped": Published(204),
    # The original's script strips the spaces at both ends of every split.
    "text8": Published(27, CHARACTERS, slack=2),
    "wikitext-103": Published(267_735, {"train": 103_227_021, **WIKITEXT_EVALUATION}),
    "wikitext-103.prefix": Published(None, WIKITEXT_EVALUATION),
    "wikitext-103.prefix, counted words": Published(267_735, WIKITEXT_EVALUATION),
    "wikitext-2": Published(33_278, {"train": 2_088_628, **WIKITEXT_EVALUATION}),
    "ptb": Published(10_000, _splits(929_589, 73_760, 82_430)),
    "lm1b": Published(793_471),
}

# Where the adaptive embedding and softmax divide the vocabulary (paper's scripts).
CUTOFFS: dict[str, tuple[int, ...]] = {
    "wikitext-103": (20_000, 40_000, 200_000),
    "lm1b": (60_000, 100_000, 640_000),
}
