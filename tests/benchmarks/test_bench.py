"""The bench: its command line, what it keeps, how it continues, and its sections."""

import json
import math
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from benchmarks import bench
from benchmarks.bench_sections import SECTIONS, comparison_table, section, write_section
from benchmarks.cases import TINY, TurnTaking, scaled, scaling_name
from benchmarks.commands import LOSSES
from benchmarks.worker import measure
from txl_lightning.jobs.processes import Ended, JobProcess

Run: TypeAlias = Callable[..., int]
Capture: TypeAlias = pytest.CaptureFixture[str]
SIZES = {**vars(TINY), "steps": 2}
SECONDS = {
    "ours float32": [2.0, 1.0],
    "ours bf16": [1.0, 1.0],
    "huggingface float32": [4.0, 3.0],
    "huggingface bf16": [3.0, 1.5],
    "matrix float32": [0.5, 0.25],
    "loader float32": [0.02, 0.01],
}


def record(**more: Any) -> dict[str, Any]:
    workers = {turn: {"torch": "2", "transformers": None, "parameters": 10} for turn in SECONDS}
    workers["matrix float32"] = {"torch": "2", "work": 1e10}
    peaks = {turn: 100 if turn.startswith("ours") else 200 for turn in SECONDS}
    identity = {"sizes": SIZES, "rounds": 2, "processor": "CPU", "torch": "2"}
    common = {"date": "today", "minutes": 1.0, "identity": identity}
    return {**common, "seconds": SECONDS, "workers": workers, "peak_bytes": peaks, **more}


def cells(table: str) -> dict[str, str]:
    """Return the last row of a Markdown table by the names of its columns."""
    header, *_, row = ([cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines())
    return dict(zip(header, row, strict=True))


def table_after(heading: str, text: str) -> list[list[str]]:
    """Return the cells of the first table after a heading."""
    lines = text.partition(heading)[2].splitlines()
    first = next(i for i, line in enumerate(lines) if line.startswith("|"))
    last = next(i for i in range(first, len(lines) + 1) if i == len(lines) or not lines[i].startswith("|"))
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[first:last]]


def test_every_cell_of_a_comparison_is_what_its_column_says() -> None:
    """A turn is two steps of 64 tokens, in the median of 1.5 s for ours in float32."""
    assert cells(comparison_table({"tiny": record()})) == {
        "case": "tiny",
        "ours float32, tokens/s": "85",
        "ours bf16, tokens/s": "128",
        "Hugging Face float32, tokens/s": "37",
        "Hugging Face bf16, tokens/s": "57",
        "ratio, float32": "2.50 (2.00–3.00)",  # of the rounds: 4 / 2 and 3 / 1
        "ratio, bf16": "2.25 (1.50–3.00)",
        "ours bf16 / Hugging Face float32": "3.50 (3.00–4.00)",
        "of the limit, float32": f"{TINY.training_flops * 2 / 2.0 / (1e10 / 0.5):.0%}",  # equal in both rounds
        "memory": "0.50",
    }
    shown = cells(comparison_table({"tiny": record()}, in_steps=True))
    assert (shown["ours float32, ms a step"], shown["Hugging Face bf16, ms a step"]) == ("750.0", "1,125.0")
    seconds = {"ours float32": [2.0, 1.0], "ours bf16": [1.0, 0.5], "bandwidth float32": [0.5, 0.25]}
    read = record(seconds=seconds, workers={"bandwidth float32": {"work": 1e6}})
    shares = cells(comparison_table({"tiny": read}))
    assert shares["of the limit, float32"] == f"{TINY.step_bytes(4) * 2 / 2.0 / (1e6 / 0.5):.0%}"
    assert shares["of the limit, bf16"] == f"{TINY.step_bytes(2) * 2 / 1.0 / (1e6 / 0.5):.0%}"


