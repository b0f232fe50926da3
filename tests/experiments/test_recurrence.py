"""The claim that recurrence helps: its rule, its table, and the one command."""

import json
from pathlib import Path

import pytest

from experiments import recurrence, reproduce
from experiments.paper import table_6


def figures(on: list[float], off: list[float]) -> dict[str, object]:
    def arm(values: list[float]) -> dict[str, object]:
        worse = [value + 1 for value in values]
        return {
            "0": {"bpc": worse, "mean": sum(worse) / len(worse)},
            "64": {"bpc": values, "mean": sum(values) / len(values)},
        }

    return {"with recurrence": arm(on), "without recurrence": arm(off)}


@pytest.mark.parametrize(
    ("on", "off", "mark"),
    [
        ([1.9, 1.91], [2.0, 1.99], "holds"),
        ([2.0, 1.99], [1.9, 1.91], "does not hold"),
        ([1.9, 2.0], [1.95, 1.97], "within noise"),
        ([1.0], [2.0], "not judged (one seed)"),
    ],
)
def test_the_mark_follows_from_the_figures(on: list[float], off: list[float], mark: str) -> None:
    assert recurrence.verdict(figures(on, off), 64) == mark


def test_both_arms_differ_in_nothing_but_the_memory() -> None:
    on, off, *_ = recurrence.plan("laptop", [1, 2], ["data=file"])
    assert set(on.overrides) ^ set(off.overrides) == {"memory=on", "memory=off"}
    assert (on.seed, off.seed) == (1, 1)


def test_the_paper_rows() -> None:
    assert (table_6(True).ppl_init, table_6(False).ppl_init) == (27.02, 29.59)


def test_an_impossible_override_ends_with_one_line_that_names_the_log(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    assert reproduce.main(["--profile", "smoke", "--directory", str(tmp_path), "memory.mem_len=-1"]) == 2
    assert "log.txt" in capsys.readouterr().err


@pytest.mark.slow
def test_the_one_command_writes_table_and_picture(tmp_path: Path) -> None:
    overrides = [
        "trainer.max_steps=30",
        "trainer.val_every_n_steps=10",
        "evaluation.max_segments=20",
        f"data.cache_dir={tmp_path}/c",
    ]
    assert reproduce.main(["--profile", "smoke", "--directory", str(tmp_path / "r"), *overrides]) == 0
    report = (tmp_path / "r/report.md").read_text()
    assert "| with recurrence |" in report
    assert "not judged (one seed)" in report
    assert (tmp_path / "r/learning_curves.png").stat().st_size > 10_000
    results = json.loads((tmp_path / "r/results.json").read_text())
    assert set(results["recurrence"]["test"]["with recurrence"]) == {"0", "32", "64"}
    assert len(results["runs"]) == 2
