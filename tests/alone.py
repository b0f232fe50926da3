"""Python in a process of its own, where nothing is imported yet."""

import os
import subprocess
import sys
from pathlib import Path

from tests.docs.pages import ROOT


def printed(*words: str, directory: Path = ROOT, **variables: str) -> str:
    """Run `python WORDS…`, which must succeed, and return what it prints."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **variables}
    command = [sys.executable, *words]
    done = subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return done.stdout
