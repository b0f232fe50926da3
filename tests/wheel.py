"""The wheel alone: `make dist` runs this in an environment that has the wheel and what it needs, and nothing else.

    python tests/wheel.py

It trains from ids with an experiment file of the user's, evaluates, measures RECL, runs the agent, and trains a variant
with an encoding on a corpus of examples/, which the package does not have.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

import txl_lightning

PACKAGE = txl_lightning.__file__
EXAMPLES = Path(__file__).parents[1] / "examples"


def txl(command: str, *words: str, folder: str = "") -> None:
    """Run a command in a folder, by default one with its name."""
    where = f"hydra.run.dir={folder or command}"
    subprocess.run(["txl", command, *words, where], check=True)


def use_guests() -> None:
    """Train with all guests of examples/, and open the checkpoint again."""
    guests = [str(EXAMPLES / f"{name}.py") for name in ("layer_scale", "t5", "brackets")]
    os.environ["TXL_GUESTS"] = ",".join(guests)
    txl(
        "train",
        "variant=layer_scale",
        "variant.start=0.5",
        "encoding=t5",
        "data=brackets",
        "data.depth=3",
        "data.n_tokens=4000",
        "data.cache_dir=cache",
        "profile=smoke",
        "logger=none",
        "trainer.max_steps=3",
        folder="guests",
    )
    txl("evaluate", "checkpoint=guests/checkpoints/best.ckpt", folder="scored")
    scored = json.loads(Path("scored/evaluation.json").read_text())
    assert scored["corpus"]["name"] == "brackets, depth 3"


def main() -> None:
    assert "site-packages" in PACKAGE
    random = np.random.default_rng(1)
    np.save("ids.npy", random.integers(0, 50, 20_000).astype(np.uint16))
    subprocess.run(["txl", "--help"], check=True)
    Path("conf/experiment").mkdir(parents=True)
    experiment = "# @package _global_\ntrainer: {max_steps: 3}\n"
    Path("conf/experiment/mine.yaml").write_text(experiment)
    ids = ("data=file", "data.level=ids", "data.path=ids.npy")
    small = ("profile=smoke", "logger=none", "experiment=mine")
    txl("train", "--config-dir", "conf", *ids, *small)
    assert json.loads(Path("train/metrics.json").read_text())["steps"] == 3
    best = "train/checkpoints/best.ckpt"
    txl("evaluate", f"checkpoint={best}", "max_segments=4", "splits=[test]")
    assert json.loads(Path("evaluate/evaluation.json").read_text())["test"]["tokens"] > 0
    grid = ("first_context=8", "step=8", "max_context=16", "n_positions=8")
    txl("recl", f"checkpoints=[{best}]", *grid, "logger=none")
    assert "</html>" in Path("recl/recl.html").read_text()
    agent = str(EXAMPLES / "recall_agent.py")
    subprocess.run([sys.executable, agent, "--steps", "20"], check=True)
    use_guests()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        main()
