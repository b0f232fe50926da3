"""Benchmarks: workloads, sections of the page, and the command line, at tiny size."""

from pathlib import Path

import pytest

from benchmarks import bench, checkpoint_cost
from benchmarks.page import aligned, spread, write_section
from benchmarks.rounds import measure
from benchmarks.worker import WORKLOADS
from tests.training.small_run import tiny_config


@pytest.mark.parametrize(
    ("workload", "implementation"), [("training", "ours"), ("evaluation", "ours"), ("evaluation", "hidden")]
)
def test_our_workloads_run_and_carry_their_memory(workload: str, implementation: str) -> None:
    running = WORKLOADS[workload](implementation, bench.TINY)
    assert running.run(2) > 0
    first = running.memory
    running.run(1)
    assert first is not None
    assert running.memory is not first
    assert running.describe()["parameters"] > 10_000


@pytest.mark.slow
def test_workers_take_turns_and_a_section_shows_their_ratio() -> None:
    measured = measure("evaluation", ["ours", "hidden"], bench.TINY, rounds=2, warmup=1)
    speeds, (ratio, _) = measured["tokens_per_second"], measured["ratios"]["hidden"]
    assert [len(values) for values in speeds.values()] == [2, 2]
    assert ratio == pytest.approx(speeds["ours"][0] / speeds["hidden"][0])
    report = {"section": "evaluation", "date": "today", "processor": "CPU", "command": "bench", "rounds": 2}
    shown = bench.section({**report, "results": [{"case": "tiny", **measured}]})
    assert f" {spread(measured['ratios']['hidden'])} |" in shown
    assert "transformers: not measured" in shown


@pytest.mark.slow
def test_the_cost_of_checkpoints_is_measured_in_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    tiny_config(tmp_path)  # writes the text
    data = ("data=file", f"data.path={tmp_path}/text.txt", f"data.cache_dir={tmp_path}/cache")
    sizes = ("model=txl_smoke", "data.batch_size=4", "data.segment_len=8", "evaluation.batch_size=2")
    (result,) = checkpoint_cost.measure(2, 4, 1, 1, *data, *sizes)
    assert result["ratio"] == result["with"] / result["without"]
    assert result["bytes"] > 1000
    assert "| every 2 of 4 steps |" in checkpoint_cost.section([result], 2, 4, 1)


def test_a_section_of_the_page_is_replaced_and_the_rest_stays(tmp_path: Path) -> None:
    path = tmp_path / "page.md"
    write_section(path, "one", "first")
    write_section(path, "two", "second")
    write_section(path, "one", "changed")
    text = path.read_text()
    assert text.startswith("# Benchmarks\n")
    assert "first" not in text
    assert text.index("bench:one begin -->\nchanged\n<!-- bench:one end") < text.index("\nsecond\n")
    path.write_text("<!-- bench:one begin -->\nhalf")
    with pytest.raises(SystemExit, match="without"):
        write_section(path, "one", "again")
    assert path.read_text().endswith("half")


def test_columns_are_aligned() -> None:
    assert aligned([["a", "n"], ["long", "10"]]) == "| a    |  n |\n| ---- | -: |\n| long | 10 |"


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["speed"], "'speed': must be of training, evaluation"),
        (["--rounds", "0"], "'0': must be an integer >= 1"),
        (["training", "--cases", "token"], "--cases: must be of tiny, small, large for training"),
        (["--implementations", "ours", "--precision", "bf16"], "--precision bf16: needs --device cuda"),
    ],
)
def test_a_bad_command_line_is_named(
    words: list[str], named: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["bench", "--implementations", "ours", *words])
    with pytest.raises(SystemExit) as ended:
        bench.main()
    assert ended.value.code == 2
    assert named in capsys.readouterr().err
