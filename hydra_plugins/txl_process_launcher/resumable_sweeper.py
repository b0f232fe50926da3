"""`hydra/sweeper=optuna`: a search with Optuna whose trials are kept in a SQLite file.

Hydra's own Optuna sweeper draws `n_trials` further trials when it is started again, numbered from 0, and does not know
the trials that were running. This one draws what is missing, and gives running trials to the launcher again.
"""

# No `from __future__ import annotations`, as in `process_launcher`.

from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any

from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.config_store import ConfigStore
from hydra.plugins.search_path_plugin import SearchPathPlugin
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import MISSING, DictConfig


@dataclass
class ResumableOptunaSweeperConf:
    """Options `hydra.sweeper.…` of `hydra/sweeper=optuna`.

    Attributes:
        sampler: group `hydra/sweeper/sampler`: tpe, random, cmaes, nsgaii, grid. With a seed, trial n depends on the
            seed, on n and on the trials before, so that an interrupted search draws what an uninterrupted one draws.
        direction: minimize or maximize.
        storage: `sqlite:///FILE` for the trials; null keeps them in memory, and the search cannot continue.
        study_name: name of the study in the log.
        n_trials: number of trials.
        n_jobs: trials drawn together; as many as run at once.
        max_failure_rate: share of them that may fail.
        custom_search_space: dotted name of a function of config and trial that draws further options.
        params: ranges, beside those on the command line.
    """

    defaults: list[Any] = field(default_factory=lambda: [{"sampler": "tpe"}])
    _target_: str = "hydra_plugins.txl_process_launcher.resumable_sweeper.ResumableOptunaSweeper"
    sampler: Any = MISSING
    direction: str = "minimize"
    storage: str | None = "sqlite:///${hydra.sweep.dir}/optuna.db"
    study_name: str | None = "txl"
    n_trials: int = 20
    n_jobs: int = "${oc.select:hydra.launcher.max_parallel,1}"  # type: ignore[assignment]
    max_failure_rate: float = 0.0
    custom_search_space: str | None = None
    params: dict[str, Any] | None = None


class OptunaChoice(SearchPathPlugin):
    """Replaces the choice `hydra/sweeper=optuna` of Hydra's plugin, which is registered when plugins are imported."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        """Register the choice; Hydra calls this after it has imported all plugins."""
        if find_spec("hydra_plugins.hydra_optuna_sweeper") is not None:
            store, node = ConfigStore.instance(), ResumableOptunaSweeperConf
            store.store(group="hydra/sweeper", name="optuna", node=node, provider="txl_lightning")


class ResumableOptunaSweeper(Sweeper):
    """Sweeper that searches with Optuna, imported when it is used.

    Args:
        options: those of `ResumableOptunaSweeperConf`.
    """

    def __init__(self, **options: Any) -> None:
        self.options = options

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        """Prepare for `sweep`.

        Raises:
            HydraException: an option is not usable, or the file is of another search.
        """
        from hydra.core.plugins import Plugins

        from hydra_plugins.txl_process_launcher._optuna_search import OptunaSearch

        launcher = Plugins.instance().instantiate_launcher(
            config=config, hydra_context=hydra_context, task_function=task_function
        )
        self.search = OptunaSearch(launcher, config, self.options)

    def sweep(self, arguments: list[str]) -> None:
        """Run all trials that are missing and write `optimization_results.yaml`."""
        self.search.run(arguments)
