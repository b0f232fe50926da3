"""Run every command of the documentation at tiny size; compose those that need hardware, a network or minutes."""

from __future__ import annotations

import re
import shlex
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from experiments.reproduce import parse
from tests.docs.pages import ROOT, Command, blocks, commands
from tests.fixtures import Patch
from tests.in_process import run_txl
from tests.own_guests import no_guests  # noqa: F401 - a fixture
from tests.recl.tiny_huggingface import save_tiny
from tests.training.small_run import TINY
from txl_lightning.command_line.hydra_app import literal, register
from txl_lightning.config.schemas import CONF

# Commands with these words are composed only: they need a GPU, a corpus, a checkpoint from elsewhere or a network, take
# minutes, or start processes, of which tests/training, tests/hydra_plugins and tests/test_multirun.py run some.
NOT_RUN = {
    *("trainer=gpu", "trainer=ddp", "accelerator=gpu", "trainer.devices=2", "-m", "--help"),
    *("experiment=paper/enwik8_base", "experiment=paper/wt103_base", "data=enwik8", "data=wikitext-103"),
    *("n_positions=5000", "checkpoint=a.ckpt", "models=[hf:gpt2,hf:distilgpt2]"),
    *("models=[py:examples.textgenrnn.textgenrnn]", "models=[py:examples.iglm.iglm,py:examples.iglm.iglm_s]"),
    "models=[py:examples.pocketsphinx_words.trigrams]",
    *("source_format=tensorflow", "source_format=huggingface"),
}
# First words of commands that no test runs as they stand; those of make and python are parsed.
NOT_TXL = {"benchmarks/gpu.sh", "hf", "make", "source", "export", "pip", "wandb", "torchrun", "srun", "python"}
SMALLER = {
    "train": [
        *(*TINY, "data.path=book.txt", "data.cache_dir=cache", "trainer.max_steps=6", "trainer.val_every_n_steps=3"),
        *("evaluation.max_segments=3", "trainer.val_max_segments=3"),
    ],
    "evaluate": ["max_segments=3"],
    "recl": [*("first_context=4", "step=4", "max_context=12", "n_positions=20", "bootstrap=50"), "logger=none"],
    "attention": ["max_segments=40", "logger=none"],
    "speed": ["rounds=3"],
    "generate": ["n_tokens=30"],
}
REPLACED = {"trainer.max_steps": "9", "n_tokens": "30", "max_segments": "40", "data.vocab_size": "300"}
REPLACED |= {"context_curve.every_n_steps": "3", "checkpoint.keep_every_n_steps": "3", "attention_lengths": "[30,60]"}
TINY_SPEED = ["attention_lengths=[30,60]", "n_layer=1", "d_model=16", "n_head=2", "d_inner=16"]
# Other commands read them.
RUNS = tuple(f"runs/{name}" for name in ("first", "on", "off", "second", "t5", "book", "notes", "tune"))


def txl_words(command: Command) -> list[str]:
    """The words after `txl`, also where a launcher stands before it; none for other programs."""
    words = list(command.words)
    found = [words[index + 1 :] for index, word in enumerate(words) if word in ("txl", "txl_lightning.cli")]
    return found[0] if found else []


def tiny(words: list[str]) -> list[str]:
    """Shrink a command to a small text and model; options on the page stay, except for lengths of runs."""
    command, *typed = words
    keys = [word.split("=")[0] for word in typed]
    typed = [f"{key}={REPLACED.get(key, word.partition('=')[2])}" for key, word in zip(keys, typed, strict=True)]
    smaller = [*SMALLER.get(command, []), *(TINY_SPEED if command == "speed" else [])]
    smaller = [word for word in smaller if word.split("=")[0] not in keys]
    if {"data=recall", "experiment=recall", "data=brackets"}.intersection(typed):  # which is generated
        smaller = [word for word in smaller if word not in ("data=file", "data.path=book.txt", "data.level=byte")]
    return [command, *typed, *smaller]


