"""Claims of the paper and beyond it, all judged by one rule from the tables of the report and nothing else.

Every claim rests on one difference or several, with 95 % intervals and signs so that positive supports the claim. The
rule: a claim holds if the whole interval is above zero. It does not hold if the interval is below zero, or in percent
below half of the paper's effect. Otherwise it is within noise. A claim of several parts holds if all do, and does not
hold if one does not.

The differences are rows of the sections' `…_differences` tables whose keys begin with the claim's id.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from experiments.report.sections import Number, Section, Table, decimal, interval

Mark = Literal["holds", "does not hold", "within noise"]


@dataclass(frozen=True)
class Claim:
    """Claim of the paper, or one that goes beyond it.

    Args:
        id: unique; the keys of its differences begin with it.
        short: in a few words, for the picture.
        claim: in a sentence.
        paper: its place and numbers in the paper; beyond the paper, where it comes from.
        rule: differences that it rests on, in words.
        tables: ids of the tables it is judged from; the last one has the differences.
    """

    id: str
    short: str
    claim: str
    paper: str
    rule: str
    tables: tuple[str, ...] = ("beyond", "beyond_differences")


@dataclass(frozen=True)
class ClaimPart:
    """One difference behind a claim; positive supports it.

    Args:
        title: names both sides.
        difference: with its 95 % interval.
        relative: the same in percent.
        paper: the paper's difference in percent; None where it has none.
        unit: of the difference; None for a plain number.
    """

    title: str
    difference: Number
    relative: Number
    paper: float | None
    unit: str | None


def judged(sections: Sequence[Section]) -> list[dict[str, Any]]:
    """Return the claims whose differences are in the report, with their verdicts, as `results.json` has them."""
    tables = {table.id: table for section in sections for table in section.tables}
    found = []
    for claim in (*CLAIMS, *BEYOND):
        if parts := _parts(claim, tables.get(claim.tables[-1])):
            present = [name for name in claim.tables if name in tables]
            found.append({**vars(claim), **verdict(parts), "tables": present})
    return found


def _parts(claim: Claim, table: Table | None) -> list[ClaimPart]:
    if table is None:
        return []
    unit = next(column.unit for column in table.columns if column.key == "difference")
    parts = []
    for key, row in table.rows.items():
        if key.startswith(f"{claim.id}/"):
            difference, relative, paper = table.number(key, "difference"), table.number(key, "relative"), row["paper"]
            theirs = paper.value if isinstance(paper, Number) else None
            parts.append(ClaimPart(table.title(key), difference, relative, theirs, unit))
    return parts


def mark_of(part: ClaimPart) -> Mark:
    """Return the mark of one difference.

    It holds if its whole interval lies above zero. It does not hold if the interval lies below zero, or if the interval
    in percent lies below half of the paper's effect. Otherwise it is within noise.
    """
    difference, relative = part.difference, part.relative
    if difference.low is not None and difference.low > 0:
        return "holds"
    if difference.high is not None and difference.high < 0:
        return "does not hold"
    if part.paper is not None and relative.high is not None and relative.high < part.paper / 2:
        return "does not hold"
    return "within noise"


def verdict(parts: Sequence[ClaimPart]) -> dict[str, Any]:
    """Return the verdict on a claim: that of the part that supports it least.

    With one part that does not hold, the claim does not; it holds if all parts do.

    Returns:
        `mark`; `effect`, `low` and `high` of that part in `unit`, positive as the claim says, and the `smallest` effect
        that this run could have seen: half the width of the interval, and not less than the step of a grid; the same
        in percent as `relative`, `relative_low` and `relative_high`, and the paper's effect as `relative_paper`; its
        title as `part`; all parts in words as `evidence`. An end is None where nothing was repeated, or where it is
        open.
    """
    part = min(parts, key=_support)
    difference, relative = part.difference, part.relative
    low, high = difference.low, difference.high
    return {
        "mark": mark_of(part),
        "effect": difference.value,
        "low": low,
        "high": high,
        "smallest": None if low is None or high is None else max((high - low) / 2, difference.step or 0.0),
        "unit": part.unit,
        "relative": relative.value,
        "relative_low": relative.low,
        "relative_high": relative.high,
        "relative_paper": part.paper,
        "part": part.title,
        "evidence": "; ".join(f"{part.title}: {shown(part.difference, part.unit)}" for part in parts),
    }


def _support(part: ClaimPart) -> tuple[int, float]:
    """Order of parts: those that do not hold, those within noise, those that hold; in each, the least in percent."""
    rank = {"does not hold": 0, "within noise": 1, "holds": 2}[mark_of(part)]
    end = part.relative.low
    return rank, part.relative.value if end is None else end


def shown(difference: Number, unit: str | None) -> str:
    """Format a difference: `+0.137 bpc [+0.120, +0.150]`."""
    text = decimal(difference.value, difference.digits, signed=True)
    text += f" {unit}" if unit else ""
    return " ".join([text, *filter(None, [interval(difference.low, difference.high, difference.digits, signed=True)])])


CLAIMS = [
    Claim(
        "recurrence_helps",
        "Recurrence helps",
        "Recurrence helps.",
        "Table 6: 27.02 with, 29.59 without, at training's lengths",
        "Test loss without recurrence minus with, at training's lengths.",
        ("table_6", "table_6_differences"),
    ),
    Claim(
        "recurrence_helps_at_the_best_lengths",
        "Recurrence helps at the best attention lengths too",
        "Recurrence helps even if the model without it may attend farther at evaluation.",
        "Table 6: 26.77 with, 29.02 without, each at its best attention length",
        "Test loss without recurrence minus with, each at the attention length that is best on validation.",
        ("table_6", "table_6_differences"),
    ),
    Claim(
        "recurrence_beats_longer_segments",
        "Recurrence beats longer segments",
        "Recurrence is a better use of memory than longer segments.",
        "Table 10: 26.77 with, 27.98 without on segments of 176 instead of 128 (full loss)",
        "Test loss without recurrence on longer segments minus with, equal tokens of training, best lengths.",
        ("table_10", "table_10_differences"),
    ),
    Claim(
        "our_encoding_is_better",
        "The relative encoding is the best",
        "The relative encoding of the paper is better than Shaw's and than absolute ones.",
        "Table 6: 26.77 against 27.94 with recurrence; 30.10 against 30.50, 30.97 and 31.16 without, half loss",
        "Test loss of every other encoding minus ours, best lengths.",
        ("table_6", "table_6_differences"),
    ),
    Claim(
        "only_ours_gains_from_longer_attention",
        "Only the relative encoding gains from longer attention",
        "Only the relative encoding of the paper gains from longer attention at evaluation than in training.",
        "Table 6: 27.02 to 26.77 at 500; Shaw 27.94, absolute ones unchanged",
        "Gain of ours with recurrence (test loss at training's lengths minus at the length chosen on validation, 0 if "
        "that is not longer), and that gain minus Shaw's. Absolute encodings cannot attend farther than in training.",
        ("table_6", "table_6_differences"),
    ),
    Claim(
        "half_loss_rescues_absolute_encodings",
        "Absolute encodings need the half loss",
        "Absolute encodings need the half loss.",
        "Section 4.2: they only work well with it (Table 6 has no row without)",
        "Test loss of the absolute encodings with the full loss minus with the half loss, training's lengths.",
        ("table_6", "table_6_full_loss", "table_6_differences"),
    ),
    Claim(
        "recurrence_helps_without_long_dependencies",
        "Recurrence helps on shuffled lines",
        "Recurrence helps even where there are no long dependencies.",
        "Table 7: 25.2 with, 27.1 without",
        "Test loss without recurrence minus with, on lines in random order, training's lengths.",
        ("table_7", "table_7_differences"),
    ),
    Claim(
        "recl_order",
        "Transformer-XL has the longest effective context",
        "Transformer-XL has the longest effective context.",
        "Table 8: 900 against 500 and 400; 700 against 400, 300 and 128 (r = 0.1)",
        "RECL of Transformer-XL at r = 0.1 minus that of each other model of its group; one trained model each.",
        ("table_8", "table_8_differences"),
    ),
    Claim(
        "speed_up_grows",
        "The speed-up of state reuse grows with length",
        "State reuse makes evaluation faster, by a larger factor the longer the attention.",
        "Table 9: 363 times at 800, 1,874 times at 3,800",
        "Speed-up (time of vanilla / time with hidden states) at the shortest attention length less 1, and its growth "
        "from each length to the next.",
        ("table_9", "table_9_differences"),
    ),
    Claim(
        "terms_look_as_described",
        "Terms (a), (b), (d) look as described",
        "Term (a) alone is nearly uniform, (b) looks like the whole, (d) prefers near tokens but is flatter than (b).",
        "Figure 7 and appendix D",
        "Of one trained model: entropy of (a) minus 0.9 of the uniform's; distance to all terms "
        "of (a) and of (d) minus that of (b); mean distance of (a) minus (d); entropy of (d) minus (b).",
        ("figures_5_to_7", "figures_5_to_7_differences"),
    ),
]

# Written before any run; the arms of `experiments/tables/beyond.py` have no recipe of their own.
BEYOND = [
    Claim(
        "memory_helps_with_rope",
        "Memory helps with RoPE too",
        "The memory helps with rotary positions, not only with the relative encoding of the paper.",
        "not in the paper; RoPE: Su et al. 2021",
        "Test loss with RoPE without memory minus with, at training's lengths.",
    ),
    Claim(
        "memory_helps_without_an_encoding",
        "Memory helps without an encoding too",
        "The memory helps even if nothing encodes positions.",
        "not in the paper; no encoding: Haviv et al. 2022",
        "Test loss without encoding and without memory minus with memory, at training's lengths.",
    ),
    Claim(
        "an_encoding_is_needed",
        "Memory needs an encoding of positions",
        "A model with memory is worse if nothing encodes positions.",
        "section 3.3: reused states need relative positions; a model without any is not in the paper",
        "Test loss without encoding minus with the relative one, both with memory, best lengths.",
    ),
    Claim(
        "later_encodings_are_better",
        "Later encodings are better",
        "RoPE and ALiBi are better than the relative encoding of the paper.",
        "not in the paper; RoPE: Su et al. 2021, ALiBi: Press et al. 2022",
        "Test loss with the relative encoding minus with RoPE and minus with ALiBi, all with memory, best lengths.",
    ),
    Claim(
        "compression_pays",
        "Compressed states are worth their memory",
        "A memory of which half is compressed is better than a plain one of as many states.",
        "not in the paper; Rae et al. 2020: 0.97 bpc on enwik8, where the paper has 0.99",
        "Test loss with plain memory minus with half of its states compressed, by mean pooling (equal parameters) and "
        "by convolution, at training's lengths.",
    ),
    Claim(
        "modern_recipe_helps",
        "The modern recipe is better",
        "Pre-norm, RMSNorm, SwiGLU and QK-norm together are better than the layers of the paper.",
        "not in the paper; Baevski and Auli 2019, Zhang and Sennrich 2019, Shazeer 2020, Henry et al. 2020",
        "Test loss of the paper's model minus that of the modern recipe, equal parameters, at training's lengths.",
    ),
]
