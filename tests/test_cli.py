"""The command as a user types it: results, help, and one clear line for bad input."""

import inspect
import json
import os
import platform
import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import lightning as L
import pytest
from omegaconf import OmegaConf

import txl_lightning
from tests.alone import printed
from tests.data.helpers import files
from tests.in_process import refusal, run_txl, success
from tests.training.small_run import TEXT, trained
from txl_lightning import __version__
from txl_lightning.cli import COMMANDS, main
from txl_lightning.command_line.messages import OF_LIGHTNING, suggestion
from txl_lightning.errors import OptionError, UserError, notice
from txl_lightning.files import LOCK, locked


def test_a_reader_that_stops_reading_is_no_error() -> None:
    words, pipe = [sys.executable, "-m", "txl_lightning.cli", "train", "--help"], subprocess.PIPE
    with subprocess.Popen(words, stdout=pipe, stderr=pipe, text=True) as command:
        command.stdout.close()  # type: ignore[union-attr]
        assert command.communicate()[1] == ""


FAULTS = """
import resource, torch
from txl_lightning.cli import COMMANDS
COMMANDS["train"].run
counts = []
for _ in range(40):
    torch.ones(25 << 20)
    counts.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt)
print(counts[-1] - counts[-11])
"""


@pytest.mark.slow
@pytest.mark.skipif(platform.libc_ver() < ("glibc", "2.35"), reason="older glibc cannot keep such a block, others none")
def test_a_command_gets_no_new_pages_for_blocks_that_it_has_freed() -> None:
    # Ten blocks of 25,600 pages: all new without the settings, a few under load.
    assert int(printed("-c", FAULTS)) < 5 * 25_600


MULTIRUN = ["train", "-m", "hydra.sweep.dir=run", "seed=1,2"]


OWN = """# @package _global_
defaults:
  - override /profile: smoke
  - override /data: mine
trainer: {max_steps: 4, num_threads: 1}
"""


def own_configs(directory: Path) -> Path:
    """Write an experiment and a corpus into a folder outside the package, and the corpus' text."""
    own = {
        "experiment/mine": OWN,
        "experiment/broken": "trainer: [1\n",
        "experiment/on": OWN.replace("/profile: smoke", "/memory: on"),
        "experiment/unknown": OWN.replace("max_steps", "max_stepz"),
        "data/mine": "defaults: [file]\npath: text.txt\ncache_dir: cache\n",
        "memory/short": 'defaults: ["on"]\nmem_len: 5\n',
    }
    files(directory, {"text.txt": TEXT * 40, **{f"own/{name}.yaml": text for name, text in own.items()}})
    return directory / "own"


@pytest.mark.parametrize("where", [["--config-dir", "own"], ["hydra.searchpath=[own]"]], ids=" ".join)
def test_own_files_of_groups_lie_anywhere(tmp_path: Path, where: list[str]) -> None:
    """Paths in them are those of the folder where the command started."""
    own_configs(tmp_path)
    notice.cache_clear()
    words = ("logger=none", *where, "experiment=mine", "hydra.job.chdir=true", "hydra.run.dir=run")
    done = success("train", *words, directory=tmp_path)
    assert "hydra.job.chdir=true has no effect: paths are relative to the folder where the command started" in done.err
    assert (tmp_path / "cache").is_dir()
    used = OmegaConf.load(tmp_path / "run/config.yaml")
    assert (used.trainer.max_steps, used.data.path) == (4, str(tmp_path / "text.txt"))
    assert json.loads((tmp_path / "run/metrics.json").read_text())["steps"] == 4
    text = run_txl("train", *where, "experiment=mine", "memory=short", "--help", directory=tmp_path).out
    shown = OmegaConf.create(text[text.index("model:\n") :])
    assert "  data: enwik8, file, lm1b, mine, ptb," in text
    assert (shown.trainer.max_steps, shown.memory.mem_len) == (4, 5)
    refused = refusal("train", *where, "experiment=my", directory=tmp_path)
    assert re.search(r"experiment=my: must be one of broken, laptop_baselines,.* mine, on, paper/", refused)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("broken", "experiment/broken.yaml"),
        ("unknown", "'max_stepz' not in 'TrainerConfig'"),
        ("on", 'true and false, quote them: override /memory: "off"'),
    ],
)
def test_a_fault_in_an_own_file_is_one_line(tmp_path: Path, name: str, message: str) -> None:
    own_configs(tmp_path)
    assert message in refusal("train", "--config-dir=own", f"experiment={name}", directory=tmp_path)


