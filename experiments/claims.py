"""The paper's claims, each judged by a rule from the tables of `results.json` and nothing else."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

Results = dict[str, Any]
Row = dict[str, Any]
Mark = Literal["holds", "does not hold", "within noise"]
Verdict = tuple[Mark, str]

SEEDS_RULE = (
    "holds if every seed of the one is better than every seed of the other and their means differ by more than two "
    "standard errors of the difference; does not hold if that is so the other way round; else, and with fewer than two "
    "seeds, within noise"
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


def rows_of(results: Results, table: str) -> dict[str, Row]:
    """The rows of a table by their first cell; empty if the table is not there."""
    for section in results["sections"]:
        for found in section["tables"]:
            if found["id"] == table:
                return {row["arm"]["text"]: row for row in found["rows"]}
    return {}


def less(one: dict[str, Any], other: dict[str, Any]) -> Mark:
    """Whether one loss is lower than another by the rule over seeds."""
    ones, others = list(one.get("by_seed", {}).values()), list(other.get("by_seed", {}).values())
    if min(len(ones), len(others)) < 2:
        return "within noise"
    margin = 2 * math.hypot(one["standard_error"], other["standard_error"])
    if max(ones) < min(others) and other["value"] - one["value"] > margin:
        return "holds"
    if max(others) < min(ones) and one["value"] - other["value"] > margin:
        return "does not hold"
    return "within noise"


def all_of(marks: list[Mark]) -> Mark:
    """A claim of several parts holds if all hold, and does not if one does not."""
    if "does not hold" in marks:
        return "does not hold"
    return "holds" if marks and all(mark == "holds" for mark in marks) else "within noise"


def shown(cell: dict[str, Any]) -> str:
    """`2.585 ± 0.004`."""
    value = f"{cell['value']:,.{cell['digits']}f}"
    return f"{value} ± {cell['standard_error']:.{cell['digits']}f}" if "standard_error" in cell else value


def pairs(table: str, key: str, better: list[str], worse: list[str]) -> Callable[[Results], Verdict]:
    """A judge: the loss `key` of each better row is below that of the worse row beside it."""

    def judge(results: Results) -> Verdict:
        rows = rows_of(results, table)
        found = [(rows[a][key], rows[b][key], a, b) for a, b in zip(better, worse, strict=True)]
        text = [f"{a} {shown(x)}, {b} {shown(y)} ({less(x, y)})" for x, y, a, b in found]
        return all_of([less(x, y) for x, y, _, _ in found]), "; ".join(text)

    return judge


def gains(results: Results) -> Verdict:
    """Only the paper's encoding gains from longer attention than training's."""
    rows = rows_of(results, "table_6")
    ours, *others = (rows[arm]["beyond"] for arm in WITH_LONGER_ATTENTION)
    text = [f"{arm}: {shown(rows[arm]['beyond']) if rows[arm]['beyond'] else 'none'}" for arm in WITH_LONGER_ATTENTION]
    marks = [positive(ours), *(OPPOSITE[positive(other)] for other in others if other)]
    return all_of([mark if mark == "does not hold" or i == 0 else "holds" for i, mark in enumerate(marks)]), "; ".join(
        text
    )


def positive(cell: dict[str, Any] | None) -> Mark:
    """Whether a difference is above zero by the rule over seeds, and by a digit that is shown."""
    if cell is None:
        return "within noise"
    values = list(cell.get("by_seed", {}).values())
    if len(values) < 2:
        return "within noise"
    margin = max(2 * cell["standard_error"], 10 ** -cell["digits"])
    if min(values) > 0 and cell["value"] > margin:
        return "holds"
    return "does not hold" if max(values) < 0 and cell["value"] < -margin else "within noise"


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


def longer(one: dict[str, Any], other: dict[str, Any]) -> Mark:
    """Whether one length is above another beyond the 95 % intervals of both."""
    low, high = one.get("low", one["value"]), one.get("high", one["value"])
    if low > other.get("high", other["value"]):
        return "holds"
    return "does not hold" if high < other.get("low", other["value"]) else "within noise"


def interval(cell: dict[str, Any]) -> str:
    """`96 [80, 112]`."""
    value = f"{'≥ ' if cell.get('at_least') else ''}{cell['value']:,.0f}"
    return f"{value} [{cell['low']:,.0f}, {cell['high']:,.0f}]" if "low" in cell else value


def speed_grows(results: Results) -> Verdict:
    """State reuse is faster, and the more so the longer the attention."""
    rows = [
        row for section in results["sections"] for t in section["tables"] if t["id"] == "table_9" for row in t["rows"]
    ]
    marks: list[Mark] = []
    text = []
    for level in dict.fromkeys(row["arm"]["text"] for row in rows):
        ordered = sorted((row for row in rows if row["arm"]["text"] == level), key=lambda row: row["length"]["value"])
        cells = [row["hidden"] for row in ordered]
        marks.append("holds" if cells[0]["low"] > 1 else "does not hold" if cells[0]["high"] < 1 else "within noise")
        marks += [longer(cells[-1], cells[0])]
        marks += ["holds" if b["value"] > a["value"] else "within noise" for a, b in pairwise(cells)]
        text.append(f"{level}: " + ", ".join(f"{r['length']['value']:,} {interval(r['hidden'])} ×" for r in ordered))
    return all_of(marks), "; ".join(text)


def terms_look(results: Results) -> Verdict:
    """(a) is nearly uniform, (b) looks like the whole, (d) prefers near tokens and is flatter than the whole."""
    rows = rows_of(results, "figures_5_to_7")
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


def above(cell: dict[str, Any], limit: float) -> Mark:
    """Whether a mean over heads is above a limit by two standard errors."""
    margin = 2 * cell.get("standard_error", 0.0)
    return (
        "holds"
        if cell["value"] - margin > limit
        else "does not hold"
        if cell["value"] + margin < limit
        else "within noise"
    )


def apart(low: dict[str, Any], high: dict[str, Any]) -> Mark:
    """Whether one mean over heads is below another by two standard errors of the difference."""
    margin = 2 * math.hypot(low.get("standard_error", 0.0), high.get("standard_error", 0.0))
    if high["value"] - low["value"] > margin:
        return "holds"
    return "does not hold" if low["value"] - high["value"] > margin else "within noise"


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
        "Recurrence helps, also when both have their best attention length.",
        "Table 6: 26.77 with, 29.02 without",
        f"best losses of Table 6: {SEEDS_RULE}",
        ("table_6",),
        pairs("table_6", "best", [ON], [OFF]),
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
        "standard errors and a digit that is shown; holds if ours with recurrence gains and neither Shaw's nor the "
        "absolute encodings do; does not hold if one of those does or ours loses by as much; else, and with one seed, "
        "within noise",
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
        lambda results: without_dependencies(results),
    ),
    Claim(
        "recl_order",
        "Transformer-XL has the longest effective context.",
        "Table 8: 900 against 500 and 400; 700 against 400, 300 and 128 (r = 0.1)",
        "RECL at r = 0.1 in both groups: holds if Transformer-XL's 95 % interval over positions lies above that of "
        "every other model; does not hold if it lies below one; else within noise",
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
        f"means over heads, two standard errors apart: entropy of (a) above {NEARLY_UNIFORM} of the uniform's; (b) "
        "less distant from the whole than (a) and (d) are; mean distance of (d) below that of (a); entropy of (d) "
        "above the whole's. All must hold; does not hold if one is the other way round; else within noise",
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


def without_dependencies(results: Results) -> Verdict:
    """The first and the last row of Table 7."""
    rows = list(rows_of(results, "table_7").values())
    on, off = rows[0]["loss"], rows[-1]["loss"]
    return less(on, off), f"with {shown(on)}, without {shown(off)}"
