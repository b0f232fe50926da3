"""`benchmarks/gpu.sh`: its parts within the time, and the whole session at tiny size on the CPU."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from benchmarks import gpu_session
from benchmarks.gpu_session import GpuSession, measure, n_steps, speeds, table

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_a_dry_run_leaves_every_part_in_one_folder(tmp_path: Path) -> None:
    command = ["benchmarks/gpu.sh", "--dry-run", "--output", str(tmp_path / "out")]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    summary = json.loads((tmp_path / "out/summary.json").read_text())
    statuses = {part["part"]: part["status"] for part in summary["parts"]}
    parts = ("tests", "bench", "steps/float32", "gradients", "training")
    assert statuses == dict.fromkeys(parts, "exit 0"), ended.stderr + (tmp_path / "out/tests.log").read_text()
    assert ended.returncode == 0
    assert all(part["tokens_per_second"] > 0 for part in summary["parts"] if "arm" in part)
    assert (tmp_path / "out/training/metrics.json").exists()
    assert json.loads((tmp_path / "out/bench.json").read_text())
    assert ended.stdout.strip().endswith(str(tmp_path / "out"))


def test_a_part_that_exceeds_its_time_is_stopped_and_later_ones_are_left_out(tmp_path: Path) -> None:
    session = GpuSession(tmp_path, gpu_session.GRACE_SECONDS + 1.5, dry_run=True, kept=0)
    stopped = session.run("long", ["-c", "import time; time.sleep(60)"])
    assert stopped["status"] == "stopped after its time, exit -15"
    assert session.run("late", ["-c", "pass"])["status"] == "left out: no time"
    assert [part["part"] for part in json.loads((tmp_path / "summary.json").read_text())["parts"]] == ["long", "late"]
    assert "left out: no time" in table(session.parts)
    assert n_steps(GpuSession(tmp_path, 0, dry_run=False), 1e6) == 100  # a training still has steps


def test_the_training_takes_the_fastest_arm_and_the_remaining_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands: dict[str, str] = {}

    def run(self: GpuSession, name: str, words: list[str], most: float = 1e9) -> dict[str, Any]:
        commands[name] = " ".join(words)
        self.parts.append({"part": name, "status": "exit 0"})
        return self.parts[-1]

    values = {"bfloat16": 4e5, "float32": 1e5, "compiled": 8e5}
    monkeypatch.setattr(GpuSession, "run", run)
    monkeypatch.setattr(gpu_session, "speeds", lambda path: {"tokens_per_second": values.get(path.name, 5e4)})
    session = GpuSession(tmp_path, 570, dry_run=False)
    measure(session)
    assert "trainer.compile=true" in commands["training"]
    steps = int(commands["training"].partition("trainer.max_steps=")[2].split()[0])
    assert steps == pytest.approx(0.85 * 8e5 * (session.left - gpu_session.START_SECONDS) / (22 * 512), rel=0.02)
    assert "experiment=paper/enwik8_base" in commands["steps/bfloat16"]
    assert session.parts[-1]["arm"] == "compiled"


def test_the_first_third_of_the_log_is_left_out(tmp_path: Path) -> None:
    lines = ["step,train/tokens_per_second,train/mfu", *(f"{i},{speed},0.1" for i, speed in enumerate((1, 2, 30)))]
    (tmp_path / "metrics.csv").write_text("\n".join([*lines, "9,,"]))
    assert speeds(tmp_path) == {"tokens_per_second": 16, "mfu": 0.1}
    assert speeds(tmp_path / "none") == {}
