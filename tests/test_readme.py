"""The README's commands: every one is run at tiny size, or composed where it needs what is not here, and says which."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from experiments.engine import job_process
from experiments.report import readme
from experiments.report.rendering import read_results
from tests.training.small_run import TINY
from txl_lightning.cli import register_all
from txl_lightning.command_line.hydra_app import literal
from txl_lightning.config.schemas import CONF

ROOT = Path(__file__).parents[1]
NOT_HERE = {  # a word of the command: what it needs
    "trainer=ddp": "eight GPUs",
    "hydra/launcher=slurm": "a cluster",
    "experiment=paper/wt103_base": "a GPU and the corpus",
    "source_format=huggingface": "a checkpoint of Hugging Face's",
    "checkpoint=a.ckpt": "the same",
    "initial_weights=a.ckpt": "the same",
    "n_positions=5000": "minutes",
    "memory=on,off": "two runs and more: multiruns have tests of their own",
    "-m": "several runs: multiruns have tests of their own",
    "--help": "no run",
}
SMALLER = {
    "train": [*TINY, "data.path=book.txt", "data.cache_dir=cache", "model.n_layer=4"],
    "evaluate": ["max_segments=3"],
    "recl": ["first_context=4", "step=4", "max_context=12", "n_positions=20", "bootstrap=50", "store=losses"],
    "attention": ["max_segments=60"],
    "speed": ["levels=[char]", "attention_lengths=[30,60]", "n_layer=1", "d_model=16", "n_head=2", "d_inner=16"],
    "generate": [],
    "convert": [],
}
REPLACED = {"trainer.max_steps": "24", "n_tokens": "30", "context_curve.every_n_steps": "6"}
TRAINED = "runs/a/checkpoints/best.ckpt"


def commands() -> list[list[str]]:
    """The words behind `.venv/bin/txl` of every command in the README."""
    blocks = re.findall(r"```console\n(.*?)```", (ROOT / "README.md").read_text(), re.S)
    lines = "\n".join(blocks).replace("\\\n", " ").splitlines()
    return [shlex.split(line, comments=True)[1:] for line in lines if line.startswith(".venv/bin/txl ")]


def tiny(words: list[str]) -> list[str]:
    """A command on a small text with a small model, what it types itself left as it is but for lengths of runs."""
    command, *typed = words
    typed = [word.replace("outputs/B/", "runs/b/") for word in typed]
    typed = [re.sub(r"outputs/[^,\]\s]*best\.ckpt|(?<==)…|(?<=\[)…(?=\])", TRAINED, word) for word in typed]
    keys = [word.split("=")[0] for word in typed]
    typed = [f"{key}={REPLACED.get(key, word.partition('=')[2])}" for key, word in zip(keys, typed, strict=True)]
    if any(word.startswith("checkpoint=") for word in typed) and command == "speed":
        return [command, *typed, "rounds=3"]
    smaller = [word for word in SMALLER[command] if word.split("=")[0] not in keys]
    return [command, *typed, *smaller]


def test_the_readme_shows_the_committed_run() -> None:
    shown = readme.run_part(read_results(readme.ROOT / readme.LAPTOP / "results.json"))
    assert shown in (ROOT / "README.md").read_text(), "python -m experiments.report.readme"


def test_every_command_of_the_readme_composes() -> None:
    register_all()
    found = commands()
    assert len(found) > 30
    for command, *words in found:
        if "--help" in words:
            continue
        first = [re.sub(r"(=[^,(\[]+),.*", r"\1", word) for word in words if word != "-m" and "…" not in word]
        first = [literal(word, ("prompt",)) for word in first if not word.startswith(("hydra", "optimizer.lr=tag"))]
        with initialize_config_dir(str(CONF), version_base="1.3"):
            config = compose("config" if command == "train" else command, overrides=first)
        assert OmegaConf.to_container(config, throw_on_missing=False)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_commands_of_the_readme_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In their order, in one folder, as a newcomer would."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TXL_ENCODINGS", "")
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    (tmp_path / "book.txt").write_text("".join(f"line {i}: the square of {i} is {i * i}\n" for i in range(4000)))
    resumable = [words for words in commands() if "hydra.run.dir=runs/a" in words]
    others = [words for words in commands() if words not in resumable]
    n_run = 0
    for words in [*resumable, *others]:
        if any(word in NOT_HERE for word in words):
            continue
        environment = {"TXL_ENCODINGS": "examples/alibi.py"} if "alibi" in " ".join(words) else {}
        log = tmp_path / f"{n_run}.txt"
        process = job_process.start(tiny(words), log, tmp_path / "lock", environment)
        process.join(300)
        assert process.exitcode == 0, f"{shlex.join(tiny(words))}\n{log.read_text()[-2000:]}"
        if n_run == 0:
            shutil.copytree(tmp_path / "runs" / "a", tmp_path / "runs" / "b")
        n_run += 1
    assert n_run >= 18
