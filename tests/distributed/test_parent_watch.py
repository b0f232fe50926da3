"""A process that watches its parent ends with it."""

import subprocess
import sys
from pathlib import Path

import psutil
import pytest

WATCH = Path(__file__).parents[2] / "txl_lightning/distributed/parent_watch.py"
# By its path, without the package: the watch needs the standard library only.
LOAD = f"import runpy; watch = runpy.run_path({str(WATCH)!r}); end_with_parent = watch['end_with_parent']"
CHILD = f"""
import os, sys, time
{LOAD}
end_with_parent(int(sys.argv[1]))
assert "torch" not in sys.modules
print(os.getpid(), flush=True)
time.sleep(60)
"""
PARENT = f"""
import os, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", {CHILD!r}, str(os.getpid())], start_new_session=len(sys.argv) > 1)
time.sleep(60)
"""


@pytest.mark.parametrize("own_group", [True, False])
def test_the_child_of_a_killed_parent_ends(own_group: bool) -> None:
    command = [sys.executable, "-c", PARENT, *["own group"] * own_group]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = psutil.Process(int(parent.stdout.readline()))
        assert child.is_running()
        parent.kill()
    _, alive = psutil.wait_procs([child], timeout=20)
    assert alive == []
