"""Evaluation of a trained model at a grid of attention lengths, for Tables 6 and 10."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from experiments.engine.jobs import Job, composed
from experiments.engine.outcomes import Outcomes
from experiments.engine.setup import Setup
from experiments.report.cells import DIGITS, Cell, over_seeds
from experiments.report.sections import Column, ours
from experiments.tables.arms import evaluation_segments
from txl_lightning.config.encoding_kinds import kind_named


@dataclass(frozen=True)
class LengthSweep:
    """Test loss of one run at several attention lengths.

    Args:
        init: loss at training's lengths; with the half loss and no recurrence, of the trained half.
        trained: attention length of training, in tokens.
        losses: by attention length.
        tolerance: largest loss above the best that counts as reaching it.
        tokens: scored tokens.
        limit: longest attention that the model can have; None for no limit.
    """

    init: float
    trained: int
    losses: dict[int, float]
    tolerance: float
    tokens: int
    limit: int | None

    @property
    def best(self) -> float:
        """Lowest loss of all."""
        return min([self.init, *self.losses.values()])

    @property
    def attention_length(self) -> int:
        """Shortest attention length that reaches the best loss."""
        points = [(self.trained, self.init), *self.losses.items()]
        return min(length for length, loss in points if loss <= self.best + self.tolerance)

    @property
    def gain_beyond_training(self) -> float | None:
        """Best loss at lengths up to training's minus the best at longer ones; None without longer ones."""
        known = [self.init, *(loss for length, loss in self.losses.items() if length <= self.trained)]
        longer = [loss for length, loss in self.losses.items() if length > self.trained]
        return min(known) - min(longer) if longer else None


SweepsBySeed = dict[int, LengthSweep]


def sweep_job(run: Job, setup: Setup) -> Job:
    """Return the job that evaluates a run at the profile's attention lengths."""
    config = composed(run.overrides)
    lengths = f"attention_lengths=[{','.join(map(str, setup.profile.attention_lengths))}]"
    words = [f"checkpoint={run.checkpoint}", *setup.profile.evaluate, lengths]
    if config.evaluation.ext_len and not kind_named(config.encoding.name).absolute:
        # Distances reach any length: use memory and whole segments instead of extended context.
        segments = evaluation_segments(config.data.segment_len, config)
        words += ["ext_len=0", *(word.removeprefix("evaluation.") for word in segments)]
    return Job(f"{run.name}-lengths", "evaluate", tuple(words), run.arm, needs=(run.name,))


def with_sweeps(runs: Sequence[Job], setup: Setup) -> list[Job]:
    """Return every run, each followed by its sweep."""
    return [job for run in runs for job in (run, sweep_job(run, setup))]


def sweeps_by_seed(runs: Sequence[Job], setup: Setup, outcomes: Outcomes) -> SweepsBySeed:
    """Return the sweeps of one arm's runs."""
    return {run.seed: _sweep(run, setup, outcomes) for run in runs if run.seed is not None}


def _sweep(run: Job, setup: Setup, outcomes: Outcomes) -> LengthSweep:
    found = outcomes.result(sweep_job(run, setup), "evaluation.json")["test"]
    swept = found["sweep"]
    return LengthSweep(
        init=outcomes.training(run).loss(),
        trained=swept["init"]["attention_length"],
        losses={row["attention_length"]: row[swept["unit"]] for row in swept["lengths"]},
        tolerance=swept["tolerance"],
        tokens=found["tokens"],
        limit=swept["limit"],
    )


def columns(unit: str) -> tuple[Column, ...]:
    """Columns of `cells`."""
    return (
        ours("init", "init", unit),
        ours("best", "best", unit),
        ours("length", "attention length", "tokens"),
    )


def cells(sweeps: SweepsBySeed, unit: str) -> dict[str, Cell]:
    """Return loss at training's lengths, best loss and the shortest attention length that reaches it."""
    return {
        "init": over_seeds({seed: sweep.init for seed, sweep in sweeps.items()}, DIGITS[unit]),
        "best": over_seeds({seed: sweep.best for seed, sweep in sweeps.items()}, DIGITS[unit]),
        "length": over_seeds({seed: sweep.attention_length for seed, sweep in sweeps.items()}, 0),
    }


def gain_cell(sweeps: SweepsBySeed, unit: str) -> Cell:
    """Return the gain beyond training's attention length; empty for a model that cannot attend farther."""
    gains = {seed: sweep.gain_beyond_training for seed, sweep in sweeps.items()}
    found = {seed: gain for seed, gain in gains.items() if gain is not None}
    return over_seeds(found, DIGITS[unit]) if found else None
