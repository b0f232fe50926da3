"""Plant one fault at a time in a copy of the project, and run the test that must catch it.

python -m tests.planted_faults               all faults; a minute or two a fault
python -m tests.planted_faults NAME ...      only these
python -m tests.planted_faults --check       only check that each line to change is in the package

The tests run as `make test` runs them: without those marked slow or full. A fault that its test
does not catch ends with status 1. planted_faults.yaml lists the faults.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import yaml
from hypothesis import Phase, settings

ROOT = Path(__file__).parents[1]
FAULTS = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text("utf-8"))

# pytest imports this module as a plugin: the first failure is enough, without a smallest example.
settings.register_profile("unshrunk", derandomize=True, deadline=None, phases=[Phase.generate])
OPTIONS = "-q -x -p no:cacheprovider -p tests.planted_faults --hypothesis-profile=unshrunk"


def plant(root: Path, fault: dict[str, str]) -> None:
    """Change the line of a fault in the package below `root`.

    Raises:
        LookupError: the line is not in exactly one place of the package.
    """
    original = fault["original"]
    places = []
    for path in (root / "txl_lightning").rglob("*.py"):
        places += [path] * path.read_text("utf-8").count(original)
    if len(places) != 1:
        raise LookupError(f"{fault['name']}: in {len(places)} places, not one: {original}")
    text = places[0].read_text("utf-8")
    places[0].write_text(text.replace(original, fault["planted"]), "utf-8")


def copy_project(target: Path) -> None:
    """Copy the files of the project, without those that git ignores."""
    words = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    for name in listed.stdout.splitlines():
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, target / name)


def is_caught(root: Path, fault: dict[str, str]) -> bool:
    """Return whether the tests of a fault that is planted below `root` fail; say which fails first."""
    words = [sys.executable, "-m", "pytest", *OPTIONS.split(), *fault["test"].split()]
    environment = dict(os.environ, PYTHONPATH=str(root), OMP_NUM_THREADS="1")
    done = subprocess.run(words, cwd=root, env=environment, capture_output=True, text=True)
    if done.returncode not in (0, 1):  # no test ran
        raise RuntimeError(f"{fault['name']}: {done.stdout}{done.stderr}")
    first = "NOT CAUGHT"
    for line in reversed(done.stdout.splitlines()):
        if line.startswith(("FAILED", "ERROR")):
            first = line
    print(f"{fault['name']}: {first}", flush=True)
    return done.returncode == 1


def main() -> int:
    """Return the exit status: 0 if every fault is caught, or with --check if every line is there."""
    names = sys.argv[1:]
    is_check = "--check" in names
    status = 0
    for fault in FAULTS:
        if names and not is_check and fault["name"] not in names:
            continue
        with tempfile.TemporaryDirectory() as folder:
            root = Path(folder)
            copy_project(root)
            try:
                plant(root, fault)
            except LookupError as error:
                print(error)
                status = 1
                continue
            if not is_check and not is_caught(root, fault):
                status = 1
    return status


if __name__ == "__main__":
    sys.exit(main())
