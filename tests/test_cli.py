"""The command as a user types it: help, one clear line for bad input, its folder."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import pytest
from omegaconf import OmegaConf

import txl_lightning
from tests.data.helpers import files
from tests.in_process import refusal, run_txl, success
from tests.training.small_run import TEXT, trained
from txl_lightning import __version__
from txl_lightning.errors import OptionError, UserError
from txl_lightning.files import LOCK, locked
from txl_lightning.registry import COMMANDS


def test_help_lists_the_commands() -> None:
    help_text = run_txl("--help").out
    assert "txl train [overrides]" in help_text
    assert all(f"txl {name}" in help_text for name in COMMANDS)
    assert max(map(len, help_text.splitlines())) <= 120
    assert run_txl().status == 2


def test_the_help_of_a_command_lists_groups_with_their_choices_and_options() -> None:
    said = run_txl("train", "memory.mem_len=7", "--help").out
    assert "memory: off, on\n" in said
    assert "encoding: absolute, al_rfou, alibi, none, relative, rope, shaw\n" in said
    assert re.search(r"\nmemory\.mem_len=7 +# M, longest memory", said)
    assert "schema" not in said
    assert "checkpoints=[]" in run_txl("recl", "--help").out


@pytest.mark.parametrize("command", COMMANDS)
def test_the_help_of_a_command_has_a_meaning_for_every_option(command: str) -> None:
    groups = []
    if command == "train":
        groups = ["data=file", "encoding=shaw", "variant=compressive", "logger=csv"]
    said = run_txl(command, *groups, "--help").out
    options = said.partition("== Options ==\n")[2].splitlines()
    assert options
    of_libraries = ("logger.csv.", "logger.wandb=", "variant.name=")
    for line in options:
        assert re.fullmatch(r"[\w.]+=.*  # \S.*", line) or line.startswith(of_libraries), line


@pytest.mark.parametrize(
    "words", [["--version"], ["train", "--version"], ["train", "seed=1", "--version"]]
)
def test_the_version(words: list[str]) -> None:
    assert run_txl(*words) == (0, f"txl_lightning {__version__}\n", "")


def test_the_environment() -> None:
    said = run_txl("env").out
    assert said.startswith(
        f"txl_lightning {__version__} in {Path(txl_lightning.__file__).parent}\nPython 3."
    )
    assert f"torch {version('torch')}, lightning {version('lightning')}, hydra-core 1.3." in said


@pytest.mark.parametrize("words", [["--help"], ["train", "--help"]])
def test_a_reader_that_stops_reading_is_no_error(words: list[str]) -> None:
    words = [sys.executable, "-m", "txl_lightning.cli", *words]
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as command:
        command.stdout.close()  # type: ignore[union-attr]
        assert command.communicate()[1] == ""


OWN = """# @package _global_
defaults:
  - override /profile: smoke
  - override /data: mine
trainer: {max_steps: 4, num_threads: 1}
"""


def own_configs(directory: Path) -> None:
    """Write an experiment and a corpus into a folder outside the package, and the corpus' text."""
    own = {
        "own/experiment/mine.yaml": OWN,
        "own/experiment/unknown.yaml": OWN.replace("max_steps", "max_stepz"),
        "own/data/mine.yaml": "defaults: [file]\npath: text.txt\ncache_dir: cache\n",
        "text.txt": TEXT * 40,
    }
    files(directory, own)


@pytest.mark.parametrize(
    "where", [["--config-dir", "own"], ["hydra.searchpath=[own]"]], ids=" ".join
)
def test_own_files_of_groups_lie_anywhere(tmp_path: Path, where: list[str]) -> None:
    own_configs(tmp_path)
    success(
        "train", *where, "logger=none", "experiment=mine", "hydra.run.dir=run", directory=tmp_path
    )
    used = OmegaConf.load(tmp_path / "run/config.yaml")
    assert (used.trainer.max_steps, used.data.path) == (4, str(tmp_path / "text.txt"))


def test_a_fault_in_an_own_file_is_one_line(tmp_path: Path) -> None:
    own_configs(tmp_path)
    said = refusal("train", "--config-dir=own", "experiment=unknown", directory=tmp_path)
    assert (
        said == "txl train: trainer.max_stepz=4: no such option, did you mean trainer.max_steps?\n"
    )


def test_an_own_file_with_the_name_of_one_of_ours_is_refused(tmp_path: Path) -> None:
    own_configs(tmp_path)
    (tmp_path / "own/data/ptb.yaml").write_text("defaults: [file]\npath: text.txt\n")
    for words in (
        ["--config-dir", "own", "experiment=mine"],
        ["-m", "hydra.searchpath=[own]", "seed=1,2"],
    ):
        refused = refusal("train", *words, directory=tmp_path)
        assert "own/data/ptb.yaml: has the name of a file of txl_lightning" in refused


