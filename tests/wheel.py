"""The wheel alone: `make dist` runs this in an environment that has the wheel and what it needs, and nothing else.

    python tests/wheel.py

It trains from ids with an experiment file of the user's, evaluates, measures RECL, and runs the agent.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

import txl_lightning

AGENT = Path(__file__).parents[1] / "examples/recall_agent.py"


def txl(command: str, *words: str) -> None:
    """Run a command in the folder `command`."""
    subprocess.run(["txl", command, *words, f"hydra.run.dir={command}"], check=True)


def main() -> None:
    assert "site-packages" in txl_lightning.__file__
    random = np.random.default_rng(1)
    np.save("ids.npy", random.integers(0, 50, 20_000).astype(np.uint16))
    subprocess.run(["txl", "--help"], check=True)
    text = ("data=file", "data.level=ids", "data.path=ids.npy", "profile=smoke", "logger=none")
    Path("conf/experiment").mkdir(parents=True)
    Path("conf/experiment/mine.yaml").write_text("# @package _global_\ntrainer: {max_steps: 3}\n")
    txl("train", "--config-dir", "conf", *text, "experiment=mine")
    assert json.loads(Path("train/metrics.json").read_text())["steps"] == 3
    txl("evaluate", "checkpoint=train/checkpoints/best.ckpt", "max_segments=4", "splits=[test]")
    assert json.loads(Path("evaluate/evaluation.json").read_text())["test"]["tokens"] > 0
    grid = ("first_context=8", "step=8", "max_context=16", "n_positions=8")
    txl("recl", "checkpoints=[train/checkpoints/best.ckpt]", *grid, "logger=none")
    assert "</html>" in Path("recl/recl.html").read_text()
    subprocess.run([sys.executable, str(AGENT), "--steps", "20"], check=True)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        main()
