"""Evaluate every run: sweep attention lengths on validation, score test at two lengths (Tables 6, 7 and 10)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

from experiments.arms import Arm, in_precision_of_training, trainings
from experiments.engine.jobs import Job, Outcomes, composed
from experiments.engine.profiles import Setup
from experiments.paper import Table6Row
from experiments.sections import DIGITS, Cell, Column, Number, cell, over_seeds

WHOLE_SPLITS = "max_segments=1000000000"  # a run's own evaluation may be shorter
WINDOWS = "windows of that length, where every scored token sees at least three quarters"
INIT = "training’s lengths"  # attention length, in column heads
BEST = "best length"
ENDING = "-lengths"  # ends an evaluation's name, after its run's
At = Literal["init", "best", "longer"]
"""Attention length of a test loss: training's, the one with the best validation loss, or the longer of both."""


@dataclass(frozen=True)
class Evaluation:
    """One run's evaluation.

    Args:
        seed: the run's seed.
        folder: where the evaluation is.
        content: its `evaluation.json`.
    """

    seed: int
    folder: Path
    content: dict[str, Any]

    def validations(self) -> dict[int, float]:
        """Return validation losses during training in nats, by training tokens."""
        run = self.folder.with_name(self.folder.name.removesuffix(ENDING))
        losses = {}
        for line in (run / "validation.jsonl").read_text().splitlines():
            row = json.loads(line)
            losses[row["tokens"]] = row["val/nll"]
        return losses

    def test(self, at: At) -> dict[str, Any]:
        """Return the test losses at an attention length."""
        if at == "longer":
            at = "best" if self.chose_longer else "init"
        values = self.content["test"]
        alone = {**values, "attention_length": None}  # a model without attention lengths
        return values.get("selected", {}).get(at, alone)

    def losses(self, at: At) -> Path:
        """Return the file with the test tokens' losses."""
        return self.folder / str(self.test(at)["losses"])

    @property
    def chose_longer(self) -> bool:
        """Whether validation chose a longer attention than training's."""
        best = self.test("best")["attention_length"] or 0
        return best > (self.test("init")["attention_length"] or 0)


Runs: TypeAlias = Mapping[Arm, Sequence[Job]]
"""Trainings of each arm."""
Evaluations: TypeAlias = Mapping[Arm, Sequence[Evaluation]]
"""Evaluations of the runs of each arm; an arm without any is missing."""


def evaluation_job(arm: Arm, run: Job, setup: Setup) -> Job:
    """Return the job that evaluates a run: lengths on validation, then test at training's length and the best."""
    words = [
        f"checkpoint={run.checkpoint}",
        WHOLE_SPLITS,
        *in_precision_of_training(setup.profile.evaluate, setup),
        "losses=true",
    ]
    if arm.baseline:  # recurrent models have no attention length
        words = [word for word in words if not word.startswith("sweep_tokens=")]
    else:
        lengths = setup.profile.attention_lengths
        if arm.corpus:  # lines in random order hold nothing that longer attention could find
            lengths = [composed(run.overrides).data.segment_len]
        words.append(f"attention_lengths=[{','.join(map(str, lengths))}]")
    return Job(
        f"{run.name}{ENDING}",
        "evaluate",
        tuple(words),
        run.arm,
        needs=(run.name,),
    )


def runs_of(arms: Iterable[Arm], setup: Setup) -> Runs:
    """Return the trainings for all arms that the profile trains."""
    runs = {arm: trainings(arm, setup) for arm in arms}
    return {arm: of_arm for arm, of_arm in runs.items() if of_arm}


def with_evaluations(runs: Runs, setup: Setup) -> list[Job]:
    """Return every arm's runs, each followed by its evaluation."""
    jobs = []
    for arm, of_arm in runs.items():
        for run in of_arm:
            jobs += [run, evaluation_job(arm, run, setup)]
    return jobs


def read_evaluations(runs: Runs, outcomes: Outcomes) -> Evaluations:
    """Read the evaluations that are finished."""
    evaluated = {}
    for arm, of_arm in runs.items():
        evaluations = _evaluations_of(of_arm, outcomes)
        if evaluations:
            evaluated[arm] = evaluations
    return evaluated


def all_evaluations(outcomes: Outcomes) -> list[list[Evaluation]]:
    """Read a reproduction's finished evaluations, by arm."""
    runs: dict[str, list[Job]] = {}
    for job in outcomes.jobs:
        if job.command == "train":
            runs.setdefault(job.arm, []).append(job)
    by_arm = [_evaluations_of(of_arm, outcomes) for of_arm in runs.values()]
    return [evaluations for evaluations in by_arm if evaluations]


def _evaluations_of(runs: Sequence[Job], outcomes: Outcomes) -> list[Evaluation]:
    """Read some runs' finished evaluations; a training without its weights runs again."""
    evaluations = []
    for run in runs:
        name = f"{run.name}{ENDING}"
        if {run.name, name} <= outcomes.finished:
            folder = outcomes.runs / name
            content = json.loads((folder / "evaluation.json").read_text())
            evaluations.append(
                Evaluation(
                    run.seed or 0,
                    folder,
                    content,
                )
            )
    return evaluations


def loss_cell(evaluations: Sequence[Evaluation], unit: str, at: At = "init") -> Number:
    """Return the test loss for one arm's runs."""
    losses = {evaluation.seed: evaluation.test(at)[unit] for evaluation in evaluations}
    return over_seeds(losses, DIGITS[unit])


def loss_columns(unit: str) -> list[Column]:
    """Return the columns for `loss_cells`."""
    return [
        Column("label", "arm"),
        Column("ours", "seeds", "seeds"),
        Column("ours", "init", f"test loss, {INIT}", unit),
        Column("ours", "best", f"test loss, {BEST}", unit),
        Column("ours", "bpb", f"test loss, {INIT}", "bpb"),
        Column("ours", "length", "best attention length", "tokens"),
    ]


def loss_cells(arm: Arm, evaluated: Evaluations, unit: str) -> dict[str, Cell]:
    """Return cells for an arm's test losses, and for the shortest attention length that is best."""
    evaluations = evaluated.get(arm)
    if not evaluations:
        return {"arm": arm.title}
    cells: dict[str, Cell] = {
        "arm": arm.title,
        "seeds": ", ".join(str(evaluation.seed) for evaluation in evaluations),
        "init": loss_cell(evaluations, unit, "init"),
        "best": loss_cell(evaluations, unit, "best"),
    }
    if "bpb" in evaluations[0].test("init"):
        cells["bpb"] = loss_cell(evaluations, "bpb")
    lengths = {str(one.seed): one.test("best")["attention_length"] for one in evaluations}
    if None not in lengths.values():
        mean = sum(lengths.values()) / len(lengths)
        cells["length"] = Number(mean, 0, by_seed=lengths)
    return cells


PAPER_COLUMNS = (
    Column("paper", "paper_init", f"loss, {INIT}", "ppl"),
    Column("paper", "paper_best", f"loss, {BEST}", "ppl"),
    Column("paper", "paper_length", "best attention length", "tokens"),
)


def paper_cells(row: Table6Row) -> dict[str, Cell]:
    """Return the paper's cells for a row in Table 6 or 10."""
    return {
        "paper_init": cell(row.ppl_init, 2),
        "paper_best": cell(row.ppl_best, 2),
        "paper_length": cell(row.attention_length, 0),
    }
