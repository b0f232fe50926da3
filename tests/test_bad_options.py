"""Bad options of every command: each is refused soon, in one line that names the option, without a traceback.

bad_options.txt has three parts: lines that are typed, the same for `make test-slow`, and options whose check is called
without Hydra's command line.
"""

import re
import shlex
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import DictConfig, OmegaConf

from tests.data.helpers import files
from tests.in_process import refusal
from tests.training.small_run import TINY, trained
from txl_lightning.application import EXPECTED, one_line, register
from txl_lightning.commands import COMMANDS
from txl_lightning.config.schemas import CONF, typed

PRINT = "{_target_: hydra.utils.get_method, path: builtins.print}"
FILES = (
    "data.path=FOLDER/text.txt data.cache_dir=FOLDER/cache resume=FOLDER/run/checkpoints/last.ckpt"
)
ABBREVIATIONS = {
    "TINY": "data=recall profile=smoke logger=none",
    "PL.": "lightning.pytorch.callbacks.",
    "PRINT": PRINT,
    "FILE": "data=file data.cache_dir=cache profile=smoke logger=none",
}
RESUMED = f"{' '.join(TINY)} {FILES} trainer.max_steps=20"
LISTED = Path(__file__).with_name("bad_options.txt").read_text("utf-8")


def rows(part: int) -> list[list[str]]:
    """Return the words of a command and what its line says, for every row of a part of bad_options.txt."""
    lines = LISTED.split("\n\n")[part].splitlines()
    return [re.split(r"\s+\| ", line) for line in lines if not line.startswith("#")]


def expanded(words: str) -> list[str]:
    """Return the words of a command without abbreviations."""
    if "RESUMED" in words:
        words = words.replace("RESUMED", RESUMED.replace("FOLDER", str(trained())))
    if "CKPT" in words:
        words = words.replace("CKPT", f"{trained()}/run/checkpoints/best.ckpt")
    for name, text in ABBREVIATIONS.items():
        words = words.replace(name, text)
    return shlex.split(words)


def prepare(folder: Path) -> None:
    """Write the files that the commands name."""
    files(folder, {"empty.txt": "", "short.txt": "too short for sixteen streams\n"})
    files(
        folder,
        {"old/checkpoints/last.ckpt": "", "text.txt": "text" * 50, "latin.txt": b"caf\xe9 " * 50},
    )


def check_nothing_is_written(folder: Path) -> None:
    """Check that neither a result nor a cache is there, and that no callback's target ran."""
    for pattern in ("metrics.json", "made", "cache/*"):
        assert list(folder.rglob(pattern)) == []


TYPED: list[Any] = rows(0)
for row in rows(1):
    TYPED.append(pytest.param(*row, marks=pytest.mark.slow))


@pytest.mark.parametrize(("words", "said"), TYPED)
def test_the_command_refuses_it(tmp_path: Path, words: str, said: str) -> None:
    prepare(tmp_path)
    assert said in refusal(*expanded(words), directory=tmp_path)
    check_nothing_is_written(tmp_path)


@cache
def composed(command: str, choices: tuple[str, ...]) -> DictConfig:
    """Return the configuration of a command with its choices of groups: the slow part, for many rows."""
    register()
    with initialize_config_dir(str(CONF), version_base="1.3"):
        return compose(COMMANDS[command].config_name, overrides=list(choices))


def run_with_options(command: str, words: list[str], folder: Path) -> None:
    """Set options as the command line does, and call the command's function."""
    choices = [word for word in words if (CONF / word.split("=")[0]).is_dir()]
    values = [word for word in words if word not in choices]
    config = deepcopy(composed(command, tuple(choices)))
    for override in OverridesParser.create().parse_overrides(values):
        OmegaConf.update(config, override.key_or_group, override.value())
    COMMANDS[command].run(typed(config), folder)


@pytest.mark.parametrize(("words", "said"), rows(2))
def test_the_check_of_the_options_refuses_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str, said: str
) -> None:
    prepare(tmp_path)
    monkeypatch.chdir(tmp_path)
    command, *options = expanded(words)
    with pytest.raises(EXPECTED) as refused:
        run_with_options(command, options, tmp_path / "run")
    line = one_line(refused.value)
    assert said in line
    assert "\n" not in line
    check_nothing_is_written(tmp_path)
