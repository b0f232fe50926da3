"""Scores of lines, documents and tokens: what they sum to, what each one depends on, and the table."""

import csv
import random
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pyarrow.parquet
import pytest

from tests.covering import product_of
from tests.evaluation.small_runs import SmallRuns
from tests.fixtures import Output
from tests.training import small_run
from tests.training.small_run import trained
from txl_lightning.config.schemas import flat
from txl_lightning.data.vocabulary import Vocabulary
from txl_lightning.errors import UserError
from txl_lightning.evaluation.protocols import SplitScores
from txl_lightning.model.language_model import ScoringModel
from txl_lightning.runs.trained import load_trained

PAIRS = ("data.level=bpe", "data.vocab_size=270", "trainer.max_steps=1")
LINES = ["line 7: the square of 7 is 49", "line 3", "", "line 12: the square of 12 is the square", "7"]
LINES += [f"line {i}: {'the square ' * (i % 5)}is {i}" for i in range(40)]
ALONE = ["relative", "documents", "characters", "extended", "rope", "absolute", "words", "compressive"]
ALONE += ["tokens", "lstm", "pairs", "sentences"]

FRESH: dict[str, Any] = {"per": "line", "unit_memory": "fresh"}


def checkpoint_of(runs: SmallRuns, kind: str) -> str:
    return str(trained(*PAIRS) / "run/checkpoints/best.ckpt") if kind == "pairs" else runs.checkpoint(kind)


def evaluated(runs: SmallRuns, kind: str, directory: Path, text: Any = "", **options: Any) -> dict[str, Any]:
    """Evaluate a checkpoint on a text or lines, or on its own text; return the results with the rows of each table."""
    if text:
        file = directory / f"{options.pop('name', 'text')}.log"
        file.write_bytes((text if isinstance(text, str) else "".join(f"{line}\n" for line in text)).encode())
        options["data_path"] = str(file)
    found = small_run.evaluated(checkpoint_of(runs, kind), directory, block_len=20, **options)
    units = [split for split, values in found.items() if isinstance(values, dict) and "units" in values]
    for split in units if options.get("table") != "parquet" else ():
        with (directory / found[split]["units"]).open(newline="") as file:
            found[split]["rows"] = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    return found


def total(rows: list[dict[str, str]]) -> tuple[int, float]:
    return sum(int(row["tokens"]) for row in rows), sum(float(row["nats"] or 0) for row in rows)


SUMMED = [*ALONE[:3], "words", "sentences", "pairs", "lstm"]


@pytest.mark.parametrize(("kind", "per"), product_of(SUMMED, ["line", "document", "token"]))
def test_losses_of_units_sum_to_those_of_an_evaluation(runs: SmallRuns, tmp_path: Path, kind: str, per: str) -> None:
    plain = evaluated(runs, kind, tmp_path, splits=["valid", "test"])
    of_units = evaluated(runs, kind, tmp_path, splits=["valid", "test"], per=per)
    for split in ("valid", "test"):
        names, rows = plain[split].keys() - {"seconds"}, of_units[split]["rows"]
        of_split, expected = (flat({name: of[split][name] for name in names}) for of in (of_units, plain))
        numbers = {name for name, value in expected.items() if not isinstance(value, str | None)}
        assert of_split == expected | {name: pytest.approx(expected[name], rel=1e-12) for name in numbers}
        tokens, nats = total(rows)
        assert tokens == plain[split]["tokens"]
        assert nats == pytest.approx(tokens * plain[split]["nll"], rel=1e-9)
        assert [int(row["place"]) for row in rows] == [*range(1, len(rows) + 1)]


@pytest.mark.parametrize("kind", ["characters", "words", "pairs"])
def test_every_line_has_its_own_tokens(runs: SmallRuns, tmp_path: Path, kind: str) -> None:
    """The nats of a line, but for the first tokens of streams, are those of its tokens in the table of tokens."""
    rows, tokens = (evaluated(runs, kind, tmp_path, LINES, per=per)["whole"]["rows"] for per in ("line", "token"))
    assert [row["text"] for row in rows] == LINES
    if kind == "words":
        of_tokens = [number for number, line in enumerate(LINES) for _ in [*line.split(), "<eos>"]]
    else:  # a token of several characters belongs to the line in which it begins
        begins = np.cumsum([0, *(len(token["text"].replace("\\n", "\n")) for token in tokens[:-1])])
        of_tokens = np.searchsorted(np.cumsum([len(line) + 1 for line in LINES]), begins, side="right").tolist()
    for number, row in enumerate(rows):
        n, nats = total([token for token, line in zip(tokens, of_tokens, strict=True) if line == number])
        assert int(row["tokens"]) == n
        assert float(row["nats"] or 0) == pytest.approx(nats, rel=1e-9)


