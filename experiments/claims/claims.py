"""Claims of the paper, each judged by a rule from the tables of the report and nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from experiments.claims.verdicts import (
    NEARLY_UNIFORM,
    Judge,
    half_loss_is_better,
    longest_context,
    lower_loss,
    only_ours_gains,
    speed_up_grows,
    terms_look_as_described,
)
from experiments.report.sections import Section
from experiments.tables.arms import Arm

SEEDS_RULE = (
    "holds if every seed of the one is better than every seed of the other and their means differ by more than two "
    "standard errors of the difference; does not hold if the reverse is true; otherwise, and with fewer than two "
    "seeds, within noise. Two seeds are weak evidence: where there is no difference, about one comparison in ten is "
    "still marked"
)
ON, OFF = Arm(), Arm(False)


@dataclass(frozen=True)
class Claim:
    """Claim of the paper.

    Args:
        id: unique.
        claim: in a sentence.
        paper: its place and numbers in the paper.
        rule: condition for each mark, in words.
        tables: ids of the tables it is judged from.
        judge: applies the rule.
    """

    id: str
    claim: str
    paper: str
    rule: str
    tables: tuple[str, ...]
    judge: Judge


def judged(sections: Sequence[Section]) -> list[dict[str, Any]]:
    """Return the claims whose tables are in the report, with their verdicts, as `results.json` has them."""
    tables = {table.id: table for section in sections for table in section.tables}
    found = []
    for claim in CLAIMS:
        if all(name in tables and tables[name].rows for name in claim.tables):
            verdict = claim.judge(tables)
            stated = {"id": claim.id, "claim": claim.claim, "paper": claim.paper, "rule": claim.rule}
            found.append({**stated, **vars(verdict), "tables": list(claim.tables)})
    return found


CLAIMS = [
    Claim(
        "recurrence_helps",
        "Recurrence helps.",
        "Table 6: 27.02 with, 29.59 without, at training's lengths",
        f"losses at training's lengths (init) in Table 6: {SEEDS_RULE}",
        ("table_6",),
        lower_loss("table_6", "init", [(ON, OFF)]),
    ),
    Claim(
        "recurrence_helps_at_the_best_lengths",
        "Recurrence helps even if the model without it may attend farther at evaluation.",
        "Table 6: 26.77 with, 29.02 without, each at its best attention length",
        f"best losses of Table 6: {SEEDS_RULE}",
        ("table_6",),
        lower_loss("table_6", "best", [(ON, OFF)]),
    ),
    Claim(
        "recurrence_beats_longer_segments",
        "Recurrence is a better use of memory than longer segments.",
        "Table 10: 26.77 with, 27.98 without on segments of 176 instead of 128 (full loss)",
        f"best losses of Table 10, full loss: {SEEDS_RULE}",
        ("table_10",),
        lower_loss("table_10", "best", [(ON, Arm(False, longer=True))]),
    ),
    Claim(
        "our_encoding_is_better",
        "The relative encoding of the paper is better than Shaw's and than absolute ones.",
        "Table 6: 26.77 against 27.94 with recurrence; 30.10 against 30.50, 30.97 and 31.16 without, half loss",
        f"best losses of Table 6, pair by pair: {SEEDS_RULE}; all pairs must hold",
        ("table_6",),
        lower_loss(
            "table_6",
            "best",
            [
                (ON, Arm(True, "shaw")),
                *((Arm(False, loss="half"), Arm(False, name, "half")) for name in ("shaw", "absolute", "al_rfou")),
            ],
        ),
    ),
    Claim(
        "only_ours_gains_from_longer_attention",
        "Only the relative encoding of the paper gains from longer attention at evaluation than in training.",
        "Table 6: 27.02 to 26.77 at 500; Shaw 27.94, absolute ones unchanged",
        "gain beyond training's length in Table 6: a row gains if every seed does, and the mean gain exceeds two "
        "standard errors and one shown digit; holds if ours with recurrence gains, and gains more than every other "
        "row that can attend farther (by the rule over seeds); does not hold if another row gains or ours loses by as "
        "much; otherwise, and with one seed, within noise. Absolute encodings cannot attend farther than in training",
        ("table_6",),
        only_ours_gains,
    ),
    Claim(
        "half_loss_rescues_absolute_encodings",
        "Absolute encodings need the half loss.",
        "Section 4.2: they only work well with it (Table 6 has no row without)",
        f"losses at training's lengths, half against full loss of the same encoding: {SEEDS_RULE}; both encodings must "
        "hold",
        ("table_6", "table_6_full_loss"),
        half_loss_is_better,
    ),
    Claim(
        "recurrence_helps_without_long_dependencies",
        "Recurrence helps even where there are no long dependencies.",
        "Table 7: 25.2 with, 27.1 without",
        f"losses of Table 7: {SEEDS_RULE}",
        ("table_7",),
        lower_loss("table_7", "loss", [(ON, OFF)]),
    ),
    Claim(
        "recl_order",
        "Transformer-XL has the longest effective context.",
        "Table 8: 900 against 500 and 400; 700 against 400, 300 and 128 (r = 0.1)",
        "RECL at r = 0.1 in both groups, of one trained model each: holds if Transformer-XL's 95 % interval over "
        "positions is above that of every other model; does not hold if it is below one; otherwise within noise",
        ("table_8",),
        longest_context,
    ),
    Claim(
        "speed_up_grows",
        "State reuse makes evaluation faster, by a larger factor the longer the attention.",
        "Table 9: 363 times at 800, 1,874 times at 3,800",
        "vanilla / hidden states: holds if the lowest ratio at the shortest length is above 1, every median is above "
        "the one before, and all rounds of the longest length are above all of the shortest; does not hold if they are "
        "below; otherwise within noise",
        ("table_9",),
        speed_up_grows,
    ),
    Claim(
        "terms_look_as_described",
        "Term (a) alone is nearly uniform, (b) looks like the whole, (d) prefers near tokens but is flatter.",
        "Figure 7",
        f"of one trained model; means over heads, two standard errors apart: entropy of (a) above {NEARLY_UNIFORM} of "
        "the uniform's; (b) nearer to all terms than (a) and (d) are; mean distance of (d) below that of (a); entropy "
        "of (d) above that of all terms. All must hold; does not hold if one is reversed; otherwise within noise",
        ("figures_5_to_7",),
        terms_look_as_described,
    ),
]
