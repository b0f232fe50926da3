"""The code that a run used: package version, and the checkout's commit."""

from __future__ import annotations

import subprocess
from functools import cache
from pathlib import Path

import txl_lightning

PACKAGE = Path(txl_lightning.__file__).parent


def code_version() -> dict[str, str | None]:
    """Return `version` and `commit`; the latter is None outside a checkout, and ends with -dirty after changes."""
    return {"version": txl_lightning.__version__, "commit": commit()}


@cache
def commit() -> str | None:
    """Return the commit of the checkout with this package; None if it was installed without one."""
    tracked = _git("ls-files", "--error-unmatch", "__init__.py")
    if tracked is None:  # an environment inside another repository
        return None
    return _git("describe", "--always", "--abbrev=40", "--dirty", "--exclude=*")


def _git(*words: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "--no-optional-locks", *words],
            cwd=PACKAGE,
            capture_output=True,
            text=True,
            timeout=20,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    if done.returncode:
        return None
    return done.stdout.strip()
