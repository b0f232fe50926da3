"""Lock, signals and stopwatch of one call of the command."""

from __future__ import annotations

import fcntl
import json
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, NoReturn

from txl_lightning.errors import UserError
from txl_lightning.files import write_json

SAVE_EVERY_SECONDS = 5.0


@contextmanager
def exclusive(directory: Path) -> Iterator[None]:
    """Hold a lock on a directory, so that two reproductions never write into it at once.

    Raises:
        UserError: another reproduction holds it.
    """
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / ".lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise UserError(f"{directory}: another reproduction is writing there") from error
        yield


@contextmanager
def signals_as_interrupts() -> Iterator[None]:
    """Raise KeyboardInterrupt on SIGTERM and SIGINT, also in background jobs, for which the shell ignores SIGINT."""

    def interrupt(signum: int, frame: Any) -> NoReturn:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


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
