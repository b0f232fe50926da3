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

from tests.runs.convert.test_convert_command import composed
from tests.training.small_run import tiny_config, trained
from txl_lightning.errors import UserError
from txl_lightning.measure.options import EvaluateOptions
from txl_lightning.measure.perplexity import run as evaluate
from txl_lightning.runs.convert import run as convert
from txl_lightning.runs.storage import read_file, write_checkpoint
from txl_lightning.training.run import train

RUN = ("trainer.max_steps=4", "trainer.val_every_n_steps=2", "evaluation.max_segments=2")
EMBEDDING = "model.embedding.tables.0"
Change = Callable[[dict[str, Any]], Any]


@cache
def good() -> Path:
    return trained(*RUN)


def put(place: str, value: Any) -> Change:
    """Return a change of the entry at `a/b/c`; `value` may be a function of the entry."""

    def change(contents: dict[str, Any]) -> None:
        inside: Any = contents
        *outer, last = [int(name) if name.isdecimal() else name for name in place.split("/")]
        for name in outer:
            inside = inside[name]
        inside[last] = value(inside[last]) if callable(value) else value

    return change


def drop(place: str) -> Change:
    *outer, last = place.split("/")
    inner: Change = lambda inside: inside.pop(last)  # noqa: E731
    return inner if not outer else put("/".join(outer), lambda inside: {k: v for k, v in inside.items() if k != last})


def config(place: str, value: Any) -> Change:
    return put(f"txl_lightning/config/{place}", value)


def itself(contents: dict[str, Any]) -> None:
    contents["txl_lightning"]["config"]["data"]["path"] = contents["txl_lightning"]["config"]


