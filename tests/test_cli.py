"""The command as a user types it: results, help, and one clear line for bad input."""

import inspect
import json
import os
import platform
import re
import subprocess
import sys
from functools import cache
from importlib.metadata import version
from pathlib import Path

import lightning as L
import pytest
import torch
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig, OmegaConf

import txl_lightning
from tests.in_process import run_txl
from tests.training.small_run import trained
from txl_lightning import __version__
from txl_lightning.cli import COMMANDS, main, register
from txl_lightning.command_line.messages import OF_LIGHTNING, suggestion
from txl_lightning.config.schemas import CONF
from txl_lightning.errors import OptionError, UserError
from txl_lightning.jobs import LOCK, JobFolder


def test_a_reader_that_stops_reading_is_no_error() -> None:
    words, pipe = [sys.executable, "-m", "txl_lightning.cli", "train", "--help"], subprocess.PIPE
    with subprocess.Popen(words, stdout=pipe, stderr=pipe, text=True) as command:
        command.stdout.close()  # type: ignore[union-attr]
        assert command.communicate()[1] == ""


FAULTS = """
import resource, torch
from txl_lightning import __version__
from txl_lightning.cli import COMMANDS
COMMANDS["train"].run
counts = []
for _ in range(40):
    block = torch.ones(25 << 20)
    del block
    counts.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt)
print(counts[-1] - counts[-11])
"""


@pytest.mark.skipif(platform.libc_ver() < ("glibc", "2.35"), reason="older glibc cannot keep such a block, others none")
def test_a_command_gets_no_new_pages_for_blocks_that_it_has_freed() -> None:
    found = subprocess.run([sys.executable, "-c", FAULTS], capture_output=True, text=True, check=True)
    assert int(found.stdout) < 5 * 25_600  # ten blocks of 25,600 pages: all new without the settings, a few under load


MULTIRUN = ["train", "-m", "hydra.sweep.dir=run", "seed=1,2"]


