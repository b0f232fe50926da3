"""Wall-clock time over several calls."""

from __future__ import annotations

import json
import time
from datetime import datetime, timezone
from pathlib import Path


class Stopwatch:
    """Adds up, in a file, the seconds inside of `with`, so that interrupted calls count.

    Args:
        path: of the file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            found = json.loads(path.read_text())
            self.began, self.before = str(found["began"]), float(found["seconds"])
        except (OSError, ValueError, KeyError, TypeError):
            self.began, self.before = datetime.now(timezone.utc).isoformat(timespec="seconds"), 0.0

    def __enter__(self) -> Stopwatch:
        self._started = time.perf_counter()
        return self

    def __exit__(self, *error: object) -> None:
        self.path.write_text(json.dumps({"began": self.began, "seconds": round(self.seconds, 1)}) + "\n")

    @property
    def seconds(self) -> float:
        """Of this call and the ones before."""
        return self.before + time.perf_counter() - self._started
