"""Search with Optuna in batches, which continues from the trials in its file."""

from __future__ import annotations

import logging
import math
import warnings
from collections.abc import Callable, Sequence
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
from optuna.distributions import BaseDistribution
from optuna.trial import FrozenTrial, Trial, TrialState

from hydra_plugins.txl_process_launcher._optuna_trials import TrialsFile
from txl_lightning.distributed.multirun_jobs import has_influence, identity

log = logging.getLogger(__name__)
PLUGIN = "hydra_plugins.hydra_optuna_sweeper._impl"  # private module of Hydra's plugin


class OptunaSearch:
    """Search of a multirun; for its arguments see `ResumableOptunaSweeperConf`.

    Raises:
        HydraException: an option is not usable.
    """

    def __init__(
        self,
        launcher: Launcher,
        config: DictConfig,
        sampler: Any,
        direction: str,
        storage: str | None,
        study_name: str | None,
        n_trials: int,
        n_jobs: int,
        max_failure_rate: float,
        custom_search_space: str | None,
        params: DictConfig | None,
    ) -> None:
        if direction not in ("minimize", "maximize"):
            raise HydraException(f"hydra.sweeper.direction={direction}: must be minimize or maximize")
        for option, value in {"n_trials": n_trials, "n_jobs": n_jobs}.items():
            if value < 1:
                raise HydraException(f"hydra.sweeper.{option}={value}: must be an integer >= 1")
        self.launcher, self.config, self.sampler, self.direction = launcher, config, sampler, direction
        self.study_name = study_name
        self.n_trials, self.n_jobs, self.max_failure_rate = n_trials, n_jobs, max_failure_rate
        self.extend: Callable[[DictConfig, Trial], None] | None = None
        if custom_search_space is not None:
            self.extend = get_method(custom_search_space)
        self.params = [f"{name!s}={value}" for name, value in (params or {}).items()]
        self.directory = Path(str(config.hydra.sweep.dir))
        self.directory.mkdir(parents=True, exist_ok=True)
        self.trials = TrialsFile(storage)

    def run(self, arguments: Sequence[str]) -> None:
        """Run the missing trials batch by batch, and write the best one to `optimization_results.yaml`.

        Raises:
            Exception: the first error of a batch in which more than `max_failure_rate` of the jobs failed. Its trials
                count as running, so that they run again with the next start.
        """
        warnings.simplefilter(
            "ignore", optuna.exceptions.ExperimentalWarning
        )  # Optuna 2: no interface changes any more
        given = [*self.params, *arguments]
        space, fixed = search_space(given)
        words = (word.partition("=") for word in given)
        typed = {name: value for name, _, value in words if has_influence(name)}
        self.trials.check_same_search({**identity(self.config), **typed, "hydra.sweeper.direction": self.direction})
        if isinstance(self.sampler, partial):  # of Optuna's grid
            choices = {name: grid_choices(distribution) for name, distribution in space.items()}
            self.sampler = self.sampler(choices)
            self.n_trials = min(self.n_trials, math.prod(map(len, choices.values())))
        study = optuna.create_study(study_name=self.study_name, direction=self.direction, sampler=self.sampler)
        study.add_trials(self.trials.finished())
        if study.trials:
            log.info(f"{len(study.trials)} of {self.n_trials} trials of {self.trials.path} are finished")
        while (first := len(study.trials)) < self.n_trials:
            batch = range(first, min(first + self.n_jobs, self.n_trials))
            asked = [self._ask(study, number, space) for number in batch]
            frozen = study.trials[first:]
            self.trials.write(frozen)
            overrides = [tuple(f"{n}={v}" for n, v in {**trial.params, **fixed}.items()) for trial in frozen]
            self._tell(study, asked, self.launcher.launch(overrides, initial_job_idx=first))
            self.trials.write(study.trials[first:])
        self._write_best(study.best_trial)

    def _ask(self, study: optuna.Study, number: int, space: dict[str, BaseDistribution]) -> Trial:
        """Draw a trial, or take the options of one that was drawn before the search was interrupted."""
        if (drawn := self.trials.running(number)) is not None:
            study.enqueue_trial(drawn)
        study.sampler = self._sampler_of_trial(number)
        trial = study.ask(space)
        if self.extend is not None:
            self.extend(self.config, trial)
        return trial

    def _sampler_of_trial(self, number: int) -> Any:
        """Return a sampler whose random numbers depend on the seed and the trial's number only."""
        options = self.config.hydra.sweeper.sampler
        seed = OmegaConf.select(options, "seed")
        if seed is None:
            return self.sampler
        drawn = int(np.random.SeedSequence([seed, number]).generate_state(1)[0])
        return instantiate(OmegaConf.merge(options, {"seed": drawn}))

    def _tell(self, study: optuna.Study, trials: Sequence[Trial], results: Sequence[JobReturn]) -> None:
        values = [objective(result) for result in results]
        failures = [value for value in values if isinstance(value, Exception)]
        if len(failures) / len(values) > self.max_failure_rate:
            raise failures[0]
        for trial, value in zip(trials, values, strict=True):
            if isinstance(value, Exception):
                log.warning(f"trial {trial.number} failed: {value}")
                study.tell(trial, state=TrialState.FAIL)
            else:
                study.tell(trial, value)

    def _write_best(self, best: FrozenTrial) -> None:
        log.info(f"best value: {best.value}, with {best.params}")
        found = {"name": "optuna", "best_params": best.params, "best_value": best.value}
        OmegaConf.save(OmegaConf.create(found), self.directory / "optimization_results.yaml")


def objective(result: JobReturn) -> float | Exception:
    """Return the value of a job, or its error."""
    try:
        value = float(result.return_value)
        if not math.isfinite(value):
            raise ValueError(f"the objective is {value}")
    except Exception as error:
        return error
    return value


def search_space(given: list[str]) -> tuple[dict[str, BaseDistribution], dict[str, Any]]:
    """Return the distributions and the fixed options of overrides; a fixed option replaces a range given before."""
    space, fixed = import_module(PLUGIN).create_params_from_overrides(given)
    return {name: kind for name, kind in space.items() if name not in fixed}, fixed


def grid_choices(distribution: BaseDistribution) -> list[Any]:
    """Return the values of a discrete distribution, for Optuna's grid."""
    return list(import_module(PLUGIN).OptunaSweeperImpl._to_grid_sampler_choices(None, distribution))
