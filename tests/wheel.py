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

EXAMPLES = Path(__file__).parents[1] / "examples"


def txl(command: str, *words: str) -> None:
    """Run a command in the folder `command`."""
    subprocess.run(["txl", command, *words, f"hydra.run.dir={command}"], check=True)


def use_guests() -> None:
    """Train with all guests of examples/, and open the checkpoint again."""
    os.environ["TXL_GUESTS"] = ",".join(
        str(EXAMPLES / f"{name}.py") for name in ("layer_scale", "t5", "brackets")
    )
    words = (
        "variant=layer_scale",
        "variant.start=0.5",
        "encoding=t5",
        "data=brackets",
        "data.depth=3",
    )
    small = (
        "data.n_tokens=4000",
        "data.cache_dir=cache",
        "profile=smoke",
        "logger=none",
        "hydra.run.dir=guests",
    )
    subprocess.run(["txl", "train", *words, *small, "trainer.max_steps=3"], check=True)
    subprocess.run(
        ["txl", "evaluate", "checkpoint=guests/checkpoints/best.ckpt", "hydra.run.dir=scored"],
        check=True,
    )
    assert (
        json.loads(Path("scored/evaluation.json").read_text())["corpus"]["name"]
        == "brackets, depth 3"
    )


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
    subprocess.run([sys.executable, str(EXAMPLES / "recall_agent.py"), "--steps", "20"], check=True)
    use_guests()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        main()
