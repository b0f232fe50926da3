"""`benchmarks/gpu.sh`: its parts within the time, and the whole session at tiny size on the CPU."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import gpu_session
from benchmarks.gpu_session import ended, session
from tests.docs.pages import ROOT


@pytest.mark.full
@pytest.mark.timeout(1500)
def test_a_dry_run_leaves_every_part_in_one_folder(tmp_path: Path) -> None:
    command = [
        "benchmarks/gpu.sh",
        "--dry-run",
        "--minutes",
        "30",
        "--output",
        str(tmp_path / "out"),
    ]
    done = subprocess.run(
        command,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=1500,
    )
    summary = json.loads((tmp_path / "out/summary.json").read_text())
    parts = {part["part"]: part for part in summary["parts"]}
    assert {name: part["status"] for name, part in parts.items()} == dict.fromkeys(
        parts, "exit 0"
    ), done.stderr
    assert done.returncode == 0
    assert parts["resume"]["equal"]
    assert parts["compiled"]["graphs"] >= 1
    assert list(parts)[:3] == ["compiled", "attention", "relative"]
    assert parts["others"]["ours, float32"] > 0
    assert min(value for name, value in parts["pairs"].items() if "-" in name) > 0
    for name in ("enwik8", "compiled", "relative", "wt103", "wt103-relative", "lstm"):
        assert parts[name]["tokens_per_second"] > 0
    assert parts["training"]["val/nll"] > 0
    assert done.stdout.strip().endswith(str(tmp_path / "out"))


def test_a_part_that_exceeds_its_time_is_stopped() -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True
    )
    assert ended(process, 0.5) == "stopped after its time, exit -15"


def test_without_time_every_part_is_left_out(tmp_path: Path) -> None:
    records = session(tmp_path, gpu_session.GRACE_SECONDS, dry_run=True)
    assert {record["status"] for record in records} == {"left out: no time"}
    assert json.loads((tmp_path / "summary.json").read_text())["parts"] == records