@pytest.mark.parametrize("kind", ALONE)
def test_a_line_from_a_fresh_memory_has_the_losses_of_it_as_a_text(runs: SmallRuns, tmp_path: Path, kind: str) -> None:
    lines = [line for line in dict.fromkeys(LINES) if kind != "sentences" or line]
    found = {}
    for order in (lines, random.Random(1).sample(lines, len(lines)), lines[:4]):
        rows = evaluated(runs, kind, tmp_path, order, **FRESH)["whole"]["rows"]
        assert [row["text"] for row in rows] == order
        for row in rows:
            tokens, nats = found.setdefault(row["text"], (row["tokens"], row["nats"]))
            assert tokens == row["tokens"]
            assert float(row["nats"] or 0) == pytest.approx(float(nats or 0), abs=1e-6 * (1 + int(tokens)))
    assert found.get("") in (None, ("0", ""))
    for line in filter(None, lines[:4]):
        tokens, nats = found[line]
        alone = evaluated(runs, kind, tmp_path, [line], name="alone", batch_size=1)["whole"]
        assert alone["tokens"] == int(tokens)
        assert float(nats) == pytest.approx(alone["nll"] * alone["tokens"], rel=1e-6)


@pytest.mark.parametrize("kind", ["relative", "characters", "absolute", "words", "lstm", "pairs"])
def test_every_token_of_a_line_is_scored_after_a_context(runs: SmallRuns, tmp_path: Path, kind: str) -> None:
    """As in a text that begins with the context; a line of one token has a score."""
    context, lines = "line 7\nis ", ["the square of 7 is 49", "7", "square"]
    rows = evaluated(runs, kind, tmp_path, lines, **FRESH, unit_context=context)["whole"]["rows"]
    vocabulary = load_trained(checkpoint_of(runs, kind)).vocabulary
    for line, row in zip(lines, rows, strict=True):
        texts = (context, f"{line}\n", f"{context}{line}\n")
        n_context, n_tokens, n = (len(vocabulary.encode(text.encode())) for text in texts)
        assert int(row["tokens"]) == n_tokens
        if n != n_context + n_tokens:
            continue  # subwords, or words, across the end of the context
        alone = evaluated(runs, kind, tmp_path, texts[2], name="alone", per="token", batch_size=1)
        expected = sum(float(token["nats"]) for token in alone["whole"]["rows"][n_context:])
        assert float(row["nats"]) == pytest.approx(expected, rel=1e-5)


def test_a_symbol_is_a_context(runs: SmallRuns, tmp_path: Path) -> None:
    for context in ("<eos>", "\n"):
        evaluated(runs, "words", tmp_path, "the square\n7\n", **FRESH, unit_context=context)
        (tmp_path / "lines_whole.tsv").rename(tmp_path / f"after {context!r}")
    named, typed = sorted(tmp_path.glob("after*"))
    assert named.read_text() == typed.read_text()
    assert named.read_text().count("\n") == 3


def test_documents_from_a_fresh_memory_are_files_and_lines_that_begin_them(runs: SmallRuns, tmp_path: Path) -> None:
    """Documents are long: a memory is carried in each, and those that end are not read on."""
    (tmp_path / "logs").mkdir()
    documents = ["line 1\n" * 3, "no line\n" + "a square of 12 is 4\n" * 9, "line 2"]
    (tmp_path / "logs/a.txt").write_text("".join(documents[1:]))
    (tmp_path / "logs/b.txt").write_text(documents[0].replace("line 1\n", "is 7\n"))
    expected = [documents[1], documents[2], "is 7\n" * 3]
    rows = evaluated(runs, "documents", tmp_path, data_path=str(tmp_path / "logs"), per="document", unit_memory="fresh")
    assert [row["text"] for row in rows["whole"]["rows"]] == [text.strip().replace("\n", "\\n") for text in expected]
    for text, row in zip(expected, rows["whole"]["rows"], strict=True):
        alone = evaluated(runs, "documents", tmp_path, text, name="alone", batch_size=1)["whole"]
        assert int(row["tokens"]) == alone["tokens"] == len(text) - 1
        assert float(row["nats"]) == pytest.approx(alone["nll"] * alone["tokens"], rel=1e-6)


