"""Run every command of the documentation at tiny size; compose those that need hardware, a network or minutes."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterator, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from omegaconf import OmegaConf

from experiments.reproduce import parse
from sweeps import dashboard
from tests.docs.pages import ROOT, Command, commands
from tests.evaluation.language_models.tiny_huggingface import save_tiny
from tests.training.small_run import TINY
from txl_lightning import cli
from txl_lightning.command_line.hydra_app import literal
from txl_lightning.config.encoding_kinds import KINDS
from txl_lightning.config.schemas import CONF
from txl_lightning.model.encodings import ENCODINGS

NOT_RUN = {  # a word of the command: why it is only composed
    "trainer=gpu": "needs a GPU",
    "trainer=ddp": "needs eight GPUs",
    "experiment=paper/wt103_base": "needs a GPU and the corpus",
    "data=enwik8": "needs the corpus",
    "data=wikitext-103": "needs the corpus",
    "source_format=tensorflow": "needs a published checkpoint; tests/runs/convert has small ones",
    "accelerator=gpu": "needs a GPU",
    "source_format=huggingface": "needs a checkpoint of Hugging Face's; tests/runs/convert has a small one",
    "checkpoint=a.ckpt": "needs the checkpoint that the conversion writes",
    "n_positions=5000": "takes minutes",
    "models=[hf:gpt2,hf:distilgpt2]": "needs a network",
    "trainer.devices=2": "starts processes; tests/training runs several",
    "-m": "a multirun; tests/hydra_plugins and tests/test_multirun.py run some",
    "--help": "tests/test_cli.py has a test of it",
}
NOT_TXL = {  # the first word of a command other than txl: why it is not run
    "benchmarks/gpu.sh": "needs a GPU; tests/benchmarks has a dry run",
    "make": "targets and arguments are checked; tests/experiments runs a reproduction",
    "source": "a word of the shell",
    "export": "a word of the shell; the test sets the variable",
    "pip": "installs packages",
    "wandb": "needs an account",
    "torchrun": "starts processes; the part from `txl_lightning.cli` on is composed",
    "srun": "needs a cluster; the part from `txl` on is composed",
    "python": "parsed by its own parser",
}
SHORT = (
    *("trainer.max_steps=6", "trainer.val_every_n_steps=3"),
    *("evaluation.max_segments=3", "trainer.val_max_segments=3"),
)
SMALLER = {
    "train": [*TINY, *SHORT, "data.path=book.txt", "data.cache_dir=cache"],
    "evaluate": ["max_segments=3"],
    "recl": ["first_context=4", "step=4", "max_context=12", "n_positions=20", "bootstrap=50", "store=losses"],
    "attention": ["max_segments=40"],
    "speed": ["rounds=3"],
    "generate": ["n_tokens=30"],
}
LOGGING = ("recl", "attention")
REPLACED = {"trainer.max_steps": "9", "n_tokens": "30", "max_segments": "40", "data.vocab_size": "300"}
REPLACED |= {"context_curve.every_n_steps": "3", "checkpoint.keep_every_n_steps": "3", "attention_lengths": "[30,60]"}
TINY_SPEED = ["levels=[char]", "attention_lengths=[30,60]", "n_layer=1", "d_model=16", "n_head=2", "d_inner=16"]
RUNS = ("runs/first", "runs/second", "runs/t5", "runs/kept", "runs/book")  # other commands read them


def txl_words(command: Command) -> list[str] | None:
    """The words after `txl`, also where a launcher stands before it; None for other programs."""
    words = list(command.words)
    found = [index for index, word in enumerate(words) if word in ("txl", "txl_lightning.cli")]
    return words[found[0] + 1 :] if found else None


def tiny(words: list[str]) -> list[str]:
    """Shrink a command to a small text and model; options on the page stay, except for lengths of runs."""
    command, *typed = words
    keys = [word.split("=")[0] for word in typed]
    typed = [f"{key}={REPLACED.get(key, word.partition('=')[2])}" for key, word in zip(keys, typed, strict=True)]
    smaller = [*SMALLER.get(command, []), *(TINY_SPEED if command == "speed" and "checkpoint" not in keys else [])]
    smaller = [word for word in smaller if word.split("=")[0] not in keys]
    return [command, *typed, *smaller, *(["logger=none"] if command in LOGGING else [])]


def runs_here(words: Sequence[str]) -> bool:
    """Whether a command can run here; models of Hugging Face need an extra."""
    has_library = find_spec("transformers") is not None
    return not any(word in NOT_RUN or ("hf:" in word and not has_library) for word in words)


def must_run(page: str = "") -> list[list[str]]:
    """The commands of a page or of all that run here: first the runs that others need, then in the pages' order."""
    calls = [command.words[1:] for command in commands() if command.words[0] == "txl" and page in ("", command.page)]
    here = [list(words) for words in calls if runs_here(words)]
    needed = [words for words in here if words[-1].removeprefix("hydra.run.dir=") in RUNS]
    return needed + [words for words in here if words not in needed]


