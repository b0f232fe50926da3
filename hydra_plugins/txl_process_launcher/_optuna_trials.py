"""Trials of a search in a SQLite file.

Optuna's own storage is not used: Optuna 2, which Hydra's plugin needs, cannot open it with SQLAlchemy 2.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import optuna
from hydra.errors import HydraException
from optuna.distributions import distribution_to_json, json_to_distribution
from optuna.trial import FrozenTrial, TrialState

from txl_lightning.distributed.multirun_jobs import difference

PREFIX = "sqlite:///"
TABLES = """
CREATE TABLE IF NOT EXISTS search (options TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS trials (
    number INTEGER PRIMARY KEY, state TEXT NOT NULL, value REAL,
    params TEXT NOT NULL, distributions TEXT NOT NULL, system_attrs TEXT NOT NULL
);
"""


class TrialsFile:
    """SQLite file with a row for each trial: number, state (RUNNING, COMPLETE, FAIL), value and, as JSON, its options.

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
        with closing(self._database.execute(f"{query} ORDER BY number")) as rows:
            return [
                optuna.trial.create_trial(
                    state=TrialState[state],
                    value=value,
                    params=json.loads(params),
                    distributions={n: json_to_distribution(text) for n, text in json.loads(distributions).items()},
                    system_attrs=json.loads(system_attrs),
                )
                for state, value, params, distributions, system_attrs in rows
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
        rows = [
            (
                trial.number,
                trial.state.name,
                trial.value,
                json.dumps(trial.params),
                json.dumps({name: distribution_to_json(kind) for name, kind in trial.distributions.items()}),
                json.dumps(trial.system_attrs),
            )
            for trial in trials
        ]
        try:
            with self._database:
                self._database.executemany("INSERT OR REPLACE INTO trials VALUES (?, ?, ?, ?, ?, ?)", rows)
        except sqlite3.OperationalError as error:
            raise HydraException(f"{self.path}: {error}") from error
