"""The paper's claims in words, and the one rule that marks them.

A claim is a difference with a 95 % interval, positive if the claim is right, beside the paper's effect in percent. It
is marked by where the interval lies: ✓ above zero, ✗ below, ≈ includes it; – where this run cannot tell. A claim of
several differences has a mark for each of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from experiments.sections import Difference, Section, to_json

MARKS = {"✓": "the interval is above zero", "✗": "below zero", "≈": "includes zero", "–": "this run cannot tell"}


@dataclass(frozen=True)
class Claim:
    """Claim of the paper.

    Args:
        id: the keys of its differences begin with it.
        claim: in a sentence.
        paper: its place and numbers in the paper.
        difference: what is subtracted from what.
    """

    id: str
    claim: str
    paper: str
    difference: str


CLAIMS = (
    Claim(
        "recurrence_helps",
        "Recurrence helps",
        "Table 6: 27.02 with, 29.59 without, at training’s lengths",
        "Test loss without recurrence minus with, at training’s lengths.",
    ),
    Claim(
        "recurrence_helps_at_the_best_lengths",
        "Recurrence helps at the best attention lengths too",
        "Table 6: 26.77 with, 29.02 without, each at its best attention length",
        "Test loss without recurrence minus with, each at the attention length that is best on validation. – where "
        "every run without recurrence is best at training’s length: it would be the claim above again.",
    ),
    Claim(
        "recurrence_beats_longer_segments",
        "Recurrence beats longer segments",
        "Table 10: 26.77 with, 27.98 without on segments of 176 instead of 128 (full loss)",
        "Test loss without recurrence minus with, equal tokens of training, best lengths. Segments without "
        "recurrence are as long as fit into the memory that training with recurrence takes.",
    ),
    Claim(
        "our_encoding_is_better",
        "The relative encoding is the best",
        "Table 6: 26.77 against 27.94 with recurrence; 29.02 against 29.75 without; 30.10 against 30.50, 30.97 and "
        "31.16 without and with the half loss",
        "Test loss with every other encoding minus with the paper’s, best lengths.",
    ),
    Claim(
        "only_ours_gains_from_longer_attention",
        "Only the relative encoding gains from longer attention",
        "Table 6: 27.02 to 26.77 at 500 with recurrence, 29.59 to 29.02 without; Shaw’s does not gain",
        "Gain of the paper’s encoding: test loss at training’s lengths minus at the length chosen on validation, 0 if "
        "that is not longer. Then its gain minus that of Shaw’s. With recurrence a part of it is not of the longer "
        "attention: every token sees the whole length, at training’s lengths only the last of a segment does. Absolute "
        "encodings cannot attend farther.",
    ),
    Claim(
        "half_loss_rescues_absolute_encodings",
        "Absolute encodings need the half loss",
        "Section 4.2: they only work well with it (Table 6 has no row without)",
        "Test loss of each absolute encoding, at training’s lengths, minus that with the half loss: with the full loss "
        "and with a random half of the positions, which has as many targets as the half loss.",
    ),
    Claim(
        "recurrence_helps_without_long_dependencies",
        "Recurrence helps on shuffled lines",
        "Table 7: 25.2 with, 27.1 without",
        "Test loss without recurrence minus with, on lines in random order, training’s lengths.",
    ),
    Claim(
        "recl_order",
        "Transformer-XL has the longest effective context",
        "Table 8: 900 against 500 and 400; 700 against 400, 300 and 128 (r = 0.1)",
        "RECL of Transformer-XL at r = 0.1 minus that of each other model of its group: by the paper’s definition, and "
        "guarded, which ends where the model’s own loss no longer falls. Each seed has its own positions.",
    ),
    Claim(
        "speed_up_grows",
        "The speed-up of state reuse grows with length",
        "Table 9: 363 times at 800, 1,874 times at 3,800",
        "Speed-up (time of vanilla / time with hidden states) at the shortest attention length less 1, and the factor "
        "by which it grows from there to the longest, less 1.",
    ),
    Claim(
        "terms_look_as_described",
        "Terms (a), (b), (d) look as described",
        "Figure 7 and appendix D: (a) alone is nearly uniform, (b) looks like the whole, (d) prefers near tokens",
        "Within the heads of all seeds, with Adam and with Muon if both are trained: entropy of (a) minus 0.9 of the "
        "uniform’s; distance to all terms of (a) and of (d) minus that of (b); mean distance of (a) minus (d); entropy "
        "of (d) minus (b).",
    ),
)


def mark(row: Difference) -> str:
    """Return the mark of one difference; an interval without a lower or an upper end is open there."""
    if row.effect is None or row.untested or (row.low is None and row.high is None):
        return "–"
    if row.low is not None and row.low > 0:
        return "✓"
    return "✗" if row.high is not None and row.high < 0 else "≈"


def judged(sections: Sequence[Section]) -> list[dict[str, Any]]:
    """Return the claims as `results.json` has them, each with its differences and their marks in `rows`."""
    rows = [row for section in sections for row in section.differences]
    of_claim = {claim.id: [row for row in rows if row.key.startswith(f"{claim.id}/")] for claim in CLAIMS}
    return [
        {**vars(claim), "rows": [{**to_json(row), "mark": mark(row)} for row in of_claim[claim.id]]} for claim in CLAIMS
    ]
