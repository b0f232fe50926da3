"""Run the commands of the documentation at a tiny size; compose commands that need hardware, a network or minutes."""

from __future__ import annotations

import json
import re
import shlex
from importlib.util import find_spec
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from experiments.reproduce import parse
from tests.docs.pages import PAGES, README, ROOT, blocks, commands
from tests.fixtures import Patch
from tests.in_process import run_txl
from tests.own_guests import no_guests  # noqa: F401 - a fixture
from tests.recl.tiny_huggingface import save_tiny
from tests.training.small_run import TINY
from txl_lightning.application import register
from txl_lightning.config.schemas import CONF

# Commands with these words are composed only: they need a GPU, a corpus, a checkpoint from elsewhere or a network, take
# minutes, or start processes.
NOT_RUN = {
    "--help",
    "-m",
    "accelerator=gpu",
    "data=enwik8",
    "data_path=recall.txt",
    "data=wikitext-103",
    "experiment=paper/enwik8_base",
    "experiment=paper/wt103_base",
    "models=[hf:gpt2,hf:distilgpt2]",
    "source_format=huggingface",
    "source_format=tensorflow",
    "trainer.devices=2",
    "trainer=ddp",
    "trainer=gpu",
}
OTHER_PROGRAMS = {
    "benchmarks/gpu.sh",
    "export",
    "hf",
    "make",
    "pip",
    "python",
    "source",
    "srun",
    "torchrun",
    "wandb",
}

# Options that replace those on the page, and options that are added where the page does not have them.
REPLACED = {
    "attention_lengths": "[30,60]",
    "context_curve.every_n_steps": "3",
    "data.vocab_size": "300",
    "max_segments": "40",
    "n_tokens": "30",
    "trainer.max_steps": "9",
}
ADDED = {
    "train": [
        *TINY,
        "data.path=book.txt",
        "data.cache_dir=cache",
        "evaluation.max_segments=3",
        "trainer.max_steps=6",
        "trainer.val_every_n_steps=3",
        "trainer.val_max_segments=3",
    ],
    "evaluate": ["max_segments=3"],
    "recl": [
        "first_context=4",
        "step=4",
        "max_context=12",
        "n_positions=20",
        "bootstrap=50",
        "logger=none",
    ],
    "attention": ["max_segments=40", "logger=none"],
    "speed": [
        "rounds=3",
        "attention_lengths=[30,60]",
        "n_layer=1",
        "d_model=16",
        "n_head=2",
        "d_inner=16",
    ],
    "generate": ["n_tokens=30"],
}
GENERATED_DATA = {"data=recall", "experiment=recall", "data=brackets"}
# Runs that other commands read; their training comes first.
RUNS = [
    "runs/first",
    "runs/on",
    "runs/off",
    "runs/second",
    "runs/t5",
    "runs/book",
    "runs/notes",
    "runs/tune",
]


def options_of(words: list[str]) -> dict[str, str]:
    """Return the options among the words of a command."""
    options = {}
    for word in words:
        name, _, value = word.partition("=")
        options[name] = value
    return options


def tiny(words: list[str]) -> list[str]:
    """Shrink a command to a small text and model; options on the page stay, except for lengths of runs."""
    command, *typed = words
    options = options_of(ADDED.get(command, []))
    if not GENERATED_DATA.isdisjoint(typed):
        for name in ("data", "data.path", "data.level"):
            del options[name]
    options.update(options_of(typed))
    for name in REPLACED.keys() & options_of(typed).keys():
        options[name] = REPLACED[name]
    return [command, *(f"{name}={value}" for name, value in options.items())]


def is_run_here(words: tuple[str, ...]) -> bool:
    """Return whether a test runs the command; models of Hugging Face need an extra."""
    if words[0] != "txl" or not NOT_RUN.isdisjoint(words):
        return False
    return "hf:" not in str(words) or find_spec("transformers") is not None


def test_every_command_is_a_known_one() -> None:
    assert {words[0] for words in commands()} == {"txl", *OTHER_PROGRAMS}