def test_an_own_file_with_the_name_of_one_of_ours_is_refused(tmp_path: Path) -> None:
    (own_configs(tmp_path) / "data/ptb.yaml").write_text("defaults: [file]\npath: text.txt\n")
    for words in (["--config-dir", "own", "experiment=mine"], ["-m", "hydra.searchpath=[own]", "seed=1,2"]):
        refused = refusal("train", *words, directory=tmp_path)
        assert "own/data/ptb.yaml: has the name of a file of txl_lightning" in refused


def test_options_that_replace_names_of_lightning_exist() -> None:
    schema, config = COMMANDS["train"].schema, OmegaConf.structured(txl_lightning.compose())
    for name in OF_LIGHTNING:
        hint = suggestion(f"trainer.{name}", schema)
        assert name in inspect.signature(L.Trainer).parameters or name == "ckpt_path"
        for option in re.findall(r"([a-z_.]+\.[a-z_]+)=", hint):
            assert OmegaConf.select(config, option, default="") != "" or "hydra" in option, option
    assert suggestion("max_epochs", schema) == " (a name of Lightning's; here: trainer.max_steps=N)"
    assert suggestion("trainer.max_epochs", COMMANDS["evaluate"].schema) == " (--help lists them)"


BEST, LINES = "checkpoint=FOLDER/run/checkpoints/best.ckpt", "data.path=FOLDER/text.txt"


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "words",
    [
        "train data=file data.path=PATH",
        "train data=file data.path={train:FOLDER/text.txt,valid:PATH,test:PATH}",
        f"train data=file {LINES} data.level=bpe data.tokenizer=PATH",
        "evaluate checkpoint=PATH",
        f"evaluate {BEST} data_path=PATH",
        f"generate {BEST} prompt_file=PATH",
        "convert source=PATH source_format=txl target=x target_format=original",
    ],
)
@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_a_pipe_or_a_device_is_refused_at_once(tmp_path: Path, words: str, kind: str) -> None:
    path = tmp_path / "pipe" if kind == "pipe" else Path("/dev/zero")
    os.mkfifo(tmp_path / "pipe")
    command, *given = words.replace("PATH", str(path)).replace("FOLDER", str(trained())).split()
    done = run_txl(command, *given, directory=tmp_path)
    assert done.status == 2
    (option,) = (word.partition("=")[0] for word in words.split() if "PATH" in word)
    line = done.err.splitlines()[-1]
    assert re.match(f"txl {command}: {option}.*(no such file|neither a file nor a folder)", line)


@pytest.mark.parametrize("option", ["prompt", "prompt_file", "checkpoint"])
def test_words_that_are_not_utf_8_are_refused(tmp_path: Path, option: str) -> None:
    said = "prompt='a\\udcff'" if option == "prompt" else f"{option}=a\\udcff"
    assert refusal("generate", f"{option}=a\udcff", directory=tmp_path) == f"txl generate: {said}: must be UTF-8\n"


WRITERS = [name for name, row in COMMANDS.items() if row.directory != "none"]


@pytest.mark.parametrize("words", [*([f"{name}", "hydra.run.dir=run"] for name in WRITERS), MULTIRUN], ids=" ".join)
def test_a_folder_into_which_another_command_writes_is_refused(tmp_path: Path, words: list[str]) -> None:
    with locked(tmp_path / "run"):
        refused = refusal(*words, directory=tmp_path)
    assert [path.name for path in (tmp_path / "run").iterdir()] == [LOCK]  # nothing of Hydra
    folder = "run" if "-m" in words else f"{tmp_path}/run"
    assert refused.startswith(f"txl {words[0]}: {folder}: another command writes into this folder")


