"""Evaluation of every run: attention lengths swept on validation, test scored at two of them (Tables 6, 7 and 10)."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from experiments.arms import Arm, in_precision_of_training, kept, trainings
from experiments.engine.jobs import Job, Outcomes, Pending, composed
from experiments.engine.profiles import Setup
from experiments.paper import Table6Row
from experiments.sections import DIGITS, Cell, Column, Number, cell, label, ours, over_seeds, paper

WHOLE_SPLITS = "max_segments=1000000000"  # a run's own evaluation may be shorter
WINDOWS = "windows of that length, of which every scored token sees at least three quarters"
INIT, BEST = "training’s lengths", "best length"  # of attention, in the heads of columns
ENDING = "-lengths"  # of the name of an evaluation, after that of its run
At = Literal["init", "best"]
"""Attention length of a test loss: training's, or the one with the best validation loss."""


@dataclass(frozen=True)
class Evaluation:
    """Evaluation of one run.

    Args:
        seed: of the run.
        folder: of the evaluation.
        found: content of its `evaluation.json`.
    """

    seed: int
    folder: Path
    found: dict[str, Any]

    @property
    def sweep(self) -> dict[str, Any]:
        """Losses on validation by attention length; at training's lengths alone where a model has no such length."""
        return self.found["valid"]["sweep"] or self.found["valid"]["selected"]

    @property
    def validations(self) -> dict[int, float]:
        """Validation losses during training in nats, by tokens of training."""
        path = self.folder.with_name(self.folder.name.removesuffix(ENDING)) / "validation.jsonl"
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        return {row["tokens"]: row["val/nll"] for row in rows}

    def test(self, at: At) -> dict[str, Any]:
        """Return the test losses at training's lengths or at the length chosen on validation."""
        return self.found["test"]["selected"][at]

    def losses(self, at: At) -> Path:
        """Return the file with the losses of the test tokens."""
        return self.folder / str(self.test(at)["losses"])

    @property
    def chose_longer(self) -> bool:
        """Whether validation chose a longer attention than training's."""
        return (self.test("best")["attention_length"] or 0) > (self.test("init")["attention_length"] or 0)


Runs = Mapping[Arm, Sequence[Job]]
"""Trainings of each arm."""


class Evaluations(dict[Arm, list[Evaluation]]):
    """Evaluations of the runs of each arm; one without any is pending."""

    def __missing__(self, arm: Arm) -> list[Evaluation]:
        raise Pending(arm.title)


def evaluation_job(arm: Arm, run: Job, setup: Setup, lengths: Sequence[int] = ()) -> Job:
    """Return the job that evaluates a run: lengths on validation, then test at training's length and the best.

    Args:
        arm: of the run.
        run: a training.
        setup: settings.
        lengths: of attention; without any those of the profile.
    """
    profile, config = setup.profile, composed(run.overrides)
    words = [f"checkpoint={run.checkpoint}", WHOLE_SPLITS, *in_precision_of_training(profile.evaluate, setup)]
    words += ["splits=[valid,test]", "select_on=valid", "losses=true"]
    if not arm.baseline:  # those have no number of keys
        # Lines in random order hold nothing that longer attention could find.
        lengths = lengths or ([config.data.segment_len] if arm.corpus else profile.attention_lengths)
        words.append(f"attention_lengths=[{','.join(map(str, lengths))}]")
    return Job(f"{run.name}{ENDING}", "evaluate", tuple(words), run.arm, needs=(run.name,))


def runs_of(arms: Iterable[Arm], setup: Setup) -> Runs:
    """Return the trainings of those arms of which the profile trains a seed."""
    return {arm: trainings(arm, setup) for arm in kept(arms, setup)}


def with_evaluations(runs: Runs, setup: Setup) -> list[Job]:
    """Return every run of every arm, each followed by its evaluation."""
    return [job for arm in runs for run in runs[arm] for job in (run, evaluation_job(arm, run, setup))]


