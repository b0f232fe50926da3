"""Scores of lines, documents and tokens: what they sum to, whose tokens they are, and the table."""

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.evaluation.scored import BLOCK_LEN
from tests.evaluation.small_runs import SmallRuns
from tests.training import small_run
from tests.training.small_run import trained
from txl_lightning.data.vocabulary import Vocabulary
from txl_lightning.evaluation.tables import lines_of_tokens

PAIRS = ("data.level=bpe", "data.vocab_size=270", "trainer.max_steps=1")
LINES = ["line 7: the square of 7 is 49", "line 3", "", "line 12: the square of 12 is the square", "7"]
LINES += [f"line {i}: {'the square ' * (i % 5)}is {i}" for i in range(40)]


def checkpoint_of(runs: SmallRuns, kind: str) -> str:
    if kind == "pairs":
        return str(trained(*PAIRS) / "run/checkpoints/best.ckpt")
    return runs.checkpoint(kind)


def evaluated(runs: SmallRuns, kind: str, directory: Path, **options: Any) -> dict[str, Any]:
    return small_run.evaluated(checkpoint_of(runs, kind), directory, block_len=BLOCK_LEN, **options)


def rows_of(directory: Path, name: str) -> list[dict[str, str]]:
    with (directory / name).open(newline="") as file:
        return list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))


def scored_lines(runs: SmallRuns, kind: str, directory: Path, text: str, **options: Any) -> dict[str, Any]:
    """Score a text of its own, and return the values of it with the rows of its table."""
    file = directory / "text.log"
    file.write_bytes(text.encode())
    found = evaluated(runs, kind, directory, data_path=str(file), **options)
    found["whole"]["rows"] = rows_of(directory, found["whole"]["units"])
    return found


UNITS = [("relative", "line"), ("words", "line"), ("pairs", "line"), ("sentences", "line"), ("characters", "token")]
UNITS += [("documents", "document"), ("sentences", "document"), ("sentences", "token")]


@pytest.mark.parametrize(("kind", "per"), UNITS)
def test_losses_of_units_sum_to_the_score(runs: SmallRuns, tmp_path: Path, kind: str, per: str) -> None:
    plain = evaluated(runs, kind, tmp_path, splits=["test"])["test"]
    of_units = evaluated(runs, kind, tmp_path, splits=["test"], per=per)["test"]
    rows = rows_of(tmp_path, of_units["units"])
    assert [int(row["place"]) for row in rows] == [*range(1, len(rows) + 1)]
    assert of_units["nll"] == plain["nll"]
    assert sum(int(row["tokens"]) for row in rows) == plain["tokens"]
    nats = sum(float(row["nats"] or 0) for row in rows)
    assert nats == pytest.approx(plain["tokens"] * plain["nll"], rel=1e-9)


@pytest.mark.parametrize("kind", ["characters", "words", "pairs"])
def test_every_line_has_its_own_tokens(runs: SmallRuns, tmp_path: Path, kind: str) -> None:
    """The nats of a line are those of its tokens in the table of tokens."""
    text = "".join(f"{line}\n" for line in LINES)
    rows = scored_lines(runs, kind, tmp_path, text, per="line")["whole"]["rows"]
    tokens = scored_lines(runs, kind, tmp_path, text, per="token")["whole"]["rows"]
    if kind == "words":
        lines = [line.split() for line in LINES]
        assert len(rows) == len(LINES)
        of_tokens = [number for number, words in enumerate(lines) for _ in [*words, "<eos>"]]
    else:  # a token of several characters belongs to the line in which it begins
        assert [row["text"] for row in rows] == LINES
        begins = np.cumsum([0, *(len(token["text"].replace("\\n", "\n")) for token in tokens[:-1])])
        ends = np.cumsum([len(line) + 1 for line in LINES])
        of_tokens = np.searchsorted(ends, begins, side="right").tolist()
    for number, row in enumerate(rows):
        own = [token for token, line in zip(tokens, of_tokens, strict=True) if line == number]
        assert int(row["tokens"]) == sum(int(token["tokens"]) for token in own)
        nats = sum(float(token["nats"] or 0) for token in own)
        assert float(row["nats"] or 0) == pytest.approx(nats, rel=1e-9)


def test_documents_are_files_and_lines_that_begin_them(runs: SmallRuns, tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs/a.txt").write_text("no line\na square\nline 2\nis 4\n")
    (tmp_path / "logs/b.txt").write_text("is 7\n")
    options = {"data_path": str(tmp_path / "logs"), "per": "document", "batch_size": 1}
    name = evaluated(runs, "documents", tmp_path, **options)["whole"]["units"]
    assert name == "documents_whole.tsv"
    assert [row["text"] for row in rows_of(tmp_path, name)] == ["no line\\na square", "line 2\\nis 4", "is 7"]


def test_unknown_characters_are_counted(runs: SmallRuns, tmp_path: Path) -> None:
    content = "line 1: ö\nline 2: öß\nline 3\n"
    found = scored_lines(runs, "characters", tmp_path, content, per="line", batch_size=1)
    assert found["corpus"]["unknown"] == {"whole": pytest.approx(3 / 28)}
    assert [row["text"] for row in found["whole"]["rows"]] == ["line 1: <unk>", "line 2: <unk><unk>", "line 3"]
    assert [int(row["tokens"]) for row in found["whole"]["rows"]] == [9, 11, 7]
    assert found["whole"]["bytes"] is None


def test_special_characters_are_escaped(runs: SmallRuns, tmp_path: Path) -> None:
    content = 'line\t1 "7"\r\n\nline \\ 2\r is\n'
    rows = scored_lines(runs, "relative", tmp_path, content, per="line")["whole"]["rows"]
    assert [row["text"] for row in rows] == ['line\\t1 "7"', "", "line \\\\ 2\\r is"]


def test_a_token_belongs_to_the_line_in_which_it_begins() -> None:
    vocabulary = Vocabulary("bpe", ("a", "\n", "b\n\n", "\nc"))
    found = lines_of_tokens(vocabulary, np.array([0, 1, 0, 2, 0, 3, 0]))
    assert found.tolist() == [0, 0, 1, 1, 3, 3, 4]