@pytest.mark.slow
def test_commands_that_cannot_run_here_compose() -> None:
    register()
    n_composed = 0
    for words in commands():
        programs = [word for word in words if word in ("txl", "txl_lightning.cli")]
        if not programs or is_run_here(words) or "--help" in words:
            continue
        command, *typed = words[words.index(programs[0]) + 1 :]
        overrides = []
        for word in typed:
            if word != "-m" and not word.startswith(("hydra", "optimizer.lr=tag")):
                first_of_sweep = re.sub(r"(=[^,(\['}]+),.*", r"\1", word)
                overrides.append(first_of_sweep)
        with initialize_config_dir(str(CONF), version_base="1.3"):
            config = compose(command, overrides=overrides)
        assert OmegaConf.to_container(config, throw_on_missing=False)
        n_composed += 1
    assert n_composed >= 20


def test_every_make_target_exists() -> None:
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.M)
    used = re.findall(r"`make ([a-z][\w-]*)", README.read_text())
    used += [words[1] for words in commands() if words[0] == "make"]
    assert {"reproduce", "test"} <= set(used) <= set(targets)


def test_every_reproduction_is_understood() -> None:
    n_parsed = 0
    for words in commands():
        if words[:2] == ("make", "reproduce"):
            variables = options_of(list(words[2:]))
            profile = variables.get("PROFILE", "laptop")
            arguments = ["--profile", profile, *shlex.split(variables.get("ARGS", ""))]
        elif words[:3] == ("python", "-m", "experiments.reproduce"):
            arguments = list(words[3:])
        else:
            continue
        assert parse(arguments).profile.name == arguments[arguments.index("--profile") + 1]
        n_parsed += 1
    assert n_parsed >= 6


@pytest.fixture
def working_directory(tmp_path: Path, monkeypatch: Patch) -> Path:
    """Write the files that commands of the pages read into a new working directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(
        "TXL_GUESTS",
        "examples/t5.py,examples/layer_scale.py,examples/brackets.py,"
        "examples/dynamic_evaluation.py",
    )
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    with (tmp_path / "book.txt").open("w") as book:
        for i in range(4000):
            if i % 50 == 0:
                book.write("CHAPTER")
            book.write(f"\nline {i}: the square of {i} is {i * i}\n")
    (tmp_path / "choices.tsv").write_text("context\tcontinuation\nline 7: the\t square\n")
    for code in blocks(ROOT / "docs/data.md", "python"):
        exec(code.replace("4_000", "400"), {})
    return tmp_path


def run_commands(pages: list[Path]) -> int:
    """Run the commands of pages in their order, trainings of RUNS first, and return their number."""
    calls = [list(words[1:]) for words in commands(pages) if is_run_here(words)]
    calls.sort(key=lambda words: words[-1].removeprefix("hydra.run.dir=") not in RUNS)
    for number, words in enumerate(calls):
        call = tiny(words)
        if "hydra.run.dir" not in options_of(call):
            call.append(f"hydra.run.dir=out/{number}")
        done = run_txl(*call)
        assert done.status == 0, f"{shlex.join(call)}\n{done.err[-2000:]}"
        assert "Warning: " not in done.err, f"{shlex.join(call)}\n{done.err[-2000:]}"
    return len(calls)


@pytest.mark.slow
@pytest.mark.usefixtures("no_guests", "working_directory")
def test_the_commands_of_the_readme_run() -> None:
    assert run_commands([README]) == 5


@pytest.mark.full
@pytest.mark.timeout(900)
@pytest.mark.usefixtures("no_guests")
def test_the_commands_of_all_pages_run(working_directory: Path) -> None:
    if find_spec("transformers"):
        save_tiny(working_directory / "tiny", "gpt2")
    assert run_commands(PAGES) >= 28
    for run in RUNS:
        assert run == "runs/tune" or Path(run, "metrics.json").is_file()
    tune = json.loads(Path("runs/tune/generation.json").read_text())
    assert len(tune["samples"][0]["tokens"]) == 30
