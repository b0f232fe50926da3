"""Evaluation of every run: attention lengths swept on validation, test scored at two of them (Tables 6, 7 and 10)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from experiments.engine.jobs import Job, Outcomes, Pending, composed
from experiments.engine.profiles import Setup
from experiments.report.sections import DIGITS, Cell, Column, Number, ours, over_seeds
from experiments.tables.arms import Arm, in_precision_of_training, memory_of_training
from txl_lightning.config.schemas import Config

WHOLE_SPLITS = "max_segments=1000000000"  # a run's own evaluation may be shorter
# `StateReuse` scores the last quarter of each window.
WINDOWS = "windows of that length, of which every scored token sees at least three quarters"
ON, OFF = Arm(), Arm(False)
IN_FIGURE = (ON, Arm(True, "shaw"), OFF, *(Arm(False, name, "half") for name in ("relative", "absolute", "al_rfou")))
At = Literal["init", "best"]


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
        valid = self.found["valid"]
        swept: dict[str, Any] = valid["sweep"] or valid["selected"]
        return swept

    def test(self, at: At) -> dict[str, Any]:
        """Return the test losses at training's lengths (`init`) or at the length chosen on validation (`best`)."""
        selected: dict[str, Any] = self.found["test"]["selected"][at]
        return selected

    def losses(self, at: At) -> Path:
        """Return the file with the losses of the test tokens."""
        return self.folder / str(self.test(at)["losses"])

    @property
    def chose_longer(self) -> bool:
        """Whether validation chose a longer attention than training's."""
        return (self.test("best")["attention_length"] or 0) > (self.test("init")["attention_length"] or 0)


Evaluations = Mapping[Arm, Sequence[Evaluation]]
"""Evaluations of the runs of each arm."""


def sweep_job(arm: Arm, run: Job, setup: Setup) -> Job:
    """Return the job that evaluates a run: lengths on validation, then test at training's length and the best."""
    profile = setup.profile
    config = composed(run.overrides)
    whole = [] if any(word.startswith("max_segments=") for word in profile.evaluate) else [WHOLE_SPLITS]
    given = in_precision_of_training(profile.evaluate, setup)
    if arm.corpus and arm.corpus.max_tokens:
        stated = dict(word.split("=", 1) for word in given)
        segment = int(stated.get("batch_size", config.evaluation.batch_size)) * setup.config.evaluation.segment_len
        n = max(1, arm.corpus.max_tokens // segment)
        given = (*given, f"max_segments={min(n, int(stated.get('max_segments', n)))}")
        whole = []
    words = [f"checkpoint={run.checkpoint}", *(_same_tokens(word, config, setup) for word in given), *whole]
    words += ["splits=[valid,test]", "select_on=valid", "losses=true"]
    if not arm.baseline and not config.memory.n_tokens:  # those have no number of keys
        # Lines in random order hold nothing that longer attention could find.
        shuffled = arm.corpus and arm.corpus.max_tokens is None
        lengths = [config.data.segment_len] if shuffled else profile.attention_lengths
        words.append(f"attention_lengths=[{','.join(map(str, lengths))}]")
    if run.seed == profile.seeds[0] and arm.encoding == "relative" and not arm.baseline and not arm.corpus:
        words += ["unclamped=true"] if arm in IN_FIGURE else []
        words += [] if arm.recurrence else [f"memory_at_evaluation={memory_of_training(setup)}"]
    return Job(f"{run.name}-lengths", "evaluate", tuple(words), run.arm, needs=(run.name,))


def _same_tokens(word: str, config: Config, setup: Setup) -> str:
    """Return `max_segments=N`, given in segments of the profile, for segments of another length; others unchanged."""
    option, _, value = word.partition("=")
    if option != "max_segments":
        return word
    n_tokens = int(value) * setup.config.evaluation.segment_len
    return f"max_segments={max(1, n_tokens // config.evaluation.segment_len)}"


def with_sweeps(runs: Mapping[Arm, Sequence[Job]], setup: Setup) -> list[Job]:
    """Return every run of every arm, each followed by its evaluation."""
    return [job for arm, arm_runs in runs.items() for run in arm_runs for job in (run, sweep_job(arm, run, setup))]


class _Finished(dict[Arm, list[Evaluation]]):
    """Finished evaluations; a section that needs an arm without one is pending."""

    def __missing__(self, arm: Arm) -> list[Evaluation]:
        raise Pending(arm.title)


def evaluations(runs: Mapping[Arm, Sequence[Job]], setup: Setup, outcomes: Outcomes) -> dict[Arm, list[Evaluation]]:
    """Read the evaluations that are finished; an arm without one is left out, and looking it up raises `Pending`."""
    found = _Finished()
    for arm, arm_runs in runs.items():
        for run in arm_runs:
            if outcomes.has(job := sweep_job(arm, run, setup)):
                found.setdefault(arm, []).append(evaluation(job, outcomes, run.seed or 0))
    return found


def evaluation(job: Job, outcomes: Outcomes, seed: int = 0) -> Evaluation:
    """Read the evaluation of one run."""
    return Evaluation(seed, outcomes.runs / job.name, outcomes.result(job, "evaluation.json"))


def loss_columns(evaluated: Evaluations, unit: str) -> dict[Column, Callable[[Arm], Cell]]:
    """Return the columns of an arm's losses on both splits, and of the shortest attention length that is best."""

    def length(arm: Arm) -> Number | None:
        lengths = {run.seed: run.sweep["attention_length"] for run in evaluated[arm]}
        return None if None in lengths.values() else over_seeds(lengths, 0, spread=False)

    def swept(arm: Arm, at: At) -> Number:
        return over_seeds({run.seed: run.sweep[at][unit] for run in evaluated[arm]}, DIGITS[unit])

    return {
        ours("init", "test, init", unit): lambda arm: loss_cell(evaluated[arm], unit, "init"),
        ours("best", "test, best", unit): lambda arm: loss_cell(evaluated[arm], unit, "best"),
        ours("length", "attention length", "tokens"): length,
        ours("valid_init", "validation, init", unit): lambda arm: swept(arm, "init"),
        ours("valid_best", "validation, best", unit): lambda arm: swept(arm, "best"),
    }


def loss_cell(found: Sequence[Evaluation], unit: str, at: At = "init") -> Number:
    """Return the test loss of one arm's runs."""
    return over_seeds({one.seed: one.test(at)[unit] for one in found}, DIGITS[unit])
