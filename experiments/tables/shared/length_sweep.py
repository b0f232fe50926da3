"""Evaluation of every run: attention lengths swept on validation, test scored at two of them (Tables 6, 7 and 10)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from experiments.engine.jobs import Job, composed
from experiments.engine.outcomes import Outcomes
from experiments.engine.setup import Setup
from experiments.report.cells import DIGITS, Cell, over_seeds
from experiments.report.sections import Column, ours
from experiments.tables.arms import Arm, in_precision_of_training, memory_of_training
from txl_lightning.config.encoding_kinds import kind_named

WHOLE_SPLITS = "max_segments=1000000000"  # a run's own evaluation may be shorter
# `StateReuse` scores the last quarter of each window.
WINDOWS = "windows of that length, of which a token sees three quarters to all"
ON, OFF = Arm(), Arm(False)
IN_FIGURE = (ON, Arm(True, "shaw"), OFF, *(Arm(False, name, "half") for name in ("relative", "absolute", "al_rfou")))


@dataclass(frozen=True)
class LengthSweep:
    """Losses of one run at training's lengths (`init`) and at the best attention length, which validation chose.

    Args:
        init: test loss at training's lengths.
        best: test loss at the chosen length.
        valid_init: validation loss at training's lengths.
        valid_best: validation loss at the chosen length.
        length: shortest attention length that reaches the best on validation; None for a recurrent network.
        trained: attention length of training; None likewise.
        losses: validation loss by attention length, clamped at the longest trained distance.
        unclamped: validation loss by attention length without the clamp; empty where it was not measured.
        memory: test loss with a memory that training did not have; None where it was not measured.
        tolerance: largest loss above the best that counts as reaching it.
        tokens: scored tokens of the test split.
        limited: training's positions limit the attention length.
    """

    init: float
    best: float
    valid_init: float
    valid_best: float
    length: int | None
    trained: int | None
    losses: Mapping[int, float]
    unclamped: Mapping[int, float]
    memory: float | None
    tolerance: float | None
    tokens: int
    limited: bool


SweepsBySeed = dict[int, LengthSweep]


def sweep_job(arm: Arm, run: Job, setup: Setup) -> Job:
    """Return the job that evaluates a run: lengths on validation, then test at training's length and the best."""
    profile = setup.profile
    config = composed(run.overrides)
    whole = [] if any(word.startswith("max_segments=") for word in profile.evaluate) else [WHOLE_SPLITS]
    words = [
        f"checkpoint={run.checkpoint}",
        *(
            _same_tokens(word, config.evaluation.segment_len, setup)
            for word in in_precision_of_training(profile.evaluate, setup)
        ),
        *whole,
        "splits=[valid,test]",
        "select_on=valid",
        "losses=true",
    ]
    if not arm.baseline:
        # Lines in random order hold nothing that longer attention could find.
        lengths = [config.data.segment_len] if arm.corpus else profile.attention_lengths
        words.append(f"attention_lengths=[{','.join(map(str, lengths))}]")
    if run.seed == profile.seeds[0] and arm.encoding == "relative" and not arm.baseline and not arm.corpus:
        words += ["unclamped=true"] if arm in IN_FIGURE else []
        words += [] if arm.recurrence else [f"memory_at_evaluation={memory_of_training(setup)}"]
    return Job(f"{run.name}-lengths", "evaluate", tuple(words), run.arm, needs=(run.name,))


def validation_words(setup: Setup) -> str:
    """Name the part of validation at which attention lengths are compared."""
    limits = [word.partition("=")[2] for word in setup.profile.evaluate if word.startswith("sweep_tokens=")]
    return f"the first {int(limits[-1]):,} tokens of validation" if limits else "validation"


def standard_sweep_job(run: Job, lengths: Iterable[int], setup: Setup) -> Job:
    """Return the job that evaluates the standard model of Table 1 at the attention lengths of Table 6's last rows."""
    grid = f"attention_lengths=[{','.join(map(str, sorted(lengths)))}]"
    evaluate = in_precision_of_training(setup.profile.evaluate, setup)
    words = (f"checkpoint={run.checkpoint}", *evaluate, "splits=[valid,test]", "select_on=valid", grid)
    return Job(f"{run.name}-lengths", "evaluate", words, run.arm, needs=(run.name,))


def _same_tokens(word: str, segment_len: int, setup: Setup) -> str:
    """Return `max_segments=N`, given in segments of the profile, for segments of another length; others unchanged."""
    option, _, value = word.partition("=")
    if option != "max_segments":
        return word
    own = composed((f"profile={setup.profile.name}", *setup.overrides)).evaluation.segment_len
    return f"max_segments={max(1, int(value) * own // segment_len)}"


def with_sweeps(arm: Arm, runs: Sequence[Job], setup: Setup) -> list[Job]:
    """Return every run of an arm, each followed by its evaluation."""
    return [job for run in runs for job in (run, sweep_job(arm, run, setup))]


def sweeps_by_seed(arm: Arm, runs: Sequence[Job], setup: Setup, outcomes: Outcomes) -> SweepsBySeed:
    """Return the evaluations of one arm's runs."""
    return {run.seed: _sweep(arm, run, setup, outcomes) for run in runs if run.seed is not None}


def _sweep(arm: Arm, run: Job, setup: Setup, outcomes: Outcomes) -> LengthSweep:
    found = outcomes.result(sweep_job(arm, run, setup), "evaluation.json")
    unit = outcomes.training(run).unit
    valid, test = found["valid"], found["test"]
    selected, swept = test["selected"], valid.get("sweep") or {}
    memory = test.get("memory_at_evaluation")
    return LengthSweep(
        init=selected["init"][unit],
        best=selected["best"][unit],
        valid_init=(swept.get("init") or valid)[unit],
        valid_best=(swept.get("best") or valid)[unit],
        length=swept.get("attention_length"),
        trained=selected["init"]["attention_length"],
        losses=_by_length(swept.get("lengths"), unit),
        unclamped=_by_length(swept.get("unclamped"), unit),
        memory=memory[unit] if memory else None,
        tolerance=swept.get("tolerance"),
        tokens=selected["init"]["tokens"],
        limited=arm.baseline is None and kind_named(arm.encoding).absolute,
    )


def _by_length(rows: Sequence[Mapping[str, float]] | None, unit: str) -> dict[int, float]:
    return {int(row["attention_length"]): row[unit] for row in rows or ()}


def columns(unit: str) -> tuple[Column, ...]:
    """Columns of `cells`."""
    return (
        ours("init", "test, init", unit),
        ours("best", "test, best", unit),
        ours("length", "attention length", "tokens"),
        ours("valid_init", "validation, init", unit),
        ours("valid_best", "validation, best", unit),
    )


def cells(sweeps: SweepsBySeed, unit: str) -> dict[str, Cell]:
    """Return both losses on both splits, and the shortest attention length that reaches the best."""
    losses = {
        name: over_seeds({seed: getattr(sweep, name) for seed, sweep in sweeps.items()}, DIGITS[unit])
        for name in ("init", "best", "valid_init", "valid_best")
    }
    lengths = {seed: sweep.length for seed, sweep in sweeps.items() if sweep.length is not None}
    return {**losses, "length": over_seeds(lengths, 0) if lengths else None}


def memory_cell(sweeps: SweepsBySeed, unit: str) -> Cell:
    """Return the loss with a memory at evaluation only; empty where it was not measured."""
    found = {seed: sweep.memory for seed, sweep in sweeps.items() if sweep.memory is not None}
    return over_seeds(found, DIGITS[unit]) if found else None
