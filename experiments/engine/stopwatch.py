"""Wall-clock time over the calls that one reproduction took."""

from __future__ import annotations

import json
import time
from datetime import datetime, timezone
from pathlib import Path

EVERY_SECONDS = 5.0


class Stopwatch:
    """Adds up, in a file, the seconds inside of `with`, so that interrupted and killed calls count.

    Args:
        path: of the file.
        anew: whether this call begins a reproduction instead of going on with one.
    """

    def __init__(self, path: Path, anew: bool) -> None:
        self.path = path
        self.began, self.before = datetime.now(timezone.utc).isoformat(timespec="seconds"), 0.0
        if path.exists() and not anew:
            found = json.loads(path.read_text())
            self.began, self.before = str(found["began"]), float(found["seconds"])
        self._started = self._saved = time.perf_counter()

    def __enter__(self) -> Stopwatch:
        self._started = time.perf_counter()
        return self

    def __exit__(self, *error: object) -> None:
        self.save()

    @property
    def seconds(self) -> float:
        """Of this call and the ones before."""
        return self.before + time.perf_counter() - self._started

    def tick(self) -> None:
        """Save now and then, since a killed process does nothing at its end."""
        if time.perf_counter() - self._saved > EVERY_SECONDS:
            self.save()

    def save(self) -> None:
        """Write the file."""
        part = self.path.with_suffix(".part")
        part.write_text(json.dumps({"began": self.began, "seconds": round(self.seconds, 1)}) + "\n")
        part.rename(self.path)
        self._saved = time.perf_counter()