@pytest.mark.parametrize("link", [".lock", "checkpoints", "checkpoints/memory", "metrics.csv", "config.yaml", ".hydra"])
@pytest.mark.parametrize("words", [["train", "resume=auto"], ["evaluate"], ["train", "-m"]], ids=" ".join)
def test_nothing_is_written_or_deleted_through_a_link(tmp_path: Path, words: list[str], link: str) -> None:
    outside, run = tmp_path / "outside", tmp_path / "run"
    (run / link).parent.mkdir(parents=True)
    outside.mkdir()
    (outside / "file").write_text("kept")
    (run / link).symlink_to(outside / "file" if "." in link[1:] or link == ".lock" else outside)
    where = "hydra.sweep.dir=run" if "-m" in words else "hydra.run.dir=run"
    assert f"run/{link}: is a link to {outside}" in refusal(*words, where, directory=tmp_path)
    assert [(path.name, path.read_text()) for path in outside.iterdir()] == [("file", "kept")]


def test_a_command_holds_the_lock_of_its_folder_while_it_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(options: object, directory: Path) -> list[str]:
        with pytest.raises(UserError, match="another command writes"), locked(directory):
            pass
        return ["held"]

    monkeypatch.setattr("txl_lightning.evaluation.speed.run", run)
    assert run_txl("speed", f"hydra.run.dir={tmp_path}/run").out == f"held\n{tmp_path}/run\n"
    with locked(tmp_path / "run"):
        pass


def test_the_traceback_is_shown_on_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
    with pytest.raises(OptionError, match=r"memory\.mem_len=-1"):
        run_txl("train", "memory.mem_len=-1", directory=tmp_path)


INTERRUPTED_IMPORT = """
import os, signal, sys

class AtImport:
    def find_spec(self, name, *_):
        if name == module:
            os.kill(os.getpid(), signal.SIGINT)

module, sys.argv = sys.argv[1], ["txl", "train", "hydra.run.dir=run", "data=recall"]
sys.meta_path.insert(0, AtImport())
from txl_lightning.cli import main
main()
"""


@pytest.mark.parametrize("module", ["yaml", "hydra_plugins", "torch", "txl_lightning.training.run"])
def test_ctrl_c_during_an_import_ends_with_one_line(tmp_path: Path, module: str) -> None:
    words = [sys.executable, "-c", INTERRUPTED_IMPORT, module]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 130
    assert done.stderr in ("txl: interrupted\n", "txl train: interrupted\n")


def test_help_lists_commands_groups_and_options(tmp_path: Path) -> None:
    help_text = run_txl("--help").out
    for words in (["--version"], ["train", "--version"], ["train", "seed=1", "--version"]):
        assert run_txl(*words) == (0, f"txl_lightning {__version__}\n", "")
    said = run_txl("env").out
    assert said.startswith(f"txl_lightning {__version__} in {Path(txl_lightning.__file__).parent}\nPython 3.")
    assert f"torch {version('torch')}, lightning {version('lightning')}, hydra-core 1.3." in said
    assert "txl train [overrides]" in help_text
    assert all(f"txl {name} " in help_text for name in COMMANDS)
    assert max(map(len, help_text.splitlines())) <= 120
    groups = run_txl("train", "--help").out
    assert all(words in groups for words in ("memory: off, on\n", "n_layer", "paper/table6"))
    assert "checkpoints: []" in run_txl("recl", "--help").out
    assert "mem_len: 7" in run_txl("train", "memory.mem_len=7", "--help").out
    assert run_txl().status == 2


def test_the_command_leaves_arguments_and_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["txl", "evaluate", "checkpoint=missing.ckpt"]
    monkeypatch.setattr(sys, "argv", words)
    variables = dict(os.environ)
    with pytest.raises(SystemExit, match="2"):
        main()
    assert sys.argv is words
    assert (words, dict(os.environ)) == (["txl", "evaluate", "checkpoint=missing.ckpt"], variables)
