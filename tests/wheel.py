"""The wheel alone: `make dist` runs this in an environment that has the wheel and what it needs, and nothing else.

    python tests/wheel.py

It trains from ids with an experiment file of the user's, evaluates dynamically,
converts a folder as the Hugging Face hub has it, and runs the agent.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from safetensors.torch import save_file

import txl_lightning
from txl_lightning import TransformerXL, TransformerXLConfig
from txl_lightning.model.checkpoints import to_huggingface

AGENT = Path(__file__).parents[1] / "examples/recall_agent.py"
WORDS = ["<eos>", "<unk>", "a", "b", "c", "d"]


def txl(command: str, *words: str) -> None:
    """Run a command in the folder `command`."""
    subprocess.run(["txl", command, *words, f"hydra.run.dir={command}"], check=True)


def write_snapshot(folder: Path) -> None:
    """Write a model of words as the hub has `transfo-xl/transfo-xl-wt103`."""
    sizes = {"n_layer": 1, "d_model": 8, "n_head": 2, "d_head": 4, "d_inner": 16, "mem_len": 4}
    options = {"dropout": 0.0, "cutoffs": (3,), "div_val": 2, "untie_biases": True, "memory_start": "zeros"}
    tensors, config = to_huggingface(TransformerXL(TransformerXLConfig(vocab_size=len(WORDS), **sizes, **options)))
    folder.mkdir()
    save_file({name: tensor.clone().contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "vocab.json").write_text(json.dumps({word: i for i, word in enumerate(WORDS)}))


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
    scored = ("max_segments=4", "splits=[test]", "dynamic.lr=1e-4", "dynamic.segments=4")
    txl("evaluate", "checkpoint=train/checkpoints/best.ckpt", *scored)
    found = json.loads(Path("evaluate/evaluation.json").read_text())["test"]
    assert found["dynamic"]["tokens"] == found["tokens"] > 0

    Path("text.txt").write_text(" ".join(random.choice(WORDS[2:], 5_000)) + "\n" * 2)
    write_snapshot(Path("hub"))
    corpus = ("data=file", "data.path=text.txt", "data.level=word")
    txl("convert", "source=hub", "source_format=huggingface", "target=hub.ckpt", "target_format=txl", *corpus)
    assert Path("hub.ckpt").is_file()
    subprocess.run([sys.executable, str(AGENT), "--steps", "20"], check=True)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        main()
