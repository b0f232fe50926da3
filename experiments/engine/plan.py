"""Plan of a reproduction: its jobs, an estimate of their time, and the progress while they run."""

from __future__ import annotations

import json
import os
import time
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import cached_property
from pathlib import Path
from typing import Any

from experiments.engine.jobs import Job, composed, corpus_checksum, keys, merge
from experiments.engine.outcomes import read_json
from experiments.engine.profiles import Profile
from experiments.engine.runner import Runner
from experiments.engine.setup import Setup, default_parallel, make_slots
from txl_lightning.config.schemas import TransformerXLModelConfig
from txl_lightning.errors import UserError
from txl_lightning.files import write_json
from txl_lightning.jobs.processes import Jobs
from txl_lightning.jobs.progress import Progress, clock
from txl_lightning.reporting.machine import cores
from txl_lightning.reporting.tables import markdown_table
from txl_lightning.training.curves import PROGRESS_FILE

COMMANDS_WITH_LOGGER = ("train", "evaluate", "recl", "attention", "speed")
SEEN = 0.1  # share of its steps from which a running training shows its speed
SAVE_EVERY_SECONDS = 5.0


@dataclass
class Estimate:
    """Estimated seconds of a job, from the trainings finished in this directory or else from the profile.

    Args:
        profile: source of `tokens_per_second` and `seconds`.
        runner: knows the runs of this directory.
    """

    profile: Profile
    runner: Runner

    def seconds(self, job: Job) -> float:
        """Return the wall-clock seconds of one job."""
        fixed = self.profile.seconds[job.command]
        if job.command != "train":
            return fixed
        return fixed + tokens_read(job) * token_cost(job, self.profile) / self.tokens_per_second

    @cached_property
    def tokens_per_second(self) -> float:
        """Median speed of the finished trainings, or the profile's if there is none."""
        rates = [rate for name in self.runner.keys if (rate := _speed(self.runner.runs / name))]
        return sorted(rates)[len(rates) // 2] if rates else self.profile.tokens_per_second

    @property
    def source(self) -> str:
        """Origin of `tokens_per_second`, in words."""
        measured_here = self.tokens_per_second != self.profile.tokens_per_second
        return "as the finished trainings here had" if measured_here else self.profile.measured


@dataclass(frozen=True)
class Plan:
    """Jobs of a reproduction and the runner for them.

    Args:
        setup: settings.
        jobs: all of them, each after the jobs it needs.
        runner: runs them; knows which are finished.
        parallel: jobs that run at once.
    """

    setup: Setup
    jobs: list[Job]
    runner: Runner
    parallel: int

    @property
    def estimate(self) -> Estimate:
        """Estimated time of each job."""
        return Estimate(self.setup.profile, self.runner)

    @property
    def cores_in_use(self) -> int:
        """Jobs that really run at once: more jobs than cores share the cores."""
        return min(self.parallel, cores())

    @property
    def finished(self) -> list[Job]:
        """Jobs that need not run again."""
        return [job for job in self.jobs if self.runner.is_finished(job)]

    def progress(self, jobs: Jobs[Job]) -> Progress[Job]:
        """Return the progress of running jobs, with steps and loss of each training."""
        return Progress(
            jobs,
            self.estimate.seconds,
            self.cores_in_use,
            describe=lambda job: training_progress(self.runner.folder(job).path),
            share=lambda job: training_share(self.runner.folder(job).path),
        )

    def summary(self) -> str:
        """Return one line: how many jobs there are, how many are finished, and where they write."""
        finished = self.finished
        stale = [job for job in self.jobs if job not in finished and self.runner.record(job).get("done")]
        rerun = (
            f" ({len(stale)} more had other settings, code or text, or a damaged result, and run again)"
            if stale
            else ""
        )
        return (
            f"profile {self.setup.profile.name}: {len(self.jobs)} jobs, {len(finished)} of them finished before"
            f"{rerun}, {self.parallel} at once, into {os.path.relpath(self.setup.directory)}"
        )

    def table(self) -> str:
        """Return every job with its sections, its state and its estimated time, and the sums, as Markdown."""
        estimate, finished, setup = self.estimate, self.finished, self.setup
        rows, left, left_alone = [], 0.0, 0.0
        for job in self.jobs:
            seconds = estimate.seconds(job)
            if job not in finished:
                left_alone, left = (left_alone + seconds, left) if job.alone else (left_alone, left + seconds)
            size = f"{tokens_read(job):,} tokens" if job.command == "train" else ""
            state = "finished" if job in finished else clock(seconds)
            rows.append([job.name, job.command, size, ", ".join(job.sections), state])
        trainings = [job for job in self.jobs if job.command == "train"]
        lines = [
            markdown_table(["job", "txl", "size", "used by", "time"], rows),
            f"profile {setup.profile.name}: {len(trainings)} trainings, {len(self.jobs) - len(trainings)} "
            f"measurements, {self.parallel} at once",
            f"left: about {clock(left / self.cores_in_use + left_alone)}, at {estimate.tokens_per_second:,.0f} "
            f"tokens/s of a training ({estimate.source})",
            *self._left_out(),
            f"needs: {setup.profile.needs}",
            f"into {setup.directory}",
            *(f"a training: txl {' '.join(job.words(setup.runs))}" for job in trainings[:1]),
        ]
        return "\n".join(lines)

    def _left_out(self) -> list[str]:
        """Line on the published models that are not planned."""
        setup = self.setup
        planned = {job.name for job in self.jobs}
        names = [name for name in setup.profile.main if f"published-{name}" not in planned]
        if "main_results" not in setup.sections or not names:
            return []
        return [f"not planned, because their corpora are not in data.root or TXL_DATA: {', '.join(names)}"]


def make_plan(setup: Setup, jobs_by_section: dict[str, list[Job]]) -> Plan:
    """Merge the jobs of all sections, identify each by what it depends on, and make the runner.

    Raises:
        UserError: a corpus is missing, or there are too few GPUs.
        Hydra's and OmegaConf's errors: an override is not allowed.
    """
    jobs = merge(jobs_by_section)
    parallel = setup.parallel or default_parallel(setup.profile)
    trainings = {job.name: composed(job.overrides_in(setup.runs)) for job in jobs if job.command == "train"}
    checksums = {name: corpus_checksum(config.data, setup.planning) for name, config in trainings.items()}
    # On CPU one thread for each job, however many run at once: the order of summation depends on the number of threads.
    threads = 1 if setup.profile.accelerator == "cpu" else max(1, cores() // parallel)
    runner = Runner(
        runs=setup.runs,
        keys=keys(jobs, checksums),
        slots=[{}] if setup.planning else make_slots(setup.profile, parallel),
        options=lambda job: _options(job, setup, cores() if job.alone else threads),
        prefix=setup.prefix,
    )
    return Plan(setup, jobs, runner, parallel)


def tokens_read(job: Job) -> int:
    """Return how many tokens a training reads."""
    config = composed(job.overrides)
    return config.trainer.max_steps * config.data.batch_size * config.data.segment_len


def token_cost(job: Job, profile: Profile) -> float:
    """Return how many times longer a training needs for a token than the profile's own model, by the layers' weights.

    Recurrent networks are counted as the profile's own model.
    """
    own, model = composed((f"profile={profile.name}",)).model, composed(job.overrides).model
    return _layer_weights(model) / _layer_weights(own) if isinstance(model, TransformerXLModelConfig) else 1.0


def _layer_weights(model: Any) -> int:
    attention = 5 * model.d_model * model.n_head * model.d_head
    matrices = 2 if model.feed_forward == "relu" else 3
    return int(model.n_layer * (attention + matrices * model.d_model * model.d_inner))


def _options(job: Job, setup: Setup, threads: int) -> list[str]:
    """Return overrides that change no number: threads, the progress file, the logger."""
    training = job.command == "train"
    words = [f"trainer.num_threads={threads}", "trainer.progress_file=true"] if training else [f"num_threads={threads}"]
    if setup.logger == "wandb" and job.command in COMMANDS_WITH_LOGGER:
        tags = ",".join((setup.profile.name, *job.sections))
        return [*words, "logger=wandb", f"logger.group={job.sections[0]}", f"logger.tags=[{tags}]"]
    return [*words, f"logger={setup.logger}"] if training else words


def _speed(run: Path) -> float | None:
    """Return the tokens/s of a finished training."""
    try:
        metrics = read_json(run / "metrics.json")
        return float(metrics["tokens"]) / float(metrics["seconds"])
    except (UserError, KeyError, ZeroDivisionError):
        return None


def training_progress(run: Path) -> str:
    """Return steps and loss of a training, such as `600/1500 bpc 2.610`, from its progress file; empty without one."""
    state = _training_state(run)
    if state is None:
        return ""
    loss = "" if state["loss"] is None else f" {state['unit']} {state['loss']:.3f}"
    return f"{state['steps']}/{state['max_steps']}{loss}"


def training_share(run: Path) -> tuple[float, float] | None:
    """Return the share of its steps that a training has done, and their seconds; None before it shows a speed."""
    state = _training_state(run)
    if state is None or state["steps"] < SEEN * state["max_steps"]:
        return None
    return state["steps"] / state["max_steps"], state["seconds"]


def _training_state(run: Path) -> dict[str, Any] | None:
    try:
        state: dict[str, Any] = json.loads((run / PROGRESS_FILE).read_text())
    except (OSError, ValueError):
        return None
    return state


class Stopwatch:
    """Wall-clock seconds inside `with`, summed in a file over all calls, interrupted and killed ones included.

    Args:
        path: file of the sum.
        restart: start from zero instead of continuing the sum in the file; so does a damaged file.

    Attributes:
        began: time of the first call, ISO 8601 in UTC.
    """

    def __init__(self, path: Path, restart: bool) -> None:
        self.path = path
        self.began, self._before = datetime.now(timezone.utc).isoformat(timespec="seconds"), 0.0
        if path.exists() and not restart:
            with suppress(ValueError, KeyError, TypeError):
                found = json.loads(path.read_text())
                self.began, self._before = str(found["began"]), float(found["seconds"])
        self._started = self._saved = time.perf_counter()

    def __enter__(self) -> Stopwatch:
        self._started = time.perf_counter()
        return self

    def __exit__(self, *error: object) -> None:
        self._save()

    @property
    def seconds(self) -> float:
        """Seconds of this call and the earlier ones."""
        return self._before + time.perf_counter() - self._started

    def tick(self) -> None:
        """Save every few seconds: a killed process cannot save at its end."""
        if time.perf_counter() - self._saved > SAVE_EVERY_SECONDS:
            self._save()

    def _save(self) -> None:
        write_json(self.path, {"began": self.began, "seconds": round(self.seconds, 1)})
        self._saved = time.perf_counter()
