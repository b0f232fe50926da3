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
from txl_lightning.config.schemas import CONF, typed
from txl_lightning.registry import COMMANDS

ABBREVIATIONS = {
    "TINY": "data=recall profile=smoke logger=none",
    "PL.": "lightning.pytorch.callbacks.",
    "FILE": "data=file data.cache_dir=cache profile=smoke logger=none",
    "CKPT": "TRAINED/run/checkpoints/best.ckpt",
    "RESUMED": " ".join(TINY)
    + " data.path=TRAINED/text.txt data.cache_dir=TRAINED/cache trainer.max_steps=20"
    + " resume=TRAINED/run/checkpoints/last.ckpt",
}


def rows(part: int) -> list[list[str]]:
    """Return the words of a command and what its line says, for every row of a part of bad_options.txt."""
    parts = Path(__file__).with_name("bad_options.txt").read_text("utf-8").split("\n\n")
    lines = parts[part].splitlines()
    return [re.split(r"\s+\| ", line) for line in lines if not line.startswith("#")]


def expanded(words: str) -> list[str]:
    """Return the words of a command without abbreviations."""
    for name, text in ABBREVIATIONS.items():
        words = words.replace(name, text)
    if "TRAINED" in words:
        words = words.replace("TRAINED", str(trained()))
    return shlex.split(words)


@pytest.fixture(autouse=True)
def nothing_is_written(tmp_path: Path) -> Any:
    """Write the files that the commands name; afterwards no result, no cache and nothing of a callback is there."""
    contents: dict[str, str | bytes] = {
        "empty.txt": "",
        "short.txt": "too short for sixteen streams\n",
        "old/checkpoints/last.ckpt": "",
        "text.txt": "text" * 50,
        "latin.txt": b"caf\xe9 " * 50,
    }
    files(tmp_path, contents)
    yield
    for pattern in ("metrics.json", "made", "cache/*"):
        assert list(tmp_path.rglob(pattern)) == []


TYPED: list[Any] = rows(0)
for row in rows(1):
    TYPED.append(pytest.param(*row, marks=pytest.mark.slow))


@pytest.mark.parametrize(("words", "said"), TYPED)
def test_the_command_refuses_it(tmp_path: Path, words: str, said: str) -> None:
    assert said in refusal(*expanded(words), directory=tmp_path)


@cache
def composed(command: str, choices: tuple[str, ...]) -> DictConfig:
    """Return the configuration of a command with its choices of groups: the slow part, for many rows."""
    register()
    with initialize_config_dir(str(CONF), version_base="1.3"):
        return compose(command, overrides=list(choices))


@pytest.mark.parametrize(("words", "said"), rows(2))
def test_the_check_of_the_options_refuses_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str, said: str
) -> None:
    """Set options as the command line does, and call the command's function."""
    monkeypatch.chdir(tmp_path)
    command, *options = expanded(words)
    choices = [word for word in options if (CONF / word.split("=")[0]).is_dir()]
    values = [word for word in options if word not in choices]
    config = deepcopy(composed(command, tuple(choices)))
    for override in OverridesParser.create().parse_overrides(values):
        OmegaConf.update(config, override.key_or_group, override.value())
    with pytest.raises(EXPECTED) as refused:
        COMMANDS[command].run(typed(config), tmp_path / "run")
    line = one_line(refused.value)
    assert said in line
    assert "\n" not in line