def must_run(page: str = "") -> list[list[str]]:
    """The commands of a page or of all that run here: first the runs that others need, then in the pages' order.

    Models of Hugging Face need an extra.
    """
    has_library = find_spec("transformers") is not None
    calls = [command.words[1:] for command in commands() if command.words[0] == "txl" and page in ("", command.page)]
    here = [list(words) for words in calls if NOT_RUN.isdisjoint(words) and (has_library or "hf:" not in str(words))]
    return sorted(here, key=lambda words: words[-1].removeprefix("hydra.run.dir=") not in RUNS)


def test_every_command_is_a_known_one() -> None:
    assert {command.words[0] for command in commands()} == {"txl", *NOT_TXL}


def test_commands_that_cannot_run_here_compose() -> None:
    register()
    running = must_run()
    found = [words for words in map(txl_words, commands()) if words and words not in running and "--help" not in words]
    assert len(found) >= 20
    for command, *words in found:
        first = [re.sub(r"(=[^,(\['}]+),.*", r"\1", word) for word in words if word != "-m"]
        first = [literal(word, ("prompt",)) for word in first if not word.startswith(("hydra", "optimizer.lr=tag"))]
        with initialize_config_dir(str(CONF), version_base="1.3"):
            config = compose("config" if command == "train" else command, overrides=first)
        assert OmegaConf.to_container(config, throw_on_missing=False)


def test_every_make_target_exists() -> None:
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.M))
    used = {command.words[1] for command in commands() if command.words[0] == "make"}
    used |= set(re.findall(r"`make ([a-z][\w-]*)", (ROOT / "README.md").read_text()))
    assert targets >= used >= {"reproduce", "test"}


def test_every_reproduction_is_understood() -> None:
    n_found = 0
    for words in (list(command.words) for command in commands()):
        if words[:2] == ["make", "reproduce"]:
            variables = dict(word.split("=", 1) for word in words[2:])
            words = ["--profile", variables.get("PROFILE", "laptop"), *shlex.split(variables.get("ARGS", ""))]
        elif words[:3] == ["python", "-m", "experiments.reproduce"]:
            words = words[3:]
        else:
            continue
        n_found += 1
        assert parse(words).profile.name == words[words.index("--profile") + 1]
    assert n_found >= 6


@pytest.mark.timeout(900)
@pytest.mark.usefixtures("no_guests")
@pytest.mark.parametrize(
    ("page", "least"), [("README.md", 6), pytest.param("", 28, marks=pytest.mark.full)], ids=["README", "all pages"]
)
def test_the_commands_run(page: str, least: int, tmp_path: Path, monkeypatch: Patch) -> None:
    """Run them in one folder and one process, in the order of the pages."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TXL_GUESTS", "examples/t5.py,examples/layer_scale.py,examples/brackets.py")
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    lines = (f"{'' if i % 50 else 'CHAPTER'}\nline {i}: the square of {i} is {i * i}\n" for i in range(4000))
    (tmp_path / "book.txt").write_text("".join(lines))
    (tmp_path / "prompts.txt").write_text("line 7\nthe\n")
    for code in blocks(ROOT / "docs/data.md", "python"):
        if "samples.npy" not in code:  # which reads a generated tune
            exec(code.replace("2_000", "400"), {})
    if find_spec("transformers") and not page:
        save_tiny(import_module("transformers"), tmp_path / "tiny", "gpt2")
    found = must_run(page)
    assert len(found) >= least
    for number, words in enumerate(found):
        given = tiny(words)
        directory = [] if any(word.startswith("hydra.run.dir=") for word in given) else [f"hydra.run.dir=out/{number}"]
        done = run_txl(*given, *directory)
        assert (done.status, "Warning: " in done.err) == (0, False), f"{shlex.join(given)}\n{done.err[-2000:]}"
    assert page or all(Path(run, "metrics.json").is_file() for run in RUNS if run != "runs/tune")
    assert page or np.load("runs/tune/samples.npy").shape == (1, 30)