VOCABULARY, WEIGHT = "txl_lightning/vocabulary", f"state_dict/{EMBEDDING}"
# Refused by all that open a checkpoint.
WRONG: dict[str, Change] = {
    "a list": lambda _: [1],
    "no record": drop("txl_lightning"),
    "config with a further key": config("secret", 1),
    "config in itself": itself,
    "trainer a number": config("trainer", 3),
    "n_layer a word": config("model/n_layer", "two"),
    "n_layer 0": config("model/n_layer", 0),
    "n_layer 10⁷": config("model/n_layer", 10**7),
    "d_head other": config("model/d_head", 2),
    "mem_len below 0": config("memory/mem_len", -5),
    "encoding unknown": config("encoding/name", "evil"),
    "null byte": config("data/path", "a\0b"),
    "vocabulary without symbols": put(VOCABULARY, {"level": "char", "symbols": []}),
    "vocabulary of another size": put(VOCABULARY, {"level": "byte", "symbols": list("abc")}),
    "vocabulary of half characters": put(
        VOCABULARY, {"level": "char", "symbols": [chr(0xD800 + n) for n in range(256)]}
    ),
    "vocabulary without tokenizer": put(VOCABULARY, {"level": "bpe", "symbols": [chr(n) for n in range(256)]}),
    "level unknown": put(VOCABULARY, {"level": ["byte"], "symbols": []}),
    "no weights": drop("state_dict"),
    "weight missing": drop(WEIGHT),
    "weight added": put("state_dict/model.evil", torch.ones(2)),
    "weight of another shape": put(WEIGHT, lambda x: x[:, :-1].clone()),
    "weight of integers": put(WEIGHT, lambda x: x.int()),
    "weight sparse": put(WEIGHT, lambda x: x.to_sparse()),
    "weight a list": put(WEIGHT, lambda x: x.tolist()),
    "weight nan": put(WEIGHT, lambda x: torch.full_like(x, torch.nan)),
    "weight of 4 TB": put(WEIGHT, lambda x: torch.zeros(1).expand(10**6, 10**6)),
    "no step": drop("global_step"),
    "corpus a list": put("txl_lightning/corpus", ["x"]),
    "memory above the folder": put("training_memory/files", ["../../notes.txt"]),
    "memory in no file": put("training_memory/files", ["memory/.."]),
}
FIT, OPTIMIZER = "loops/fit_loop", "optimizer_states/0"
PROGRESS = f"{FIT}/epoch_loop.manual_optimization.optim_step_progress"
GROUP, MOMENTS, SCHEDULE = f"{OPTIMIZER}/param_groups/0", f"{OPTIMIZER}/state/0", "lr_schedulers/0"
MEMORY, RANDOM = "training_memory/memory", "callbacks/RandomState/ranks"
# Refused by `resume`; the others do not read it.
WRONG_IN_TRAINING: dict[str, Change] = {
    "weights only": drop("pytorch-lightning_version"),
    "steps done": put("global_step", 3),
    "loop without counts": drop(PROGRESS),
    "position elsewhere": put(f"{FIT}/state_dict/combined_loader/0/position", 2),
    "no callbacks": drop("callbacks"),
    "random state short": put(f"{RANDOM}/0/cpu", lambda x: x[:8].clone()),
    "random state of ones": put(f"{RANDOM}/0/cpu", torch.ones_like),
    "curves without sums": put("callbacks/TrainingCurves/since", []),
    "optimizer without moments": put(f"{OPTIMIZER}/state", {}),
    "moments of another shape": put(f"{MOMENTS}/exp_avg", torch.zeros(3)),
    "moments missing": drop(f"{MOMENTS}/exp_avg"),
    "moments nan": put(f"{MOMENTS}/exp_avg", lambda x: x * torch.nan),
    "two groups": put(f"{OPTIMIZER}/param_groups", lambda groups: groups * 2),
    "lr a word": put(f"{GROUP}/lr", "x"),
    "memory of fewer streams": put(f"{MEMORY}/states", lambda x: x[:, :2].clone()),
    "memory longer": put(f"{MEMORY}/states", lambda x: torch.cat([x, x], dim=2)),
    "memory overfull": put(f"{MEMORY}/filled", 10**6),
    "memory of later streams": put(f"{MEMORY}/first_column", 2),
    "memory with documents": put(f"{MEMORY}/in_document_B", torch.zeros(4)),
}
# Accepted: what is there is literal, or not read.
HARMLESS: dict[str, Change] = {
    "as written": lambda contents: contents,
    "interpolation": config("data/document_start", "${oc.env:SECRET}"),
    "cache of an interpolation": config("data/cache_dir", "${new_directory:made}"),
    "no checksum of the text": drop("txl_lightning/corpus"),
    "weights in half precision": put(WEIGHT, lambda x: x.half()),
    "memory not there": put("training_memory/memory", None),
    # The run's own take the place of these.
    "version a word": put("pytorch-lightning_version", "evil"),
    "no betas": drop(f"{GROUP}/betas"),
    "group with fewer parameters": put(f"{GROUP}/params", [0]),
    "schedule with functions": put(f"{SCHEDULE}/lr_lambdas", [{"a": 1}]),
    "files not there": put("training_memory/files", ["memory/none.pt"]),
}
FILES = {  # instead of a checkpoint
    "cut": lambda content: content[: len(content) // 2],
    "the end only": lambda content: content[-5000:],
    "changed": lambda content: content[:3000] + b"evil" + content[3004:],
}
USES = ("evaluate", "resume", "initial_weights", "convert")
OPTIONS = {"evaluate": "checkpoint", "convert": "source"}


def use(name: str, path: Path, folder: Path) -> None:
    """Use a checkpoint as a command does."""
    if name == "evaluate":
        evaluate(EvaluateOptions(str(path), max_segments=1, batch_size=2, num_threads=1), folder)
    elif name == "convert":
        words = [f"source={path}", "source_format=txl", f"target={folder / 'out'}", "target_format=original"]
        convert(OmegaConf.to_object(OmegaConf.merge(composed(), OmegaConf.from_dotlist(words))), folder)  # type: ignore[arg-type]
    else:
        steps = "trainer.max_steps=5" if name == "resume" else "trainer.max_steps=1"
        train(tiny_config(good(), *RUN, steps, f"{name}={path}", "checkpoint.every_n_steps=9"), folder / "run")


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


@pytest.mark.slow
@pytest.mark.parametrize("name", USES)
def test_malformed_files_are_refused_or_harmless(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SECRET", "not-to-be-told")
    original = good() / "run/checkpoints/last.ckpt"
    notes, path = tmp_path / "notes.txt", tmp_path / "theirs/checkpoints/last.ckpt"
    path.parent.mkdir(parents=True)
    found: dict[str, str] = {}
    for case, change in {**WRONG, **WRONG_IN_TRAINING, **HARMLESS}.items():
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
    expected = {
        case: case in WRONG or case in FILES or (name == "resume" and case in WRONG_IN_TRAINING) for case in found
    }
    assert {case: line for case, line in found.items() if (line != "accepted") != expected[case]} == {}
    start = f"{OPTIONS.get(name, name)}={path}: "
    assert [
        line for line in found.values() if line != "accepted" and not (line.startswith(start) and "\n" not in line)
    ] == []
