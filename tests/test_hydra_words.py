"""Words and files of Hydra's own: completion, settings, sweeps in files, plugins."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import hydra
import pytest
from hydra.core.global_hydra import GlobalHydra

from tests.docs.pages import ROOT
from tests.in_process import refusal, success
from tests.training.small_run import TEXT, TINY
from txl_lightning import compose
from txl_lightning.command_line.messages import is_expected, one_line
from txl_lightning.config.schemas import Config

SMALL = (*TINY, "data.path=text.txt", "data.cache_dir=cache", "trainer.max_steps=2")
OPENING = re.compile("(model|data|device|steps): ")
COMPLETE = """
eval "$(txl train -sc install=bash)"
complete -p txl
while read -r COMP_LINE; do
    COMP_POINT=${#COMP_LINE}; words=($COMP_LINE); COMP_CWORD=$((${#words[@]} - 1))
    hydra_bash_completion
    echo "${COMPREPLY[@]}"
done
"""


def txl(directory: Path, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    (directory / "text.txt").write_text(TEXT)
    flags, options = [word for word in words if "=" not in word], [word for word in words if "=" in word]
    program = [sys.executable, "-m", "txl_lightning.cli", "train", *flags, *SMALL, *options]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **variables}
    return subprocess.run(program, cwd=directory, env=environment, capture_output=True, text=True, timeout=300)


def test_bash_completes_commands_options_groups_and_values(tmp_path: Path) -> None:
    program = tmp_path / "txl"
    start = "import sys; sys.argv[0] = 'txl'; from txl_lightning.cli import main; main()"
    program.write_text(f'#!/bin/sh\nPYTHONPATH={ROOT} exec {sys.executable} -c "{start}" "$@"\n')
    program.chmod(0o755)
    lines = {
        "txl eva": "evaluate",
        "txl train encoding=r": "encoding=relative encoding=rope",
        "txl train seed=1 optimizer.l": "optimizer.lr=",
        "txl train enco": "encoding. encoding=",
        "txl convert source_f": "source_format=",
    }
    path = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    typed = "".join(f"{line}\n" for line in lines)
    done = subprocess.run(["bash", "-c", COMPLETE], env=path, input=typed, capture_output=True, text=True, timeout=300)
    registered, *completed = done.stdout.splitlines()
    assert registered.endswith("-F hydra_bash_completion txl")
    assert completed == list(lines.values())


@pytest.mark.slow
def test_a_multirun_knows_the_number_of_a_job_and_names_nested_folders(tmp_path: Path) -> None:
    nested = "hydra.sweep.subdir=${hydra.job.override_dirname}"
    short = [word.split("=")[0] for word in SMALL if not word.startswith("data.path")]
    left_out = f"hydra.job.config.override_dirname.exclude_keys=[{','.join(short)}]"
    words = ("seed=${hydra:job.num}", "memory=on,off", "data.path=./text.txt", nested, left_out)
    done = txl(tmp_path, "-m", *words, "hydra.sweep.dir=sweep")
    assert done.returncode == 0, done.stderr
    assert "hydra.sweep.subdir has a value with a slash: folders of jobs are nested" in done.stderr
    seeds = [line for path in (tmp_path / "sweep").rglob("config.yaml") for line in path.read_text().splitlines()]
    assert {"seed: 0", "seed: 1"} < set(seeds)
    jobs = json.loads((tmp_path / "sweep/multirun.json").read_text())["jobs"]
    assert {(job["overrides"]["seed"], job["overrides"]["memory"]) for job in jobs} == {("0", "on"), ("1", "off")}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("params", "words", "said"),
    [
        ("{memory: off}", ("-m", "hydra.sweep.dir=sweep"), "Got bool; quote them: {memory: 'on,off'}"),
        ("{seed: '1,2'}", ("hydra.run.dir=run",), "hydra.sweeper.params has no effect without -m: this is one run"),
    ],
)
def test_sweeps_in_files(tmp_path: Path, params: str, words: tuple[str, ...], said: str) -> None:
    (tmp_path / "mine/experiment").mkdir(parents=True)
    sweeper = f"# @package _global_\nhydra: {{sweeper: {{params: {params}}}}}\n"
    (tmp_path / "mine/experiment/mine.yaml").write_text(sweeper)
    done = txl(tmp_path, "--config-dir=mine", "experiment=mine", *words)
    assert done.stderr.count(said) == 1
    assert [line for line in done.stderr.splitlines() if said not in line and not OPENING.match(line)] == []


def test_settings_of_hydra_can_be_added(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text(TEXT)
    callback = "+hydra.callbacks.log={_target_: hydra.experimental.callbacks.LogJobReturnCallback}"
    added = ("+hydra.job.env_set={MINE: here}", callback)
    done = success("train", *SMALL, *added, "hydra.run.dir=run", directory=tmp_path)
    assert "Succeeded with return value" in done.out + done.err
    variable = "hydra.job.env_set.WANDB_MODE"
    early = success("train", *SMALL, f"+{variable}=disabled", "hydra.run.dir=second", directory=tmp_path)
    assert f"{variable} has no effect: options are read before; export the variable\n" in early.err
    said = refusal("train", callback[1:], directory=tmp_path)
    assert said == f"txl train: {callback[1:]}: no such option; Hydra adds it by {callback}\n"


def test_a_plugin_that_cannot_be_imported_is_named_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "hydra_plugins/broken").mkdir(parents=True)
    (tmp_path / "hydra_plugins/broken/__init__.py").write_text("raise ValueError('mutable default')\n")
    done = txl(tmp_path, "hydra.run.dir=run", PYTHONPATH=f"{ROOT}:{tmp_path}")
    reason = "this plugin of Hydra cannot be imported, uninstall or upgrade it (ValueError: mutable default)"
    assert (done.returncode, done.stderr) == (2, f"txl train: hydra_plugins.broken: {reason}\n")


def test_a_plugin_whose_library_is_missing_at_its_first_use_is_named() -> None:
    with pytest.raises(ImportError) as caught:
        exec("import ray_is_missing", {"__name__": "hydra_plugins.hydra_ray_launcher._core"})
    assert is_expected(caught.value)
    said = one_line(caught.value, Config)
    assert said.startswith("hydra_plugins.hydra_ray_launcher._core: this plugin of Hydra cannot be imported, ")
    assert said.endswith("(ModuleNotFoundError: No module named 'ray_is_missing')")


@pytest.mark.slow
def test_a_multirun_has_its_loggers_its_own_ids_and_the_ends_that_callbacks_bring(tmp_path: Path) -> None:
    timer = "trainer.callbacks=[{_target_: lightning.pytorch.callbacks.Timer, duration: {seconds: 0}}]"
    given = {"WANDB_RUN_ID": "one", "WANDB_MODE": "offline", "WANDB_DIR": "elsewhere"}
    words = ("seed=1,2", "logger=[csv,wandb]", timer, "hydra.sweep.dir=sweep")
    done = txl(tmp_path, "-m", *words, **given)
    assert done.returncode == 0, done.stderr
    assert "WANDB_RUN_ID=one is one id, and a multirun has several runs: each gets its own" in done.stderr
    assert "WANDB_DIR=elsewhere has no effect" in done.stderr
    assert not (tmp_path / "elsewhere").exists()
    files = [path.name for path in (tmp_path / "sweep").rglob("run-*.wandb")]
    assert len(set(files)) == 2
    assert "run-one.wandb" not in files
    assert len([*(tmp_path / "sweep").rglob("metrics.csv")]) == 2
    results = json.loads((tmp_path / "sweep/multirun.json").read_text())
    assert [job["ended_by"] for job in results["jobs"]] == ["Timer", "Timer"]
    assert (tmp_path / "sweep/multirun.md").read_text().count("by Timer") == 2


def test_a_config_is_composed_within_a_program_that_has_a_hydra_of_its_own() -> None:
    with hydra.initialize(config_path=None, version_base="1.3"):
        own = GlobalHydra.instance().hydra
        assert (compose("seed=3").seed, GlobalHydra.instance().hydra) == (3, own)
