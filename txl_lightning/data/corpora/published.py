"""Published sizes of the corpora, and the check of prepared tokens against them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from txl_lightning.errors import UserError


@dataclass(frozen=True)
class Published:
    """Published sizes of a corpus, which a correct preparation reproduces.

    Args:
        vocabulary: number of entries; None is not checked.
        tokens: number of tokens by split, with `<eos>`.
        slack: number of tokens by which a split may be shorter.
    """

    vocabulary: int | None = None
    tokens: Mapping[str, int] = field(default_factory=dict)
    slack: int = 0

    def check(self, vocabulary: int, tokens: Mapping[str, int]) -> None:
        """Compare the sizes of prepared tokens with the published ones.

        Raises:
            UserError: a size differs; the message has both.
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
    # Published without line breaks: the number of symbols, but not that of bytes.
    "enwik8, newlines dropped": Published(204),
    # The original's script strips spaces at both ends of every split.
    "text8": Published(27, CHARACTERS, slack=2),
    "wikitext-103": Published(267_735, {"train": 103_227_021, **WIKITEXT_EVALUATION}),
    "wikitext-103.prefix": Published(None, WIKITEXT_EVALUATION),
    "wikitext-103.prefix, counted words": Published(267_735, WIKITEXT_EVALUATION),
    "wikitext-2": Published(33_278, {"train": 2_088_628, **WIKITEXT_EVALUATION}),
    "ptb": Published(10_000, _splits(929_589, 73_760, 82_430)),
    "lm1b": Published(793_471),
}

# Cut-offs of the adaptive embedding and softmax (paper's scripts).
CUTOFFS: dict[str, tuple[int, ...]] = {
    "wikitext-103": (20_000, 40_000, 200_000),
    "lm1b": (60_000, 100_000, 640_000),
}