def test_the_table_of_lines_costs_no_calls(runs: SmallRuns, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Carried losses come from the same calls; fresh ones pad less than a segment of each line."""
    lines = [f"line {i}: {'the square ' * (i * 7 % 10)}is {i}" for i in range(200)]  # segments of 8
    runs.checkpoint("characters")  # trained before calls are counted
    calls: list[int] = []
    score = ScoringModel.score
    monkeypatch.setattr(ScoringModel, "score", lambda *x, **options: calls.append(x[1].numel()) or score(*x, **options))

    def read(**options: Any) -> tuple[list[int], int]:
        calls.clear()
        tokens = evaluated(runs, "characters", tmp_path, lines, batch_size=16, **options)["whole"]["tokens"]
        return list(calls), tokens

    plain, (of_calls, tokens) = read(), read(**FRESH)
    assert read(per="line") == plain
    assert tokens <= sum(of_calls) < tokens + 200 * 8
    assert len(of_calls) < len(plain[0])


@pytest.mark.parametrize("memory", ["carried", "fresh"])
def test_unknown_characters_are_named(runs: SmallRuns, tmp_path: Path, capsys: Output, memory: str) -> None:
    content = "line 1: ö\nline 2: öß\nline 3\n"
    found = evaluated(runs, "characters", tmp_path, content, name=memory, per="line", unit_memory=memory, batch_size=1)
    rows = found["whole"]["rows"]
    line = f"{memory}.log, whole: 3 characters are not in the vocabulary, read as <unk>; such as 'ö' 2, 'ß' 1"
    assert line in capsys.readouterr().err
    assert [row["text"] for row in rows] == content.splitlines()
    assert found["corpus"]["unknown"] == {"whole": pytest.approx(3 / 28)}
    assert found["whole"]["bytes"] is None
    assert int(rows[1]["tokens"]) == 10 + (memory == "carried")


def test_bytes_that_training_lacks_are_left_out_and_named() -> None:
    vocabulary = Vocabulary("byte", ("a", "b"), lenient=True)
    assert vocabulary.encode(b"aXbYa").tolist() == [0, 1, 0]
    with pytest.raises(UserError, match="'X' is not among"):
        replace(vocabulary, lenient=False).encode(b"aXbYa")


def test_both_formats_have_one_content(runs: SmallRuns, tmp_path: Path) -> None:
    content = 'line\t1 "7"\r\n\nline \\ 2\r is\n'
    rows = evaluated(runs, "relative", tmp_path, content, per="line")["whole"]["rows"]
    evaluated(runs, "relative", tmp_path, data_path=str(tmp_path / "text.log"), per="line", table="parquet")
    table = pyarrow.parquet.read_table(tmp_path / "lines_whole.parquet").to_pydict()
    assert list(table) == list(rows[0]) == ["place", "text", "tokens", "nats"]
    assert table["text"] == ['line\t1 "7"', "", "line \\ 2\r is"]
    assert [row["text"] for row in rows] == ['line\\t1 "7"', "", "line \\\\ 2\\r is"]
    numbers = [(int(row["tokens"]), float(row["nats"]) if row["nats"] else None) for row in rows]
    assert [*zip(table["tokens"], table["nats"], strict=True)] == numbers


def test_losses_are_kept_only_if_they_are_asked_for(runs: SmallRuns, tmp_path: Path, monkeypatch: Any) -> None:
    """The memory of an evaluation does not grow with the text."""
    monkeypatch.setattr(SplitScores, "losses", Mock(side_effect=InterruptedError("kept")))
    found = evaluated(runs, "pairs", tmp_path, splits=["test"])["test"]
    assert found["ppl_word"] == pytest.approx(np.exp(found["nll"] * found["tokens"] / found["words"]))
    with pytest.raises(InterruptedError, match="kept"):
        evaluated(runs, "pairs", tmp_path, splits=["test"], losses=True)