def test_every_command_is_a_known_one() -> None:
    first_words = {command.words[0] for command in commands()}
    assert first_words == {"txl", *NOT_TXL}
    typed = {word for command in commands() for word in command.words}
    assert set(NOT_RUN) <= typed, "a reason without a command"


def test_commands_that_cannot_run_here_compose() -> None:
    cli.register_all()
    running = must_run()
    found = [words for command in commands() if (words := txl_words(command)) is not None and words not in running]
    found = [words for words in found if "--help" not in words]
    assert len(found) >= 20
    for command, *words in found:
        first = [re.sub(r"(=[^,(\['}]+),.*", r"\1", word) for word in words if word != "-m"]
        first = [literal(word, ("prompt",)) for word in first if not word.startswith(("hydra", "optimizer.lr=tag"))]
        with initialize_config_dir(str(CONF), version_base="1.3"):
            config = compose("config" if command == "train" else command, overrides=first)
        assert OmegaConf.to_container(config, throw_on_missing=False)


def test_every_make_target_exists() -> None:
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.M))
    pages = "\n".join([*(" ".join(command.words) for command in commands()), (ROOT / "README.md").read_text()])
    used = set(re.findall(r"\bmake ([a-z][\w-]*)", "\n".join(c for c in pages.splitlines() if "make " in c)))
    assert used & targets >= {"reproduce", "test"}
    for command in commands():
        if command.words[0] == "make":
            assert command.words[1] in targets, command


def test_every_reproduction_is_understood() -> None:
    n_found = 0
    for command in commands():
        words = list(command.words)
        if words[:2] == ["make", "reproduce"]:
            variables = dict(word.split("=", 1) for word in words[2:])
            words = ["--profile", variables.get("PROFILE", "laptop"), *shlex.split(variables.get("ARGS", ""))]
        elif words[:3] == ["python", "-m", "experiments.reproduce"]:
            words = words[3:]
        else:
            continue
        n_found += 1
        assert parse(words).profile.name == words[words.index("--profile") + 1]
    assert n_found >= 8


def test_the_dashboard_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (words,) = {c.words for c in commands() if "sweeps.dashboard" in c.words and "--push" not in c.words}
    dashboard.main(list(words[3:]))
    assert (tmp_path / words[-1]).stat().st_size > 1000


@pytest.fixture
def one_process(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Undo the changes that a command makes to its process."""
    threads, kinds = torch.get_num_threads(), set(KINDS)
    monkeypatch.setenv("HYDRA_FULL_ERROR", "0")
    yield
    torch.set_num_threads(threads)
    GlobalHydra.instance().clear()
    for name in set(KINDS) - kinds:
        del KINDS[name], ENCODINGS[name]
    for name in [name for name in sys.modules if name.startswith("txl_encodings:")]:
        del sys.modules[name]


@pytest.mark.timeout(900)
@pytest.mark.usefixtures("one_process")
@pytest.mark.parametrize(
    ("page", "least"), [("README.md", 6), pytest.param("", 28, marks=pytest.mark.slow)], ids=["README", "all pages"]
)
def test_the_commands_run(
    page: str, least: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Run them in one folder and one process, in the order of the pages."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TXL_ENCODINGS", "examples/t5.py")
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    lines = (f"{'' if i % 50 else 'CHAPTER'}\nline {i}: the square of {i} is {i * i}\n" for i in range(4000))
    (tmp_path / "book.txt").write_text("".join(lines))
    (tmp_path / "prompts.txt").write_text("line 7\nthe\n")
    if find_spec("transformers") and not page:
        save_tiny(import_module("transformers"), tmp_path / "tiny", "gpt2")
    found = must_run(page)
    assert len(found) >= least
    for number, words in enumerate(found):
        given = tiny(words)
        directory = [] if any(word.startswith("hydra.run.dir=") for word in given) else [f"hydra.run.dir=out/{number}"]
        monkeypatch.setattr(sys, "argv", ["txl", *given, *directory])
        GlobalHydra.instance().clear()
        try:
            cli.main()
        except SystemExit as error:
            pytest.fail(f"{shlex.join(given)}: exit status {error.code}\n{capsys.readouterr().err[-2000:]}")
    assert page or all(Path(run, "metrics.json").is_file() for run in RUNS)