def test_every_section_shows_its_records() -> None:
    of_step = {value: record(seconds={"ours float32": [2.0 * (value / 32) ** 1.5]}) for value in (32, 64)}
    records = {
        **{f"{group}/one": record() for group in ("training", "evaluation", "token", "generation")},
        **{f"scaling/{scaling_name('segment', value)}": of_step[value] for value in of_step},
        "startup": record(help=[0.1, 0.2], first_step=[5.0, 6.0]),
        "recl": record(seconds=[7.0, 8.0]),
        "preparation": record(
            corpora={
                "text, byte": {"first": [3], "cached": [1], "first_peak": [5 * 2**20], "cached_peak": [4 * 2**20]}
            },
        ),
        "recl_losses": record(
            **{**LOSSES, "seconds": {"one pass float32": [2.0], "one pass bf16": [1.0], "direct float32": [10.0]}}
        ),
        "checkpoints": record(every=2, steps=4, bytes=2.5e6, **{"with": [3.0, 2.0], "without": [2.0, 1.0]}),
        "profile": record(shares={"small, float32": {"products": 0.75, "other": 0.25, "positions and mask": 0.001}}),
        "validation": record(every=3, steps=3, **{"with": [2.1], "without": [2.0]}),
    }
    shown = {name: section(name, records) for name in SECTIONS}
    assert "takes 1.000% and 1.500% of a step of one" in shown["training"]
    assert "- limits of the machine: 27 GFLOP/s in float32" in shown["training"]  # 1e10 / 0.375 s
    sizes = "- one: 2 layers, d_model 32, 4 heads, d_inner 64, segment 16, memory 16, batch 4, 10 parameters; "
    assert f"{sizes}2 rounds of 2 steps" in shown["training"]
    assert shown["evaluation"].count("| case ") == 3
    assert shown["evaluation"].count("tokens/s") == 4
    _, _, row = table_after("## Cost against size", shown["scaling"])
    assert row[:3] == ["segment", "32, 64", "1,000, 2,828"]
    assert [cell.partition(" ")[0] for cell in row[3:]] == ["1.50", "1.50"]
    flops = scaled("segment", 64).training_flops / scaled("segment", 32).training_flops
    assert row[3] == f"1.50 ({math.log2(flops):.2f})"
    assert {tuple(row) for row in table_after("## Whole commands", shown["commands"])[2:]} >= {
        ("`txl --help`", "0.15 (0.10–0.20)", "–"),
        ("`txl train profile=laptop` to the end of its first step", "5.50 (5.00–6.00)", "–"),
        ("prepare text, byte", "3.00 (3.00–3.00)", "5"),
        ("read from the cache text, byte", "1.00 (1.00–1.00)", "4"),
    }
    assert table_after("## Cost of checkpoints", shown["checkpoints"])[2:] == [
        ["checkpoints every 2 of 4 steps", "1.50", "2.50", "1.75 (1.50–2.00)", "2.5"],
        ["validation every 3 of 3 steps", "2.00", "2.10", "1.05 (1.05–1.05)", "–"],
    ]
    assert table_after("## Where the time", shown["profile"])[2:] == [["small, float32", "75.0%", "25.0%", "0.1%"]]
    assert "at 10,000 positions, with contexts 16–256 by 16, on 2 threads" in shown["recl_losses"]
    assert table_after("## RECL", shown["recl_losses"])[2:] == [
        ["one pass float32", "2.00 (2.00–2.00)", "0.20 (0.20–0.20)"],
        ["one pass bf16", "1.00 (1.00–1.00)", "0.10 (0.10–0.10)"],
        ["direct float32", "10.0 (10.0–10.0)", "1.00 (1.00–1.00)"],
    ]
    assert not section("training", {})


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Pretended cases: turns in the order in which they are measured, of a process that has ended at once."""
    turns: list[str] = []
    cases = {f"training/{name}": TurnTaking("training", TINY, (f"ours {name}",), 2.0) for name in "ab"}
    monkeypatch.setattr(bench, "comparisons", lambda: cases)
    monkeypatch.setattr(bench, "COMMANDS", {})

    class Pretended:
        def __init__(self, measure: partial) -> None:
            turns.append(measure.args[0].turns[0])

        def poll(self) -> Ended:
            kept = ("seconds", "workers", "peak_bytes")
            return Ended({name: value for name, value in record().items() if name in kept}, 0, 90.0)

    monkeypatch.setattr(bench, "JobProcess", Pretended)
    return turns


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., int]:
    """Call the bench with its results and its page in the test's folder."""
    files = ("--results", f"{tmp_path}/results.json", "--markdown", f"{tmp_path}/page.md")

    def call(*words: str, files: tuple[str, ...] = (*files, "--no-huggingface")) -> int:
        monkeypatch.setattr("sys.argv", ["bench", *files, *words])
        return bench.main()

    return call


