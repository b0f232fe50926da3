"""Checkpoints of earlier versions: they load, evaluate, convert and resume as before.

`tests/old_checkpoint/` has a folder for each version, with the last checkpoints (step 15) of runs killed at step 17 of
30, and in `expected.json` the results of that version: the losses of an uninterrupted run, and the results of
`txl evaluate` and `txl recl`. They were computed in float32 on another CPU, hence the tolerance.
Bits per byte have the name of today, `bpb`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.recl.small_recl import recl
from tests.training.small_run import csv_rows, evaluated
from txl_lightning.errors import OptionError
from txl_lightning.runs.storage import read_file
from txl_lightning.runs.trained import load_trained
from txl_lightning.training.run import train

FOLDER = Path(__file__).parents[1] / "old_checkpoint"
EXPECTED = {
    f"{version}/{arm}": results
    for version in ("before_0.2.0", "0.2.0", "0.3.0", "0.4.0")
    for arm, results in json.loads((FOLDER / version / "expected.json").read_text()).items()
}
GONE = "0.2.0/compressive"
EXPECTED.pop(GONE)
LONGER = {"mem_len": 12, "same_length": True}  # what two of the models were evaluated with


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A working directory and home with the corpus, which the checkpoints name as `text.txt` and `~/text.txt`."""
    directory = tmp_path_factory.mktemp("old")
    (directory / "text.txt").write_text("".join(f"line {i}: the square of {i} is {i * i}\n" for i in range(600)))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(directory)
        patch.setenv("HOME", str(directory))
        yield directory


def assert_close(found: Any, expected: Any) -> None:
    """Compare float32 results relatively, everything else exactly; `found` may have more keys."""
    if isinstance(expected, dict):
        for name, value in expected.items():
            assert_close(found[name], value)
    elif isinstance(expected, list):
        for ours, theirs in zip(found, expected, strict=True):
            assert_close(ours, theirs)
    elif isinstance(expected, float):
        assert found == pytest.approx(expected, rel=1e-5)
    else:
        assert found == expected


def test_an_option_that_is_gone_is_named_with_the_version_that_has_it() -> None:
    with pytest.raises(OptionError, match=r"memory.compression=conv, which version 0.3.0 has and this one has not$"):
        load_trained(FOLDER / f"{GONE}.ckpt")


@pytest.mark.parametrize("arm", EXPECTED)
def test_it_is_evaluated_as_before(directory: Path, tmp_path: Path, arm: str) -> None:
    lengths: Any = {"before_0.2.0/relative": LONGER, "0.2.0/muon": LONGER}.get(arm, {})
    found = evaluated(FOLDER / f"{arm}.ckpt", tmp_path, max_segments=20, num_threads=1, **lengths)
    assert_close(found, EXPECTED[arm]["evaluation"])


@pytest.mark.parametrize("arm", EXPECTED)
def test_its_recl_is_as_before(directory: Path, tmp_path: Path, arm: str) -> None:
    expected = EXPECTED[arm]["recl"]
    results = recl(tmp_path, str(FOLDER / f"{arm}.ckpt"), max_context=12, bootstrap=0)
    assert results["contexts"] == expected["contexts"]
    assert_close(results["models"][0]["nll"], expected["nll"])  # RECL is of their differences, which rounding decides


@pytest.mark.parametrize("arm", EXPECTED)
def test_a_resumed_run_equals_the_uninterrupted_one(directory: Path, tmp_path: Path, arm: str) -> None:
    old = read_file(FOLDER / f"{arm}.ckpt")
    assert old["global_step"] == 15
    config: Any = load_trained(FOLDER / f"{arm}.ckpt").config
    config.data.path, config.data.cache_dir = str(directory / "text.txt"), str(directory / "cache")
    config.resume = str(FOLDER / f"{arm}.ckpt")
    metrics = train(config, tmp_path / "run")
    rows = csv_rows(tmp_path / "run/metrics.csv")
    losses = {row["step"]: float(row["train/nll"]) for row in rows if row["train/nll"]}
    expected = {step: nll for step, nll in EXPECTED[arm]["train_nll"].items() if int(step) > 15}
    assert losses.keys() == expected.keys()
    assert_close(losses, expected)
    assert_close(metrics, EXPECTED[arm]["metrics"])
    last = read_file(tmp_path / "run/checkpoints/last.ckpt")
    assert set(last["callbacks"]) == set(old["callbacks"]) - {"SkippedSteps"}
    assert last["callbacks"]["TrainingCurves"]["tokens"] == EXPECTED[arm]["metrics"]["tokens"]
