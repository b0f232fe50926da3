"""Search with Optuna in batches, which continues from the trials in its file."""

from __future__ import annotations

import json
import logging
import math
import sqlite3
import warnings
from collections.abc import Mapping, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import optuna
from hydra.core.utils import JobReturn
from hydra.errors import HydraException
from hydra.plugins.launcher import Launcher
from hydra.utils import get_method, instantiate
from omegaconf import DictConfig, OmegaConf
from optuna.distributions import BaseDistribution, distribution_to_json, json_to_distribution
from optuna.trial import FrozenTrial, Trial, TrialState

from txl_lightning.jobs.identity import difference, has_influence, identity

log = logging.getLogger(__name__)
PLUGIN = "hydra_plugins.hydra_optuna_sweeper._impl"  # private module of Hydra's plugin
PREFIX = "sqlite:///"
TABLES = """
CREATE TABLE IF NOT EXISTS search (options TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS trials (
    number INTEGER PRIMARY KEY, state TEXT NOT NULL, value REAL,
    params TEXT NOT NULL, distributions TEXT NOT NULL, system_attrs TEXT NOT NULL
);
"""


class OptunaSearch:
    """Search of a multirun.

    Args:
        launcher: runs the jobs.
        config: config of the multirun.
        options: those of `ResumableOptunaSweeperConf`.

    Raises:
        HydraException: an option is not usable.
    """

    def __init__(self, launcher: Launcher, config: DictConfig, options: Mapping[str, Any]) -> None:
        if options["direction"] not in ("minimize", "maximize"):
            raise HydraException(f"hydra.sweeper.direction={options['direction']}: must be minimize or maximize")
        for option in ("n_trials", "n_jobs"):
            if options[option] < 1:
                raise HydraException(f"hydra.sweeper.{option}={options[option]}: must be an integer >= 1")
        self.launcher, self.config, self.options = launcher, config, options
        self.sampler, self.n_trials = options["sampler"], options["n_trials"]
        self.trials = TrialsFile(options["storage"])

    def run(self, arguments: Sequence[str]) -> None:
        """Run the missing trials batch by batch, and write the best one to `optimization_results.yaml`.

        Raises:
            Exception: the first error of a batch in which more than `max_failure_rate` of the jobs failed. Its trials
                count as running, so that they run again with the next start.
        """
        # No interface of Optuna 2 changes any more.
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        given = [*(f"{name!s}={value}" for name, value in (self.options["params"] or {}).items()), *arguments]
        space, fixed = search_space(given)
        words = (word.partition("=") for word in given)
        typed = {name: value for name, _, value in words if has_influence(name)}
        direction = self.options["direction"]
        self.trials.check_same_search({**identity(self.config), **typed, "hydra.sweeper.direction": direction})
        if isinstance(self.sampler, partial):  # of Optuna's grid
            choices = {name: grid_choices(distribution) for name, distribution in space.items()}
            self.sampler = self.sampler(choices)
            self.n_trials = min(self.n_trials, math.prod(map(len, choices.values())))
        study = optuna.create_study(study_name=self.options["study_name"], direction=direction, sampler=self.sampler)
        study.add_trials(self.trials.finished())
        if study.trials:
            log.info(f"{len(study.trials)} of {self.n_trials} trials of {self.trials.path} are finished")
        while (first := len(study.trials)) < self.n_trials:
            batch = range(first, min(first + self.options["n_jobs"], self.n_trials))
            asked = [self._ask(study, number, space) for number in batch]
            frozen = study.trials[first:]
            self.trials.write(frozen)
            overrides = [tuple(f"{n}={v}" for n, v in {**trial.params, **fixed}.items()) for trial in frozen]
            self._tell(study, asked, self.launcher.launch(overrides, initial_job_idx=first))
            self.trials.write(study.trials[first:])
        best = study.best_trial
        log.info(f"best value: {best.value}, with {best.params}")
        found = {"name": "optuna", "best_params": best.params, "best_value": best.value}
        OmegaConf.save(OmegaConf.create(found), Path(self.config.hydra.sweep.dir) / "optimization_results.yaml")

    def _ask(self, study: optuna.Study, number: int, space: dict[str, BaseDistribution]) -> Trial:
        """Draw a trial, or take the options of one that was drawn before the search was interrupted."""
        if (drawn := self.trials.running(number)) is not None:
            study.enqueue_trial(drawn)
        sampler = self.config.hydra.sweeper.sampler
        if (seed := OmegaConf.select(sampler, "seed")) is not None:  # numbers that depend on seed and trial only
            own_seed = int(np.random.SeedSequence([seed, number]).generate_state(1)[0])
            study.sampler = instantiate(OmegaConf.merge(sampler, {"seed": own_seed}))
        trial = study.ask(space)
        if (custom := self.options["custom_search_space"]) is not None:
            get_method(custom)(self.config, trial)
        return trial

    def _tell(self, study: optuna.Study, trials: Sequence[Trial], results: Sequence[JobReturn]) -> None:
        values = [_objective(result) for result in results]
        failures = [value for value in values if isinstance(value, Exception)]
        if len(failures) > self.options["max_failure_rate"] * len(values):
            raise failures[0]
        for trial, value in zip(trials, values, strict=True):
            if isinstance(value, Exception):
                log.warning(f"trial {trial.number} failed: {value}")
                study.tell(trial, state=TrialState.FAIL)
            else:
                study.tell(trial, value)


