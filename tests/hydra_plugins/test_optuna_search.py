"""The search with Optuna: what it draws and tells, after interruptions too. The jobs are replaced by a function."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hydra.core.utils import JobReturn, JobStatus
from hydra.errors import HydraException
from omegaconf import OmegaConf
from optuna.distributions import CategoricalDistribution, LogUniformDistribution
from optuna.samplers import TPESampler

from hydra_plugins.txl_process_launcher._optuna_search import OptunaSearch, grid_choices, search_space
from txl_lightning.command_line.multirun import JobKilledError

GIVEN = ["lr=tag(log, interval(1e-4, 1e-2))", "optimizer=choice(adam, muon)", "steps=400"]


class Launcher:
    """Returns the value of each job: of its options, an error for those that fail; a batch may be interrupted."""

    def __init__(self, interrupted_at: int | None = None, failing: Sequence[int] = ()) -> None:
        self.jobs: dict[int, tuple[str, ...]] = {}
        self.interrupted_at, self.failing = interrupted_at, failing

    def launch(self, job_overrides: Sequence[tuple[str, ...]], initial_job_idx: int) -> list[JobReturn]:
        numbers = range(initial_job_idx, initial_job_idx + len(job_overrides))
        if self.interrupted_at in numbers:
            raise JobKilledError("was killed by SIGKILL")
        self.jobs |= dict(zip(numbers, job_overrides, strict=True))
        return [self.result(number) for number in numbers]

    def result(self, number: int) -> JobReturn:
        if number in self.failing:
            return JobReturn(status=JobStatus.FAILED, _return_value=ValueError("as told"))
        options = dict(word.split("=") for word in self.jobs[number])
        value = abs(float(options["lr"]) - 0.003) + (options["optimizer"] == "adam")
        return JobReturn(status=JobStatus.COMPLETED, _return_value=value)


def search(directory: Path, launcher: Launcher, given: Sequence[str] = GIVEN, **options: Any) -> None:
    """Run a search of eight trials, two at once, of which the last ones follow the results of the first ones."""
    sampler = {"_target_": "optuna.samplers.TPESampler", "seed": 1, "n_startup_trials": 3}
    config = OmegaConf.create({"seed": 1, "hydra": {"sweep": {"dir": str(directory)}, "sweeper": {"sampler": sampler}}})
    defaults = {"direction": "minimize", "storage": f"sqlite:///{directory}/optuna.db", "study_name": "txl"}
    defaults |= {"n_trials": 8, "n_jobs": 2, "max_failure_rate": 0.0, "custom_search_space": None, "params": None}
    every = {"sampler": TPESampler(seed=1), **defaults, **options}
    OptunaSearch(launcher, config, every).run(list(given))  # type: ignore[arg-type]


def best(directory: Path) -> Any:
    return OmegaConf.to_container(OmegaConf.load(directory / "optimization_results.yaml"))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Launcher]:
    directory, launcher = tmp_path_factory.mktemp("whole"), Launcher()
    search(directory, launcher)
    return directory, launcher


def test_trials_are_drawn_from_the_ranges_with_the_fixed_options(whole: tuple[Path, Launcher]) -> None:
    _, launcher = whole
    assert list(launcher.jobs) == list(range(8))
    assert len({words[0] for words in launcher.jobs.values()}) == 8
    assert {words[2] for words in launcher.jobs.values()} == {"steps=400"}


@pytest.mark.parametrize("at", range(0, 8, 3))
def test_an_interrupted_search_draws_what_an_uninterrupted_one_draws(
    tmp_path: Path, whole: tuple[Path, Launcher], at: int
) -> None:
    first, second = Launcher(interrupted_at=at), Launcher()
    with pytest.raises(JobKilledError):
        search(tmp_path, first)
    search(tmp_path, second)
    assert not set(first.jobs) & set(second.jobs)  # finished trials are not run again
    assert first.jobs | second.jobs == whole[1].jobs
    assert best(tmp_path) == best(whole[0])


def test_failures_within_the_rate_are_trials_and_beyond_it_run_again(tmp_path: Path) -> None:
    launcher = Launcher(failing=(1,))
    with pytest.raises(ValueError, match="as told"):
        search(tmp_path, launcher)
    assert list(launcher.jobs) == [0, 1]
    again = Launcher(failing=(1,))
    search(tmp_path, again, max_failure_rate=0.5)
    assert list(again.jobs) == list(range(8))
    with sqlite3.connect(tmp_path / "optuna.db") as database:
        rows = database.execute("SELECT state, value, params FROM trials ORDER BY number").fetchall()
    assert [state for state, _, _ in rows] == ["COMPLETE", "FAIL", *["COMPLETE"] * 6]
    assert set(json.loads(rows[0][2])) == {"lr", "optimizer"}


@pytest.mark.parametrize(
    ("given", "options", "message"),
    [
        ([*GIVEN[:2], "steps=800"], {}, r"holds another search \(steps=400, not 800\): choose another"),
        (GIVEN, {"direction": "maximize"}, r"another search \(hydra.sweeper.direction=minimize, not maximize\)"),
        (GIVEN, {"storage": "mysql://host"}, "hydra.sweeper.storage=mysql://host: must be sqlite:///FILE or null"),
        (GIVEN, {"direction": "down"}, "hydra.sweeper.direction=down: must be minimize or maximize"),
        (GIVEN, {"n_jobs": 0}, "hydra.sweeper.n_jobs=0: must be an integer >= 1"),
    ],
)
def test_another_search_and_wrong_options_are_refused(
    whole: tuple[Path, Launcher], given: list[str], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(HydraException, match=message):
        search(whole[0], Launcher(), given, **options)


def test_the_private_parts_of_hydras_plugin() -> None:
    """`create_params_from_overrides` and `_to_grid_sampler_choices` of its module `_impl`."""
    space, fixed = search_space([*GIVEN, "lr=tag(log, interval(1e-3, 1e-2))", "optimizer=adam"])
    assert (space, fixed) == ({"lr": LogUniformDistribution(1e-3, 1e-2)}, {"optimizer": "adam", "steps": "400"})
    assert grid_choices(CategoricalDistribution(["adam", "muon"])) == ["adam", "muon"]