BEST, LINES = "checkpoint=FOLDER/run/checkpoints/best.ckpt", "data.path=FOLDER/text.txt"


@pytest.mark.timeout(60)
@pytest.mark.parametrize("path", ["pipe", "/dev/zero"])
@pytest.mark.parametrize(
    "words",
    [
        "train data=file data.path=PATH",
        "train data=file data.path={train:TRAINED/text.txt,valid:PATH,test:PATH}",
        "train data=file data.path=TRAINED/text.txt data.level=bpe data.tokenizer=PATH",
        "evaluate checkpoint=PATH",
        "evaluate checkpoint=TRAINED/run/checkpoints/best.ckpt data_path=PATH",
        "convert source=PATH source_format=txl target=x target_format=original",
    ],
)
def test_a_pipe_or_a_device_is_refused_at_once(tmp_path: Path, words: str, path: str) -> None:
    os.mkfifo(tmp_path / "pipe")
    (option,) = re.findall(r"(\S+)=[^ =]*PATH", words)
    given = words.replace("PATH", str(tmp_path / path)).replace("TRAINED", str(trained()))
    command, *options = given.split()
    done = run_txl(command, *options, directory=tmp_path)
    assert done.status == 2
    line = done.err.splitlines()[-1]
    assert line.startswith(f"txl {command}: {option}")
    assert "no such file" in line or "neither a file nor a folder" in line


WRITERS = [[name, "hydra.run.dir=run"] for name in COMMANDS if name != "convert"]
MULTIRUN = ["train", "-m", "hydra.sweep.dir=run", "seed=1,2"]


@pytest.mark.parametrize("words", [*WRITERS, MULTIRUN], ids=" ".join)
def test_a_folder_into_which_another_command_writes_is_refused(
    tmp_path: Path, words: list[str]
) -> None:
    with locked(tmp_path / "run"):
        refused = refusal(*words, directory=tmp_path)
    assert [path.name for path in (tmp_path / "run").iterdir()] == [LOCK]  # nothing of Hydra
    assert refused.startswith(f"txl {words[0]}: run: another command writes into this folder")


@pytest.mark.parametrize("link", ["checkpoints", "validation.jsonl", ".hydra"])
@pytest.mark.parametrize(
    "words",
    [["evaluate", "hydra.run.dir=run"], ["train", "-m", "hydra.sweep.dir=run"]],
    ids=" ".join,
)
def test_nothing_is_written_or_deleted_through_a_link(
    tmp_path: Path, words: list[str], link: str
) -> None:
    target = tmp_path / "outside"
    files(tmp_path, {"outside/file": "kept", "run/file": ""})
    if link == "validation.jsonl":
        target /= "file"
    (tmp_path / "run" / link).symlink_to(target)

    refused = refusal(*words, directory=tmp_path)

    assert f"run/{link}: is a link to {target}" in refused
    assert [path.name for path in (tmp_path / "outside").iterdir()] == ["file"]
    assert (tmp_path / "outside/file").read_text() == "kept"


def run_instead(monkeypatch: pytest.MonkeyPatch, run: Callable[[object, Path], object]) -> None:
    """Replace the function of `txl speed`."""
    monkeypatch.setattr("txl_lightning.evaluation.speed.run", run)


def test_a_command_holds_the_lock_of_its_folder_while_it_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(options: object, directory: Path) -> list[str]:
        with pytest.raises(UserError, match="another command writes"), locked(directory):
            pass
        return ["held"]

    run_instead(monkeypatch, run)
    assert run_txl("speed", f"hydra.run.dir={tmp_path}/run").out == f"held\n{tmp_path}/run\n"
    with locked(tmp_path / "run"):
        pass


def test_the_traceback_is_shown_on_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
    with pytest.raises(OptionError, match=r"memory\.mem_len=-1"):
        run_txl("train", "memory.mem_len=-1", directory=tmp_path)


def test_a_defect_shows_its_traceback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_instead(monkeypatch, lambda options, directory: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        run_txl("speed", directory=tmp_path)


def test_ctrl_c_ends_with_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_instead(monkeypatch, lambda options, directory: signal.raise_signal(signal.SIGINT))
    done = run_txl("speed", directory=tmp_path)
    assert done.status == 130
    assert done.err == "txl speed: interrupted\n"


def test_a_further_rank_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setattr("txl_lightning.recl.command.run", lambda options, directory: ["a line"])
    done = success("recl", "checkpoints=[a.ckpt]", directory=tmp_path)
    assert (done.out, list(tmp_path.iterdir())) == ("", [])
