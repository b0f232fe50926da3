"""Python in a new process, where nothing is imported yet."""

import os
import subprocess
import sys
from pathlib import Path

from tests.docs.pages import ROOT


def printed(*words: str, directory: Path = ROOT, **variables: str) -> str:
    """Run `python WORDS…`, which must succeed, and return what it prints."""
    done = subprocess.run(
        [sys.executable, *words],
        cwd=directory,
        env={**os.environ, "PYTHONPATH": str(ROOT), **variables},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