def test_a_stopped_bench_continues_and_measures_what_changed(
    measured: list[str],
    run: Run,
    tmp_path: Path,
    capsys: Capture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def planned(*words: str) -> str:
        capsys.readouterr()
        assert run("--plan", *words) == 0
        return str(capsys.readouterr().out)

    assert "2 cases, about 4 minutes" in planned()
    assert not measured
    assert run("--only", "training/a") == 0  # as if it was stopped after the first
    kept = json.loads((tmp_path / "results.json").read_text())
    assert {name: found["minutes"] for name, found in kept.items()} == {"training/a": 1.5}
    assert run() == run() == 0
    assert measured == ["ours a", "ours b"]
    assert "## Training speed" in (tmp_path / "page.md").read_text()
    assert "0 cases, about 0 minutes" in planned()
    assert "2 cases, about 2 minutes" in planned("--again", "--rounds", "3")  # 1.5 min for 7 rounds and a warm-up
    for changed, words in ((2, ["--again"]), (2, ["--rounds", "3"]), (0, ["--rounds", "3"])):
        measured.clear()
        assert run(*words) == 0
        assert len(measured) == changed
    monkeypatch.setattr(bench, "code_of", lambda *modules: "other")
    assert "2 cases" in planned("--rounds", "3")


def test_a_case_that_fails_or_does_not_fit_the_budget_leaves_the_others(
    measured: list[str],
    run: Run,
    tmp_path: Path,
    capsys: Capture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ended = bench.JobProcess.poll
    monkeypatch.setattr(
        bench.JobProcess, "poll", lambda self: ended(self) if len(measured) == 2 else Ended(None, 1, 1.0)
    )
    assert run() == 1
    assert list(json.loads((tmp_path / "results.json").read_text())) == ["training/b"]
    assert "bench: training/a ended with exit status 1; its error is above" in capsys.readouterr().err
    assert run("--budget", "1") == 3  # the case needs two minutes
    assert "left for the next call (--budget 1): training/a" in capsys.readouterr().err


@pytest.mark.slow
def test_workers_take_turns() -> None:
    turns = ("ours float32", "ours bf16", "loader float32")
    job = JobProcess(measure, TurnTaking("training", replace(TINY, batch_size=64), turns, 1.0), 2, 1)
    while (ended := job.poll()) is None:
        time.sleep(0.1)
    assert {turn: len(taken) for turn, taken in ended.value["seconds"].items()} == dict.fromkeys(turns, 2)
    assert ended.value["peak_bytes"]["ours float32"] > 1 << 20
    assert ended.value["workers"]["ours bf16"]["parameters"] > 10_000


def test_a_section_of_the_page_is_replaced_and_the_rest_stays(tmp_path: Path) -> None:
    path = tmp_path / "page.md"
    for name, text in (("one", "first"), ("two", "second"), ("one", "changed")):
        write_section(path, name, text)
    text = path.read_text()
    assert text.startswith("# Benchmarks\n")
    assert "first" not in text
    assert text.index("bench:one begin -->\nchanged\n<!-- bench:one end") < text.index("\nsecond\n")
    path.write_text("<!-- bench:one begin -->\nhalf")
    with pytest.raises(SystemExit, match="without"):
        write_section(path, "one", "again")
    assert path.read_text().endswith("half")


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--only", "training,speed"], "'speed': must be of checkpoints, evaluation,"),
        (["--rounds", "0"], "'0': must be an integer >= 1"),
    ],
)
def test_a_bad_command_line_is_named(words: list[str], named: str, run: Run, capsys: Capture) -> None:
    with pytest.raises(SystemExit) as ended:
        run(*words)
    assert ended.value.code == 2
    assert named in capsys.readouterr().err
