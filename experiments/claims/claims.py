"""The paper's claims, each judged by a rule from the tables of `results.json` and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from experiments.claims.rules import (
    Mark,
    Results,
    Verdict,
    above,
    all_of,
    apart,
    interval,
    less,
    longer,
    positive,
    rows_of,
    shown,
)

SEEDS_RULE = (
    "holds if every seed of the one is better than every seed of the other and their means differ by more than two "
    "standard errors of the difference; does not hold if that is so the other way round; else, and with fewer than two "
    "seeds, within noise. Two seeds are weak evidence: where there is no difference, about one in ten is still marked"
)


@dataclass(frozen=True)
class Claim:
    """A claim of the paper.

    Args:
        id: short name.
        claim: in a sentence.
        paper: where it stands there, with its figures.
        rule: what makes it hold here.
        tables: that it is judged from.
        judge: the rule, applied.
    """

    id: str
    claim: str
    paper: str
    rule: str
    tables: tuple[str, ...]
    judge: Callable[[Results], Verdict]


def judged(results: Results) -> list[dict[str, Any]]:
    """The claims whose tables were made, as `results.json` has them."""
    found = []
    for claim in CLAIMS:
        if all(rows_of(results, name) for name in claim.tables):
            mark, evidence = claim.judge(results)
            stated = {"id": claim.id, "claim": claim.claim, "paper": claim.paper, "rule": claim.rule}
            found.append({**stated, "mark": mark, "evidence": evidence, "tables": list(claim.tables)})
    return found


def pairs(table: str, key: str, better: list[str], worse: list[str]) -> Callable[[Results], Verdict]:
    """A judge: the loss `key` of each better row is below that of the worse row beside it."""

    def judge(results: Results) -> Verdict:
        rows = rows_of(results, table)
        found = [(rows[a][key], rows[b][key], a, b) for a, b in zip(better, worse, strict=True)]
        text = [f"{shown(x)} ({a}) against {shown(y)} ({b}): {less(x, y)}" for x, y, a, b in found]
        return all_of([less(x, y) for x, y, _, _ in found]), "; ".join(text)

    return judge


def gains(results: Results) -> Verdict:
    """Only the paper's encoding gains from longer attention than training's."""
    rows = rows_of(results, "table_6")
    ours, *others = (rows[arm]["beyond"] for arm in WITH_LONGER_ATTENTION)
    text = [f"{arm}: {shown(rows[arm]['beyond']) if rows[arm]['beyond'] else 'none'}" for arm in WITH_LONGER_ATTENTION]
    marks = [positive(ours)]
    for other in (other for other in others if other and ours):
        marks.append("does not hold" if positive(other) == "holds" else less(other, ours))
    return all_of(marks), "; ".join(text)


def recl_order(results: Results) -> Verdict:
    """Transformer-XL looks farther than every other model of its group, r = 0.1."""
    rows = rows_of(results, "table_8")
    marks: list[Mark] = []
    text = []
    for group in (1, 2):
        members = {name: row["r0.1"] for name, row in rows.items() if name.startswith(f"group {group}:")}
        first = members.pop(f"group {group}: Transformer-XL")
        for other in members.values():
            marks.append(longer(first, other))
        listed = {f"group {group}: Transformer-XL": first, **members}
        text.append(", ".join(f"{name.partition(': ')[2]} {interval(cell)}" for name, cell in listed.items()))
    return all_of(marks), "; ".join(text)


def speed_grows(results: Results) -> Verdict:
    """State reuse is faster, and the more so the longer the attention."""
    tables = [table for section in results["sections"] for table in section["tables"] if table["id"] == "table_9"]
    rows = [row for table in tables for row in table["rows"]]
    marks: list[Mark] = []
    text = []
    for level in dict.fromkeys(row["arm"]["text"] for row in rows):
        ordered = sorted((row for row in rows if row["arm"]["text"] == level), key=lambda row: row["length"]["value"])
        low, high = [[row[key]["value"] for row in ordered] for key in ("lowest", "highest")]
        marks.append("holds" if low[0] > 1 else "does not hold" if high[0] < 1 else "within noise")
        marks.append("holds" if low[-1] > high[0] else "does not hold" if high[-1] < low[0] else "within noise")
        medians = [row["hidden"]["value"] for row in ordered]
        marks += ["holds" if after > before else "within noise" for before, after in pairwise(medians)]
        text.append(f"{level}: " + ", ".join(f"{shown(row['hidden'])} × at {shown(row['length'])}" for row in ordered))
    return all_of(marks), "; ".join(text)


def terms_look(results: Results) -> Verdict:
    """(a) is nearly uniform, (b) looks like the whole, (d) prefers near tokens and is flatter than the whole."""
    rows = rows_of(results, "figures_5_to_7")
    if not set(TERM_ROWS) <= set(rows):
        return "within noise", "a term is missing"
    whole, a, b, d = (rows[name] for name in TERM_ROWS)
    marks = [
        above(a["flatness"], NEARLY_UNIFORM),
        apart(b["unlike"], a["unlike"]),
        apart(b["unlike"], d["unlike"]),
        apart(d["distance"], a["distance"]),
        apart(whole["flatness"], d["flatness"]),
    ]
    names = [
        "(a) nearly uniform",
        "(b) nearer to the whole than (a)",
        "than (d)",
        "(d) nearer tokens than (a)",
        "(d) flatter",
    ]
    return all_of(marks), "; ".join(f"{name}: {mark}" for name, mark in zip(names, marks, strict=True))


OPPOSITE: dict[Mark, Mark] = {"holds": "does not hold", "does not hold": "holds", "within noise": "within noise"}
NEARLY_UNIFORM = 0.9
TERM_ROWS = ("all terms", "(a) content", "(b) content and position", "(d) position")
ON, OFF = "recurrence, ours, full loss", "no recurrence, ours, full loss"
HALF = "no recurrence, {}, half loss"
WITH_LONGER_ATTENTION = [
    ON,
    "recurrence, Shaw, full loss",
    *(HALF.format(name) for name in ("Shaw", "Vaswani", "Al-Rfou")),
]

CLAIMS = [
    Claim(
        "recurrence_helps",
        "Recurrence helps.",
        "Table 6: 27.02 with, 29.59 without, at training's lengths",
        f"losses at training's lengths (init) in Table 6: {SEEDS_RULE}",
        ("table_6",),
        pairs("table_6", "init", [ON], [OFF]),
    ),
    Claim(
        "recurrence_helps_at_the_best_lengths",
        "Recurrence helps also where a model without it may look farther at evaluation.",
        "Table 6: 26.77 with, 29.02 without, each at its best attention length",
        f"best losses of Table 6: {SEEDS_RULE}",
        ("table_6",),
        pairs("table_6", "best", [ON], [OFF]),
    ),
    Claim(
        "recurrence_beats_longer_segments",
        "Recurrence is a better use of memory than longer segments.",
        "Table 10: 26.77 with, 27.98 without on segments of 176 instead of 128 (full loss)",
        f"best losses of Table 10, full loss: {SEEDS_RULE}",
        ("table_10",),
        pairs("table_10", "best", ["recurrence, full loss"], ["no recurrence, full loss"]),
    ),
    Claim(
        "our_encoding_is_better",
        "The relative encoding of the paper is better than Shaw's and than absolute ones.",
        "Table 6: 26.77 against 27.94 with recurrence; 30.10 against 30.50, 30.97 and 31.16 without, half loss",
        f"best losses of Table 6, pair by pair: {SEEDS_RULE}; all pairs must hold",
        ("table_6",),
        pairs(
            "table_6",
            "best",
            [ON, *[HALF.format("ours")] * 3],
            ["recurrence, Shaw, full loss", *(HALF.format(name) for name in ("Shaw", "Vaswani", "Al-Rfou"))],
        ),
    ),
    Claim(
        "only_ours_gains_from_longer_attention",
        "Only the relative encoding of the paper gains from longer attention at evaluation than in training.",
        "Table 6: 27.02 to 26.77 at 500; Shaw 27.94, absolute ones unchanged",
        "gain beyond training's length in Table 6: a row gains if every seed does, on average by more than two "
        "standard errors and a digit that is shown; holds if ours with recurrence gains, and more than each other that "
        "has such lengths (by the rule over seeds); does not hold if another gains or ours loses by as much; else, and "
        "with one seed, within noise. Absolute encodings cannot look farther than in training",
        ("table_6",),
        gains,
    ),
    Claim(
        "half_loss_rescues_absolute_encodings",
        "Absolute encodings need the half loss.",
        "Section 4.2: they only work well with it (Table 6 has no row without)",
        f"losses at training's lengths, half against full loss of the same encoding: {SEEDS_RULE}; both encodings must "
        "hold",
        ("table_6", "table_6_full_loss"),
        lambda results: rescued(results),
    ),
    Claim(
        "recurrence_helps_without_long_dependencies",
        "Recurrence helps even where there are no long dependencies.",
        "Table 7: 25.2 with, 27.1 without",
        f"losses of Table 7: {SEEDS_RULE}",
        ("table_7",),
        pairs("table_7", "loss", [ON], [OFF]),
    ),
    Claim(
        "recl_order",
        "Transformer-XL has the longest effective context.",
        "Table 8: 900 against 500 and 400; 700 against 400, 300 and 128 (r = 0.1)",
        "RECL at r = 0.1 in both groups, of one trained model each: holds if Transformer-XL's 95 % interval over "
        "positions lies above that of every other model; does not hold if it lies below one; else within noise",
        ("table_8",),
        recl_order,
    ),
    Claim(
        "speed_up_grows",
        "Evaluation is faster with state reuse, the more so the longer the attention.",
        "Table 9: 363 times at 800, 1,874 times at 3,800",
        "vanilla / hidden states: holds if even the lowest ratio at the shortest length is above 1, every median is "
        "above the one before, and all rounds of the longest length are above all of the shortest; does not hold if "
        "they are below; else within noise",
        ("table_9",),
        speed_grows,
    ),
    Claim(
        "terms_look_as_described",
        "Term (a) alone is nearly uniform, (b) looks like the whole, (d) prefers near tokens but is flatter.",
        "Figure 7",
        f"of one trained model; means over heads, two standard errors apart: entropy of (a) above {NEARLY_UNIFORM} of "
        "the uniform's; (b) less distant from the whole than (a) and (d) are; mean distance of (d) below that of (a); "
        "entropy of (d) above the whole's. All must hold; does not hold if one is the other way round; else within "
        "noise",
        ("figures_5_to_7",),
        terms_look,
    ),
]


def rescued(results: Results) -> Verdict:
    """Half loss below full loss for both absolute encodings."""
    half, full = rows_of(results, "table_6"), rows_of(results, "table_6_full_loss")
    found = [
        (half[HALF.format(name)]["init"], full[f"no recurrence, {name}, full loss"]["init"], name)
        for name in ("Vaswani", "Al-Rfou")
    ]
    text = [f"{name}: half {shown(a)}, full {shown(b)} ({less(a, b)})" for a, b, name in found]
    return all_of([less(a, b) for a, b, _ in found]), "; ".join(text)