def _objective(result: JobReturn) -> float | Exception:
    """Return the value of a job, or its error."""
    try:
        value = float(result.return_value)
    except Exception as error:
        return error
    return value if math.isfinite(value) else ValueError(f"the objective is {value}")


def search_space(given: list[str]) -> tuple[dict[str, BaseDistribution], dict[str, Any]]:
    """Return the distributions and the fixed options of overrides; a fixed option replaces a range given before."""
    space, fixed = import_module(PLUGIN).create_params_from_overrides(given)
    return {name: kind for name, kind in space.items() if name not in fixed}, fixed


def grid_choices(distribution: BaseDistribution) -> list[Any]:
    """Return the values of a discrete distribution, for Optuna's grid."""
    return list(import_module(PLUGIN).OptunaSweeperImpl._to_grid_sampler_choices(None, distribution))


class TrialsFile:
    """SQLite file with a row for each trial: number, state (RUNNING, COMPLETE, FAIL), value and, as JSON, its options.

    Optuna's own storage is not used: Optuna 2, which Hydra's plugin needs, cannot open it with SQLAlchemy 2.

    Args:
        storage: `sqlite:///FILE`; None keeps the trials in memory.

    Raises:
        HydraException: the storage has another form.
    """

    def __init__(self, storage: str | None) -> None:
        if storage is not None and not storage.startswith(PREFIX):
            raise HydraException(f"hydra.sweeper.storage={storage}: must be {PREFIX}FILE or null")
        path = ":memory:" if storage is None else storage.removeprefix(PREFIX)
        if storage is not None:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
        self.path, self._database = path, sqlite3.connect(path)
        self._database.executescript(TABLES)

    def check_same_search(self, options: Mapping[str, Any]) -> None:
        """Keep the options of a new search.

        Raises:
            HydraException: the file is of a search with other options.
        """
        options = json.loads(json.dumps(options))
        row = self._database.execute("SELECT options FROM search").fetchone()
        if row is None:
            with self._database:
                self._database.execute("INSERT INTO search VALUES (?)", (json.dumps(options),))
        elif (before := json.loads(row[0])) != options:
            other = difference(options, before)
            raise HydraException(f"{self.path} holds another search ({other}): choose another hydra.sweep.dir")

    def finished(self) -> list[FrozenTrial]:
        """Return the trials that have a result or failed, in order."""
        query = "SELECT state, value, params, distributions, system_attrs FROM trials WHERE state != 'RUNNING'"
        return [
            optuna.trial.create_trial(
                state=TrialState[state],
                value=value,
                params=json.loads(params),
                distributions={n: json_to_distribution(text) for n, text in json.loads(distributions).items()},
                system_attrs=json.loads(attributes),
            )
            for state, value, params, distributions, attributes in self._database.execute(f"{query} ORDER BY number")
        ]

    def running(self, number: int) -> dict[str, Any] | None:
        """Return the options of a trial that was drawn and has no result; None if it was not drawn."""
        row = self._database.execute("SELECT params FROM trials WHERE number = ?", (number,)).fetchone()
        return None if row is None else json.loads(row[0])

    def write(self, trials: Sequence[FrozenTrial]) -> None:
        """Write the rows of a batch at once, so that a killed search finds all of them or none.

        Raises:
            HydraException: the disk is full, or another process writes.
        """
        rows = []
        for trial in trials:
            kinds = {name: distribution_to_json(kind) for name, kind in trial.distributions.items()}
            texts = [json.dumps(values) for values in (trial.params, kinds, trial.system_attrs)]
            rows.append((trial.number, trial.state.name, trial.value, *texts))
        try:
            with self._database:
                self._database.executemany("INSERT OR REPLACE INTO trials VALUES (?, ?, ?, ?, ?, ?)", rows)
        except sqlite3.OperationalError as error:
            raise HydraException(f"{self.path}: {error}") from error