def files(directory: Path) -> None:
    (directory / "empty.txt").touch()
    (directory / "short.txt").write_text("too short for sixteen streams\n")
    (directory / "no.ckpt").write_text("no checkpoint\n")
    torch.save({"state_dict": {}}, directory / "other.ckpt")
    (directory / "old/checkpoints").mkdir(parents=True)
    (directory / "old/checkpoints/last.ckpt").touch()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["train", "modle.n_layer=3"], "modle.n_layer=3: no such option, did you mean model.n_layer?"),
        (["train", "mem_len=-1"], "mem_len=-1: no such option, did you mean memory.mem_len or evaluation.mem_len?"),
        (["train", "+model.n_layers=3"], "+model.n_layers=3: options cannot be added, did you mean model.n_layer"),
        (["train", "hydra.run.dir=empty.txt/run"], "hydra.run.dir=empty.txt/run: cannot be used ("),
        (["train", "encoding=null", "--help"], "encoding=null: must be one of absolute, al_rfou, alibi"),
        (["train", "memory=on,off"], "'memory=on,off' 1. To use it as a list"),
        (["train", "model=[lstm,qrnn]"], "takes one choice; several need -m (a multirun): model=lstm,qrnn"),
        (["train", "trainer.max_steps=many"], "trainer.max_steps=many: Value 'many'"),
        (["train", "data.path=a (1).txt"], "data.path=a (1).txt: cannot be parsed; a value with special signs needs"),
        (["train", "smaller"], "smaller: must be option=value"),
        (["train", "--trainer.max_steps=2"], "no such flag; options have no dashes: trainer.max_steps=2 ("),
        (["train", "experiment=published/enwik8_large"], "experiment=published/enwik8_large: must be one of laptop_"),
        (["evaluate", "experiment=paper/enwik8_large"], "experiment=paper/enwik8_large: must be one of published/"),
        (["evaluate", "--checkpoint", "a.ckpt"], "--checkpoint: no such flag; options have no dashes: checkpoint=…"),
        (["evaluate"], "txl evaluate: checkpoint: must be given (checkpoint=…)"),
        (["evaluate", "checkpoint=empty.txt"], "checkpoint=empty.txt: is not a checkpoint"),
        (["evaluate", "checkpoint=a", "attention_lengths=64"], "attention_lengths=64: Invalid value assigned: int is"),
        (["recl", "checkpoints=[a.ckpt,"], "checkpoints=[a.ckpt,: a bracket or a quote is missing"),
        (["train", "hydra.searchpath=[pkg://nosuch.conf]"], "path=nosuch.conf is not available"),
        (["train", "hydra.searchpath=conf"], "hydra.searchpath must be a list of strings. Got: conf"),
        (["train", "--config-name=nosuch"], "Cannot find primary config 'nosuch'"),
        (
            ["train", "--experimental-rerun=a.pickle"],
            "--experimental-rerun=a.pickle: is not supported, its file can run code",
        ),
        (["train", "--cfg"], "argument --cfg/-c: expected one argument (--hydra-help lists the flags)"),
        (
            ["train", "data=file", "data.level=byte", "data.path=short.txt", "trainer.precision=32-true"],
            "a target need 1,040; data.batch_size=1 data.segment_len=26 fits",
        ),
        (
            ["train", "data=recall", "resume=old"],
            "resume=old: is a folder: give a file in it",
        ),
        (["fly"], "unknown command 'fly': must be one of train, evaluate"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_bad_input_ends_soon_with_one_clear_line(tmp_path: Path, arguments: list[str], words: str) -> None:
    files(tmp_path)
    done = run_txl(*arguments, directory=tmp_path)
    assert done.status == 2
    assert words in done.err
    assert done.out == ""
    assert len(done.err.strip().splitlines()) == 1


OWN = """# @package _global_
defaults:
  - override /profile: smoke
  - override /data: mine
trainer: {max_steps: 4, num_threads: 1}
"""


def own_configs(directory: Path) -> Path:
    """Write an experiment and a corpus into a folder outside the package, and the corpus' text."""
    (directory / "text.txt").write_text("".join(f"{i} plus one is {i + 1}\n" for i in range(2000)))
    for group, name, text in (
        ("experiment", "mine", OWN),
        ("experiment", "broken", "trainer: [1\n"),
        ("experiment", "on", OWN.replace("/profile: smoke", "/memory: on")),
        ("experiment", "unknown", OWN.replace("max_steps", "max_stepz")),
        ("data", "mine", "defaults: [file]\npath: text.txt\ncache_dir: cache\n"),
        ("memory", "short", 'defaults: ["on"]\nmem_len: 5\n'),
    ):
        (directory / "own" / group).mkdir(parents=True, exist_ok=True)
        (directory / "own" / group / f"{name}.yaml").write_text(text)
    return directory / "own"


@pytest.mark.parametrize("where", [["--config-dir", "own"], ["hydra.searchpath=[own]"]], ids=" ".join)
def test_own_files_of_groups_lie_anywhere(tmp_path: Path, where: list[str]) -> None:
    own_configs(tmp_path)
    done = run_txl("train", "logger=none", *where, "experiment=mine", "hydra.run.dir=run", directory=tmp_path)
    assert done.status == 0, done.err
    used = OmegaConf.load(tmp_path / "run/config.yaml")
    assert (used.trainer.max_steps, used.data.path) == (4, str(tmp_path / "text.txt"))
    assert json.loads((tmp_path / "run/metrics.json").read_text())["steps"] == 4
    text = run_txl("train", *where, "experiment=mine", "memory=short", "--help", directory=tmp_path).out
    shown = OmegaConf.create(text[text.index("model:\n") :])
    assert "  data: enwik8, file, lm1b, mine, ptb," in text
    assert (shown.trainer.max_steps, shown.memory.mem_len) == (4, 5)
    refused = run_txl("train", *where, "experiment=my", directory=tmp_path)
    assert "experiment=my: must be one of broken, laptop_baselines," in refused.err
    assert "mine, on, paper/" in refused.err


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
    done = run_txl("train", "--config-dir=own", f"experiment={name}", directory=tmp_path)
    assert (done.status, done.out, len(done.err.splitlines())) == (2, "", 1)
    assert message in done.err


def test_an_own_file_with_the_name_of_one_of_ours_is_refused(tmp_path: Path) -> None:
    (own_configs(tmp_path) / "data/ptb.yaml").write_text("defaults: [file]\npath: text.txt\n")
    for words in (["--config-dir", "own", "experiment=mine"], ["-m", "hydra.searchpath=[own]", "seed=1,2"]):
        done = run_txl("train", *words, directory=tmp_path)
        assert (done.status, len(done.err.splitlines())) == (2, 1)
        assert "own/data/ptb.yaml: has the name of a file of txl_lightning" in done.err


def test_options_that_replace_names_of_lightning_exist() -> None:
    schema = COMMANDS["train"].schema
    for name in OF_LIGHTNING:
        hint = suggestion(f"trainer.{name}", schema)
        assert name in inspect.signature(L.Trainer).parameters or name == "ckpt_path"
        for option in re.findall(r"([a-z_.]+\.[a-z_]+)=", hint):
            assert OmegaConf.select(options_of("train"), option, default="") != "" or "hydra" in option, option
    assert suggestion("max_epochs", schema) == " (a name of Lightning's; here: trainer.max_steps=N)"
    assert suggestion("trainer.max_epochs", COMMANDS["evaluate"].schema) == " (--help lists them)"


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("words", "option"),
    [
        (["train", "data=file", "data.path=PATH"], "data.path"),
        (["train", "data=file", "data.path={train:TEXT,valid:PATH,test:TEXT}"], "data.path"),
        (["train", "data=file", "data.path=TEXT", "data.level=bpe", "data.tokenizer=PATH"], "data.tokenizer"),
        (["evaluate", "checkpoint=PATH"], "checkpoint"),
        (["evaluate", "checkpoint=BEST", "data_path=PATH"], "data_path"),
        (["generate", "checkpoint=BEST", "prompt_file=PATH"], "prompt_file"),
        (["convert", "source=PATH", "source_format=txl", "target=x", "target_format=original"], "source"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else value,
)
@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_a_pipe_or_a_device_is_refused_and_not_waited_for(
    tmp_path: Path, words: list[str], option: str, kind: str
) -> None:
    path = tmp_path / "pipe" if kind == "pipe" else Path("/dev/zero")
    os.mkfifo(tmp_path / "pipe")
    whole = trained()
    known = {"PATH": path, "TEXT": whole / "text.txt", "BEST": whole / "run/checkpoints/best.ckpt"}
    for name, value in known.items():
        words = [word.replace(name, str(value)) for word in words]
    done = run_txl(*words, directory=tmp_path)
    assert done.status == 2
    line = done.err.splitlines()[-1]
    assert line.startswith(f"txl {words[0]}: {option}")
    assert "no such file" in line or "neither a file nor a folder" in line


@pytest.mark.parametrize("option", ["prompt", "prompt_file", "checkpoint"])
def test_words_that_are_not_utf_8_are_refused(tmp_path: Path, option: str) -> None:
    done = run_txl("generate", f"{option}=a\udcff", directory=tmp_path)
    said = {"prompt": "prompt='a\\udcff'"}.get(option, f"{option}=a\\udcff")
    assert (done.status, done.err) == (2, f"txl generate: {said}: must be UTF-8\n")


WRITERS = [name for name, row in COMMANDS.items() if row.directory != "none"]


@pytest.mark.parametrize("words", [*([f"{name}", "hydra.run.dir=run"] for name in WRITERS), MULTIRUN], ids=" ".join)
def test_a_folder_into_which_another_command_writes_is_refused(tmp_path: Path, words: list[str]) -> None:
    with JobFolder(tmp_path / "run").locked():
        done = run_txl(*words, directory=tmp_path)
    assert [path.name for path in (tmp_path / "run").iterdir()] == [".lock"]  # nothing of Hydra
    assert done.status == 2
    line = f"txl {words[0]}: {tmp_path if '-m' not in words else '.'}/run: another command writes into this folder"
    assert done.err.startswith(line.replace("./", ""))
    assert (done.out, len(done.err.splitlines())) == ("", 1)
    assert {path.name for path in (tmp_path / "run").iterdir()} <= {LOCK, ".hydra"}


@pytest.mark.parametrize("link", [".lock", "checkpoints", "checkpoints/memory", "metrics.csv", "config.yaml", ".hydra"])
@pytest.mark.parametrize("words", [["train", "resume=auto"], ["evaluate"], ["train", "-m"]], ids=" ".join)
def test_nothing_is_written_or_deleted_through_a_link(tmp_path: Path, words: list[str], link: str) -> None:
    outside, run = tmp_path / "outside", tmp_path / "run"
    (run / link).parent.mkdir(parents=True)
    outside.mkdir()
    (outside / "file").write_text("kept")
    (run / link).symlink_to(outside / "file" if "." in link[1:] or link == ".lock" else outside)
    where = "hydra.sweep.dir=run" if "-m" in words else "hydra.run.dir=run"
    done = run_txl(*words, where, directory=tmp_path)
    assert done.status == 2
    assert f"run/{link}: is a link to {outside}" in done.err
    assert (len(done.err.splitlines()), done.out) == (1, "")
    assert [(path.name, path.read_text()) for path in outside.iterdir()] == [("file", "kept")]


def test_a_command_holds_the_lock_of_its_folder_while_it_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(options: object, directory: Path) -> list[str]:
        with pytest.raises(UserError, match="another command writes"), JobFolder(directory).locked():
            pass
        return ["held"]

    monkeypatch.setattr("txl_lightning.measure.speed.run", run)
    assert run_txl("speed", f"hydra.run.dir={tmp_path}/run").out == f"held\n{tmp_path}/run\n"
    with JobFolder(tmp_path / "run").locked():
        pass


@cache
def options_of(command: str) -> DictConfig:
    register()
    with initialize_config_dir(str(CONF), version_base="1.3"):
        return compose(COMMANDS[command].config_name)


def test_the_traceback_is_shown_on_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
    with pytest.raises(OptionError, match=r"memory\.mem_len=-1"):
        run_txl("train", "memory.mem_len=-1", directory=tmp_path)


@pytest.mark.parametrize(
    ("code", "absent"),
    [
        ("import txl_lightning.cli", ("torch", "hydra", "omegaconf", "numpy")),
        ("import txl_lightning.command_line.hydra_app", ("torch", "lightning", "matplotlib", "wandb", "optuna")),
        ("from txl_lightning.cli import register; register()", ("torch", "lightning", "numpy")),
        ("import txl_lightning; txl_lightning.__version__", ("torch", "hydra")),
    ],
)
def test_start_up_imports_only_the_necessary(code: str, absent: tuple[str, ...]) -> None:
    code += "; import sys; print(*sys.modules)"
    modules = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not set(absent) & set(modules)


def test_paths_are_those_of_the_folder_where_the_command_started(tmp_path: Path) -> None:
    own_configs(tmp_path)
    words = ("--config-dir=own", "experiment=mine", "logger=none", "hydra.job.chdir=true", "hydra.run.dir=run")
    done = run_txl("train", *words, directory=tmp_path)
    assert done.status == 0, done.err
    assert "hydra.job.chdir=true has no effect: paths are relative to the folder where the command started" in done.err
    assert (tmp_path / "run/metrics.json").is_file()
    assert (tmp_path / "cache").is_dir()


INTERRUPTED_IMPORT = """
import os, signal, sys

class AtImport:
    def find_spec(self, name, *_):
        if name == module:
            os.kill(os.getpid(), signal.SIGINT)

signal.signal(signal.SIGINT, signal.default_int_handler)
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
    assert "memory: off, on\n" in groups
    assert "n_layer" in groups
    assert "paper/table6" in groups
    assert "checkpoints: []" in run_txl("recl", "--help").out
    assert "mem_len: 7" in run_txl("train", "memory.mem_len=7", "--help").out
    assert run_txl().status == 2


def test_the_command_leaves_arguments_and_environment_as_they_were(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["txl", "evaluate", "checkpoint=missing.ckpt"]
    monkeypatch.setattr(sys, "argv", words)
    variables = dict(os.environ)
    with pytest.raises(SystemExit, match="2"):
        main()
    assert sys.argv is words
    assert (words, dict(os.environ)) == (["txl", "evaluate", "checkpoint=missing.ckpt"], variables)
