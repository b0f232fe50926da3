"""Checkpoints that someone else made, or spoilt, in every command that opens one: refused in one line, or harmless."""

from __future__ import annotations

import contextlib
import io
import shutil
from collections.abc import Callable
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf

from tests.checkpoints.convert.test_convert_command import composed
from tests.training.small_run import tiny_config, trained
from txl_lightning.errors import UserError
from txl_lightning.evaluation.convert import run as convert
from txl_lightning.evaluation.options import EvaluateOptions
from txl_lightning.evaluation.perplexity import run as evaluate
from txl_lightning.evaluation.trained import read_file, write_checkpoint
from txl_lightning.training.run import train

RUN = ("trainer.max_steps=4", "trainer.val_every_n_steps=2", "evaluation.max_segments=2")
Change = Callable[[dict[str, Any]], Any]


@cache
def good() -> Path:
    return trained(*RUN)


def put(place: str, value: Any) -> Change:
    """Return a change of the entry at `a/b/c`; `value` may be a function of the entry."""

    def change(contents):
        inside = contents
        *outer, last = [int(name) if name.isdecimal() else name for name in place.split("/")]
        for name in outer:
            inside = inside[name]
        inside[last] = value(inside[last]) if callable(value) else value

    return change


def drop(name: str) -> Change:
    return lambda contents: contents.pop(name)


def itself(contents: dict[str, Any]) -> None:
    contents["txl_lightning"]["config"]["data"]["path"] = contents["txl_lightning"]["config"]


WEIGHT = "state_dict/model.embedding.tables.0"
CONFIG = "txl_lightning/config"
# Refused by all that open a checkpoint, in the words of the library that reads it.
REFUSED = {
    "a list": lambda _: [1],
    "no record": drop("txl_lightning"),
    "config in itself": itself,
    "n_layer a word": put(f"{CONFIG}/model/n_layer", "two"),
    "n_layer 10⁷": put(f"{CONFIG}/model/n_layer", 10**7),
    "null byte": put(f"{CONFIG}/data/path", "a\0b"),
    "vocabulary of another size": put(
        "txl_lightning/vocabulary", {"level": "byte", "symbols": list("abc")}
    ),
    "no weights": drop("state_dict"),
    "weight of another shape": put(
        WEIGHT,
        lambda x: x[:, :-1].clone(),
    ),
    "weight of 4 TB": put(
        WEIGHT,
        lambda x: torch.zeros(1).expand(10**6, 10**6),
    ),
    "no step": drop("global_step"),
}
TRAINING = "txl_lightning/training"
# Refused by some in one line, or harmless: values are literal, and code and other folders stay untouched.
OTHERS = {
    "as written": lambda contents: contents,
    "interpolation": put(f"{CONFIG}/data/document_start", "${oc.env:SECRET}"),
    "cache of an interpolation": put(f"{CONFIG}/data/cache_dir", "${new_directory:made}"),
    "weight nan": put(WEIGHT, lambda x: torch.full_like(x, torch.nan)),
    "memory of fewer streams": put(
        f"{TRAINING}/memory/memory/states",
        lambda x: x[:, :2].clone(),
    ),
    "weights only": drop("optimizer_states"),
    "position elsewhere": put("loops/fit_loop/state_dict/combined_loader/0/position", 2),
    "random state short": put(
        f"{TRAINING}/random/0/cpu",
        lambda x: x[:8].clone(),
    ),
    "moments of another shape": put("optimizer_states/0/state/0/exp_avg", torch.zeros(3)),
}
FILES = {  # instead of a checkpoint
    "cut": lambda content: content[: len(content) // 2],
    "the end only": lambda content: content[-5000:],
    "changed": lambda content: content[:3000] + b"evil" + content[3004:],
}
OPTIONS = {"evaluate": "checkpoint", "convert": "source"}


def use(name: str, path: Path, folder: Path) -> None:
    """Use a checkpoint as a command does."""
    if name == "evaluate":
        evaluate(
            EvaluateOptions(str(path), max_segments=1, batch_size=2, num_threads=1),
            folder,
        )
    elif name == "convert":
        words = [
            f"source={path}",
            "source_format=txl",
            f"target={folder / 'out'}",
            "target_format=original",
        ]
        convert(
            OmegaConf.to_object(OmegaConf.merge(composed(), OmegaConf.from_dotlist(words))), folder
        )
    else:
        steps = "trainer.max_steps=5" if name == "resume" else "trainer.max_steps=1"
        train(
            tiny_config(
                good(),
                *RUN,
                steps,
                f"{name}={path}",
                "checkpoint.every_n_steps=9",
            ),
            folder / "run",
        )


def outcome(name: str, path: Path, folder: Path) -> str:
    """Return `accepted`, the line of a refusal, or the kind of a traceback."""
    said = io.StringIO()
    folder.mkdir(exist_ok=True)
    try:
        with contextlib.redirect_stderr(said):
            use(name, path, folder)
    except UserError as error:
        return str(error)
    except Exception as error:
        return f"TRACEBACK {type(error).__name__}: {error}"
    return "accepted"


@pytest.mark.full
@pytest.mark.parametrize("name", ["evaluate", "resume", "initial_weights", "convert"])
def test_malformed_files_are_refused_or_harmless(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SECRET", "not-to-be-told")
    original = good() / "run/checkpoints/last.ckpt"
    notes = tmp_path / "notes.txt"
    path = tmp_path / "theirs/checkpoints/last.ckpt"
    path.parent.mkdir(parents=True)
    found = {}
    for case, change in {**REFUSED, **OTHERS}.items():
        notes.write_text("mine")
        contents = deepcopy(read_file(original))
        changed = change(contents)
        write_checkpoint(changed if case == "a list" else contents, path)
        found[case] = outcome(name, path, tmp_path / "out")
        assert notes.read_text() == "mine"
        assert not (tmp_path / "made").exists(), case
        made = [file for file in (tmp_path / "out").rglob("*") if file.is_file()]
        assert not any(b"not-to-be-told" in file.read_bytes() for file in made), case
        shutil.rmtree(tmp_path / "out", ignore_errors=True)
    for case, spoil in FILES.items():
        path.write_bytes(spoil(original.read_bytes()))
        found[case] = outcome(name, path, tmp_path / "out")
    assert [f"{case}: {line}" for case, line in found.items() if line.startswith("TRACEBACK")] == []
    for case in [*REFUSED, *FILES]:
        assert found[case] != "accepted", case
    assert found["as written"] == "accepted"
    start = f"{OPTIONS.get(name, name)}={path}: "
    another = f"as in {name}={path}"  # an option of the resumed run
    for line in set(found.values()) - {"accepted"}:
        assert line.startswith(start) or line.endswith(another)
        assert "\n" not in line
