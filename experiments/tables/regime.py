"""What depends on the regime: the marks of earlier runs, and recurrence with another optimizer, memory or segment.

Paper: none of it; its models are trained for longer than a reproduction of this size can.
Runs: with and without recurrence, with Adam, with twice the memory, and with segments and memory twice as long, each on
as many tokens as the profile's own runs.
Writes: the marks of each claim by regime, the losses, and the differences.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from experiments.claims import CLAIMS
from experiments.engine.jobs import Job, Outcomes, composed
from experiments.engine.profiles import Setup
from experiments.report.sections import Section, Table, Text, cell, label, ours
from experiments.report.verdicts import SIGNS
from experiments.tables.arms import ADAM, Arm, Variant, kept, trainings
from experiments.tables.comparisons import compare, comparisons_table
from experiments.tables.length_sweep import OFF, ON, WINDOWS, Evaluations, evaluations, loss_cell, with_sweeps
from txl_lightning.config.schemas import Config

TITLE = "What depends on the regime"
PAPER = (
    "The paper's models are trained to the end: 400,000 steps of 60 segments, with Adam and a memory as long as a "
    "segment. A run of minutes is of another regime, and some marks depend on which."
)
THIS_RUN = "this run"
PAPERS_CLAIMS = CLAIMS[:10]
EARLIER: dict[str, str] = yaml.safe_load(Path(__file__).with_name("regimes.yaml").read_text("utf-8"))
LONGER_MEMORY = Variant(
    "memory twice as long", lambda config: (f"memory.mem_len={2 * config.memory.mem_len}",)
)  # the arm without recurrence is the profile's own
LONGER_SEGMENTS = Variant("segments twice as long", lambda config: (), segment=2.0)
PAIRS = {  # by the key of the difference, with recurrence and without
    "own": (ON, OFF),
    "adam": (Arm(variant=ADAM), Arm(False, variant=ADAM)),
    "longer_memory": (Arm(variant=LONGER_MEMORY), OFF),
    "longer_segments": (Arm(variant=LONGER_SEGMENTS), Arm(False, variant=LONGER_SEGMENTS)),
}


def jobs(setup: Setup) -> list[Job]:
    """Return every run and its evaluation."""
    return with_sweeps(_runs(setup), setup)


def section(setup: Setup, outcomes: Outcomes) -> Section:
    """Return the marks of earlier runs, and the losses and differences of this one; `with_marks` adds its marks."""
    runs = _runs(setup)
    found, unit = evaluations(runs, setup, outcomes), outcomes.unit
    differences = [
        compare(f"regime/{key}", on, off, "init", found, outcomes)
        for key, (on, off) in PAIRS.items()
        if on in runs and off in runs
    ]
    return Section(
        id="regime",
        title=TITLE,
        paper=PAPER,
        here=(
            "A regime: optimizer, steps × streams × tokens of a segment, tokens of the memory in training. Losses are "
            f"of the test split at training's lengths, without recurrence in {WINDOWS}; every regime of this run reads "
            "as many tokens."
        ),
        tables=(
            _marks_table(composed(runs[ON][0].overrides)),
            _losses_table(runs, found, unit),
            comparisons_table("regime", TITLE, unit, 3, differences),
        ),
    )


def with_marks(section: Section, claims: Sequence[Mapping[str, Any]]) -> Section:
    """Return the section with the marks of this run, which are judged after all sections are made."""
    marks = {claim["id"]: SIGNS[claim["mark"]] for claim in claims if claim["mark"]}
    if not section.tables:  # pending
        return section
    first, *others = section.tables
    row = {key: Text(marks[key]) if key in marks else found for key, found in first.rows[THIS_RUN].items()}
    return replace(section, tables=(replace(first, rows={**first.rows, THIS_RUN: row}), *others))


def _runs(setup: Setup) -> dict[Arm, list[Job]]:
    """Return the trainings of every arm; those with Adam unless it is the profile's own optimizer."""
    own = setup.config.optimizer.name
    arms = kept(dict.fromkeys(arm for pair in PAIRS.values() for arm in pair), setup)
    return {arm: trainings(arm, setup) for arm in arms if arm.variant != ADAM or own != "adam"}


def _regime(config: Config) -> str:
    sizes = f"{config.trainer.max_steps:,} × {config.data.batch_size} × {config.data.segment_len}"
    return f"{config.optimizer.name.capitalize()}, {sizes}, memory {config.memory.mem_len}"


def _marks_table(config: Config) -> Table:
    def mark_of(number: int) -> Callable[[tuple[str, list[str]]], str | None]:
        return lambda row: row[1][number] if row[1] else None

    rows = {regime: (regime, marks.split()) for regime, marks in EARLIER.items()}
    columns = {ours(claim.id, f"{i + 1}"): mark_of(i) for i, claim in enumerate(PAPERS_CLAIMS)}
    return Table.filled(
        "regime",
        "Marks of the paper's claims by regime",
        {**rows, THIS_RUN: (f"{THIS_RUN}: {_regime(config)}", [])},
        {label("arm", "regime"): lambda row: row[0], **columns},
        notes=(
            "; ".join(f"{i}: {claim.short}" for i, claim in enumerate(PAPERS_CLAIMS, 1)) + ".",
            "The earlier rows were judged by the rules of their time, on other versions of the text, with other seeds, "
            "intervals and parts of claims: they show which marks move, not why.",
        ),
    )


def _losses_table(runs: Mapping[Arm, list[Job]], found: Evaluations, unit: str) -> Table:
    def loss(arm: Arm) -> Any:
        return loss_cell(found[arm], unit) if arm in found else None

    return Table.filled(
        "regime_losses",
        "Test loss with and without recurrence by regime",
        {key: pair for key, pair in PAIRS.items() if pair[0] in found},
        {
            label("arm", "regime"): lambda pair: _regime(composed(runs[pair[0]][0].overrides)),
            ours("on", "with recurrence", unit): lambda pair: loss(pair[0]),
            ours("off", "without", unit): lambda pair: loss(pair[1]),
            ours("lr", "learning rate, with recurrence"): lambda pair: cell(
                composed(runs[pair[0]][0].overrides).optimizer.lr, 4
            ),
        },
    )
