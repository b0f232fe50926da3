"""Scores of lines, documents and tokens: what they sum to, whose tokens they are, and the table."""

import csv
from pathlib import Path
from typing import Any

import pytest

from tests.evaluation.scored import BLOCK_LEN
from tests.evaluation.small_runs import SmallRuns
from tests.training import small_run
from tests.training.small_run import trained

PAIRS = ("data.level=bpe", "data.vocab_size=270", "trainer.max_steps=1")
LINES = ["line 7: the square of 7 is 49", "line 3", "", "line 12: the square of 12", "7"]
for number in range(40):
    repeated = "the square " * (number % 5)
    LINES.append(f"line {number}: {repeated}is {number}")


def checkpoint_of(runs: SmallRuns, kind: str) -> str:
    if kind == "pairs":
        return str(trained(*PAIRS) / "run/checkpoints/best.ckpt")
    return runs.checkpoint(kind)


def evaluated(runs: SmallRuns, kind: str, directory: Path, **options: Any) -> dict[str, Any]:
    checkpoint = checkpoint_of(runs, kind)
    return small_run.evaluated(checkpoint, directory, block_len=BLOCK_LEN, **options)


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(
            csv.DictReader(
                file,
                delimiter="\t",
                quoting=csv.QUOTE_NONE,
            )
        )


def scored_text(
    runs: SmallRuns, kind: str, directory: Path, text: str, per: str, **options: Any
) -> tuple[dict[str, Any], list[dict[str, str]]]:
    """Score another text, and return `evaluation.json` and the rows of its table."""
    file = directory / "text.log"
    file.write_bytes(text.encode())
    found = evaluated(
        runs,
        kind,
        directory,
        data_path=str(file),
        per=per,
        **options,
    )
    return found, rows_of(directory / f"{per}s_whole.tsv")


def nats_of(rows: list[dict[str, str]]) -> float:
    return sum(float(row["nats"] or 0) for row in rows)


def tokens_of(rows: list[dict[str, str]]) -> int:
    return sum(int(row["tokens"]) for row in rows)


UNITS = [
    ("relative", "line"),
    ("words", "line"),
    ("pairs", "line"),
    ("sentences", "line"),
    ("documents", "document"),
    ("sentences", "token"),
]


@pytest.mark.parametrize(("kind", "per"), UNITS)
def test_losses_of_units_sum_to_the_score(
    runs: SmallRuns, tmp_path: Path, kind: str, per: str
) -> None:
    found = evaluated(
        runs,
        kind,
        tmp_path,
        splits=["test"],
        per=per,
    )["test"]
    rows = rows_of(tmp_path / found["units"])
    assert [int(row["place"]) for row in rows] == [*range(1, len(rows) + 1)]
    assert tokens_of(rows) == found["tokens"]
    assert nats_of(rows) == pytest.approx(found["tokens"] * found["nll"], rel=1e-9)


@pytest.mark.parametrize("kind", ["words", "pairs"])
def test_every_line_has_its_own_tokens(runs: SmallRuns, tmp_path: Path, kind: str) -> None:
    """The nats of a line are those of its tokens in the table of tokens."""
    text = "".join(f"{line}\n" for line in LINES)
    _, rows = scored_text(runs, kind, tmp_path, text, "line")
    _, tokens = scored_text(runs, kind, tmp_path, text, "token")
    assert len(rows) == len(LINES)
    line_of_token = []
    n_breaks = 0
    for token in tokens:  # one of several characters belongs to the line in which it begins
        line_of_token.append(n_breaks)
        n_breaks += token["text"].count("<eos>" if kind == "words" else "\\n")
    for number, row in enumerate(rows):
        if kind == "pairs":
            assert row["text"] == LINES[number]
        own = []
        for token, line in zip(tokens, line_of_token, strict=True):
            if line == number:
                own.append(token)
        assert int(row["tokens"]) == tokens_of(own)
        assert float(row["nats"] or 0) == pytest.approx(nats_of(own), rel=1e-9)


def test_documents_are_files_and_lines_that_begin_them(runs: SmallRuns, tmp_path: Path) -> None:
    folder = tmp_path / "logs"
    folder.mkdir()
    (folder / "a.txt").write_text("no line\na square\nline 2\nis 4\n")
    (folder / "b.txt").write_text("is 7\n")
    options = {"data_path": str(folder), "per": "document", "batch_size": 1}
    evaluated(runs, "documents", tmp_path, **options)
    rows = rows_of(tmp_path / "documents_whole.tsv")
    texts = [row["text"] for row in rows]
    assert texts == ["no line\\na square", "line 2\\nis 4", "is 7"]


def test_unknown_characters_are_counted(runs: SmallRuns, tmp_path: Path) -> None:
    text = "line 1: ö\nline 2: öß\nline 3\n"
    found, rows = scored_text(
        runs,
        "characters",
        tmp_path,
        text,
        "line",
        batch_size=1,
    )
    assert found["corpus"]["unknown"] == {"whole": pytest.approx(3 / 28)}
    texts = [row["text"] for row in rows]
    assert texts == ["line 1: <unk>", "line 2: <unk><unk>", "line 3"]
    assert [int(row["tokens"]) for row in rows] == [9, 11, 7]
    assert found["whole"]["bytes"] is None


def test_special_characters_are_escaped(runs: SmallRuns, tmp_path: Path) -> None:
    text = 'line\t1 "7"\r\n\nline \\ 2\r is\n'
    _, rows = scored_text(runs, "relative", tmp_path, text, "line")
    assert [row["text"] for row in rows] == ['line\\t1 "7"', "", "line \\\\ 2\\r is"]