def evaluations(runs: Runs, setup: Setup, outcomes: Outcomes) -> Evaluations:
    """Read the evaluations that are finished."""
    found = Evaluations()
    for arm, of_arm in runs.items():
        for run in of_arm:
            job = evaluation_job(arm, run, setup)
            if outcomes.has(job) and outcomes.has(run):  # its weights may be lost, and the training run again
                result = outcomes.result(job, "evaluation.json")
                found.setdefault(arm, []).append(Evaluation(run.seed or 0, outcomes.runs / job.name, result))
    return found


def trained_words(runs: Runs, outcomes: Outcomes) -> str:
    """Return corpus, size and length of the trainings in words."""
    if not any(outcomes.has(run) for of_arm in runs.values() for run in of_arm):
        return "no training is finished yet."
    metrics = outcomes.first(run for of_arm in runs.values() for run in of_arm)
    return f"{metrics['corpus']['name']}, {metrics['parameters']:,} parameters, {metrics['steps']:,} steps."


def all_evaluations(outcomes: Outcomes) -> list[list[Evaluation]]:
    """Read the finished evaluations of a reproduction, by arm."""
    found = defaultdict[str, list[Evaluation]](list)
    jobs = {job.name: job for job in outcomes.jobs}
    for job in outcomes.jobs:
        if "select_on=valid" in job.overrides and outcomes.has(job) and outcomes.has(run := jobs[job.needs[0]]):
            result = outcomes.result(job, "evaluation.json")
            found[job.arm].append(Evaluation(run.seed or 0, outcomes.runs / job.name, result))
    return list(found.values())


def loss_columns(
    evaluated: Evaluations, unit: str, rows: Mapping[Arm, Table6Row]
) -> dict[Column, Callable[[Arm], Cell]]:
    """Return the columns of an arm's losses on both splits, and of the shortest attention length that is best.

    Args:
        evaluated: evaluations of the arms.
        unit: of the losses.
        rows: the paper's; empty for no columns of them.
    """

    def length(arm: Arm) -> Number | None:
        lengths = {run.seed: run.sweep["attention_length"] for run in evaluated[arm]}
        return None if None in lengths.values() else over_seeds(lengths, 0, spread=False)

    def swept(arm: Arm, at: At) -> Number:
        return over_seeds({run.seed: run.sweep[at][unit] for run in evaluated[arm]}, DIGITS[unit])

    theirs: dict[Column, Callable[[Arm], Cell]] = {
        paper("paper_init", f"loss, {INIT}", "ppl"): lambda arm: cell(rows[arm].ppl_init, 2),
        paper("paper_best", f"loss, {BEST}", "ppl"): lambda arm: cell(rows[arm].ppl_best, 2),
        paper("paper_length", "best attention length", "tokens"): lambda arm: cell(rows[arm].attention_length, 0),
    }
    return {
        label("arm"): lambda arm: arm.title,
        ours("seeds", "seeds"): lambda arm: ", ".join(str(run.seed) for run in evaluated[arm]),
        ours("init", f"test loss, {INIT}", unit): lambda arm: loss_cell(evaluated[arm], unit, "init"),
        ours("best", f"test loss, {BEST}", unit): lambda arm: loss_cell(evaluated[arm], unit, "best"),
        **bits_a_byte(evaluated),
        ours("length", "best attention length", "tokens"): length,
        ours("valid_init", f"validation loss, {INIT}", unit): lambda arm: swept(arm, "init"),
        ours("valid_best", f"validation loss, {BEST}", unit): lambda arm: swept(arm, "best"),
        **(theirs if rows else {}),
    }


def bits_a_byte(evaluated: Evaluations) -> dict[Column, Callable[[Arm], Cell]]:
    """Return the column of test losses in bits a byte at training's lengths, where the tokens are subwords."""
    if not evaluated or not all("bpb" in run.test("init") for runs in evaluated.values() for run in runs):
        return {}
    return {ours("bpb", f"test loss, {INIT}", "bits a byte"): lambda arm: loss_cell(evaluated[arm], "bpb")}


def loss_cell(found: Sequence[Evaluation], unit: str, at: At = "init") -> Number:
    """Return the test loss of one arm's runs."""
    return over_seeds({one.seed: one.test(at)[unit] for one in found}, DIGITS[unit])
