"""Scores of lines, documents and tokens: what they sum to, what each one depends on, and the table."""

import csv
import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet
import pytest
import torch

from tests.covering import product_of
from tests.measure.small_runs import SmallRuns
from tests.training.small_run import tiny_config, trained
from txl_lightning.config.schemas import flat
from txl_lightning.data.vocabulary import Vocabulary
from txl_lightning.errors import OptionError, UserError
from txl_lightning.measure.options import EvaluateOptions
from txl_lightning.measure.perplexity import run
from txl_lightning.measure.protocols import SplitScores
from txl_lightning.model.language_model import ScoringModel
from txl_lightning.runs.trained import load_trained
from txl_lightning.training.run import train

PAIRS = ("data.level=bpe", "data.vocab_size=270", "trainer.max_steps=1")
LINES = ["line 7: the square of 7 is 49", "line 3", "", "line 12: the square of 12 is the square", "7"]
LINES += [f"line {i}: {'the square ' * (i % 5)}is {i}" for i in range(40)]
ALONE = ["relative", "documents", "characters", "extended", "rope", "absolute", "words", "compressive"]
ALONE += ["tokens", "lstm", "pairs", "sentences"]


Captured = pytest.CaptureFixture[str]


def checkpoint_of(runs: SmallRuns, kind: str) -> str:
    return str(trained(*PAIRS) / "run/checkpoints/best.ckpt") if kind == "pairs" else runs.checkpoint(kind)


def evaluated(runs: SmallRuns, kind: str, directory: Path, content: str | bytes = "", **options: Any) -> dict[str, Any]:
    """Evaluate a checkpoint on a text, or on its own; return the results with the rows of the table of each split."""
    if content:
        file = directory / f"{options.pop('name', 'text')}.log"
        file.write_bytes(content if isinstance(content, bytes) else content.encode())
        options["data_path"] = str(file)
    run(EvaluateOptions(checkpoint_of(runs, kind), block_len=20, **options), directory)
    found = json.loads((directory / "evaluation.json").read_text())
    units = [split for split, values in found.items() if isinstance(values, dict) and "units" in values]
    for split in units if options.get("table") != "parquet" else ():
        with (directory / found[split]["units"]).open(newline="") as file:
            found[split]["rows"] = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    return found


def total(rows: list[dict[str, str]]) -> tuple[int, float]:
    return sum(int(row["tokens"]) for row in rows), sum(float(row["nats"] or 0) for row in rows)


@pytest.mark.parametrize(
    ("kind", "per"),
    product_of([*ALONE[:3], "words", "sentences", "pairs", "lstm"], ["line", "document", "token"]),
)
def test_losses_of_units_sum_to_those_of_an_evaluation(runs: SmallRuns, tmp_path: Path, kind: str, per: str) -> None:
    plain = evaluated(runs, kind, tmp_path, splits=["valid", "test"])
    of_units = evaluated(runs, kind, tmp_path, splits=["valid", "test"], per=per)
    for split in ("valid", "test"):
        tokens, nats = total(of_units[split]["rows"])
        of_split, expected = (flat({name: of[split][name] for name in plain[split]}) for of in (of_units, plain))
        for name, value in expected.items():
            if name != "seconds":
                assert of_split[name] == (
                    value if isinstance(value, str | None) else pytest.approx(value, rel=1e-12)
                ), name
        assert tokens == plain[split]["tokens"]
        assert nats == pytest.approx(tokens * plain[split]["nll"], rel=1e-9)
        assert [int(row["place"]) for row in of_units[split]["rows"]] == list(
            range(1, len(of_units[split]["rows"]) + 1)
        )


@pytest.mark.parametrize("kind", ["characters", "words", "pairs"])
def test_every_line_has_its_own_tokens(runs: SmallRuns, tmp_path: Path, kind: str) -> None:
    """The nats of a line, but for the first tokens of streams, are those of its tokens in the table of tokens."""
    content = "".join(f"{line}\n" for line in LINES)
    rows, tokens = (evaluated(runs, kind, tmp_path, content, per=per)["whole"]["rows"] for per in ("line", "token"))
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
        content = "".join(f"{line}\n" for line in order)
        rows = evaluated(runs, kind, tmp_path, content, per="line", unit_memory="fresh")["whole"]["rows"]
        assert [row["text"] for row in rows] == order
        for row in rows:
            tokens, nats = found.setdefault(row["text"], (row["tokens"], row["nats"]))
            assert tokens == row["tokens"]
            assert float(row["nats"] or 0) == pytest.approx(float(nats or 0), abs=1e-6 * (1 + int(tokens)))
    for line in lines[:4]:
        tokens, nats = found[line]
        if tokens == "0":
            assert (line, nats) == ("", "")
            continue
        alone = evaluated(runs, kind, tmp_path, f"{line}\n", name="alone", batch_size=1)["whole"]
        assert alone["tokens"] == int(tokens)
        assert float(nats) == pytest.approx(alone["nll"] * alone["tokens"], rel=1e-6)


@pytest.mark.parametrize("kind", ["relative", "characters", "absolute", "words", "lstm", "pairs"])
def test_every_token_of_a_line_is_scored_after_a_context(runs: SmallRuns, tmp_path: Path, kind: str) -> None:
    """As in a text that begins with the context; a line of one token has a score."""
    context, lines = "line 7\nis ", ["the square of 7 is 49", "7", "square"]
    options: dict[str, Any] = {"per": "line", "unit_memory": "fresh", "unit_context": context}
    content = "".join(f"{line}\n" for line in lines)
    rows = evaluated(runs, kind, tmp_path, content, **options)["whole"]["rows"]
    n_context = len(load_trained(checkpoint_of(runs, kind)).vocabulary.encode(context.encode()))
    for line, row in zip(lines, rows, strict=True):
        vocabulary = load_trained(checkpoint_of(runs, kind)).vocabulary
        n_tokens = len(vocabulary.encode(f"{line}\n".encode()))
        assert int(row["tokens"]) == n_tokens
        if len(vocabulary.encode(f"{context}{line}\n".encode())) != n_context + n_tokens:
            continue  # subwords, or words, across the end of the context
        alone = evaluated(runs, kind, tmp_path, f"{context}{line}\n", name="alone", per="token", batch_size=1)
        expected = sum(float(token["nats"]) for token in alone["whole"]["rows"][n_context:])
        assert float(row["nats"]) == pytest.approx(expected, rel=1e-5)


def test_a_symbol_is_a_context(runs: SmallRuns, tmp_path: Path) -> None:
    options: dict[str, Any] = {"per": "line", "unit_memory": "fresh"}
    named, typed = (
        evaluated(runs, "words", tmp_path, "the square\n7\n", **options, unit_context=context)
        for context in ("<eos>", "\n")
    )
    assert named["whole"]["rows"] == typed["whole"]["rows"]
    assert [row["tokens"] for row in named["whole"]["rows"]] == ["3", "2"]
    for kind, context, words in (("words", "", "has no token"), ("sentences", "7", "must be null: sentences begin")):
        with pytest.raises(OptionError, match=f"unit_context={context}: {words}"):
            evaluated(runs, kind, tmp_path, "the square\n", **options, unit_context=context)


def test_a_text_too_short_for_the_streams_names_the_option(runs: SmallRuns, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"batch_size=.*must be at most .* a stream needs 2"):
        evaluated(runs, "relative", tmp_path, "7")


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
    content = "".join(f"line {i}: {'the square ' * (i * 7 % 10)}is {i}\n" for i in range(200))  # segments of 8
    runs.checkpoint("characters")  # trained before calls are counted
    calls: list[int] = []
    score = ScoringModel.score

    def counted(self: Any, tokens_BT: torch.Tensor, *args: Any, **options: Any) -> Any:
        calls.append(tokens_BT.numel())
        return score(self, tokens_BT, *args, **options)

    monkeypatch.setattr(ScoringModel, "score", counted)
    found = {}
    given = {"plain": {}, "carried": {"per": "line"}, "fresh": {"per": "line", "unit_memory": "fresh"}}
    for name, options in given.items():
        calls.clear()
        tokens = evaluated(runs, "characters", tmp_path, content, batch_size=16, **options)["whole"]["tokens"]
        found[name] = list(calls), tokens
    assert found["plain"] == found["carried"]
    of_calls, tokens = found["fresh"]
    assert tokens <= sum(of_calls) < tokens + 200 * 8
    assert len(of_calls) < len(found["plain"][0])


@pytest.mark.parametrize("memory", ["carried", "fresh"])
def test_unknown_characters_are_named(runs: SmallRuns, tmp_path: Path, capsys: Captured, memory: str) -> None:
    content = "line 1: ö\nline 2: öß\nline 3\n"
    found = evaluated(runs, "characters", tmp_path, content, name=memory, per="line", unit_memory=memory, batch_size=1)
    rows = found["whole"]["rows"]
    line = f"{memory}.log, whole: 3 characters are not in the vocabulary, read as <unk>; such as 'ö' 2, 'ß' 1"
    assert line in capsys.readouterr().err
    assert [row["text"] for row in rows] == content.splitlines()
    assert found["corpus"]["unknown"] == {"whole": pytest.approx(3 / 28)}
    assert found["whole"]["bytes"] is None
    assert int(rows[1]["tokens"]) == 10 + (memory == "carried")
    with pytest.raises(OptionError, match="'ö' is not among"):
        evaluated(runs, "characters", tmp_path, content)


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
    assert table["text"] == ['line\t1 "7"', "", "line \\ 2\r is"]
    assert [row["text"] for row in rows] == ['line\\t1 "7"', "", "line \\\\ 2\\r is"]
    assert table["tokens"] == [int(row["tokens"]) for row in rows]
    assert table["nats"] == [float(row["nats"]) if row["nats"] else None for row in rows]
    assert list(table) == list(rows[0]) == ["place", "text", "tokens", "nats"]


def test_units_of_one_token_have_nothing_to_score(runs: SmallRuns, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="per=line: no line of whole has two tokens"):
        evaluated(runs, "words", tmp_path, "\n\n\n", per="line", unit_memory="fresh")


def test_ids_have_documents_and_no_lines(tmp_path: Path) -> None:
    ids = np.arange(600) % 7
    np.save(tmp_path / "ids.npy", ids)
    options = ("data.level=ids", "trainer.max_steps=1", f"data.path={tmp_path / 'ids.npy'}")
    train(tiny_config(tmp_path, *options), tmp_path / "run")
    np.save(tmp_path / "new.npy", ids[:50])
    given = {"checkpoint": str(tmp_path / "run/checkpoints/best.ckpt"), "data_path": str(tmp_path / "new.npy")}
    run(EvaluateOptions(**given, per="document", unit_memory="fresh"), tmp_path)
    place, text, tokens, _ = (tmp_path / "documents_whole.tsv").read_text().splitlines()[1].split("\t")
    assert (place, text, tokens) == ("1", " ".join(map(str, ids[:50])), "49")
    with pytest.raises(OptionError, match=r"per=line: .*ids have no lines"):
        run(EvaluateOptions(**given, per="line"), tmp_path)


def test_losses_are_kept_only_if_they_are_asked_for(
    runs: SmallRuns, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The memory of an evaluation does not grow with the text."""
    kept: list[str] = []
    losses = SplitScores.losses
    monkeypatch.setattr(SplitScores, "losses", lambda self, scoring: kept.append(self.split) or losses(self, scoring))
    found = evaluated(runs, "pairs", tmp_path, splits=["test"])["test"]
    assert kept == []
    assert found["ppl_word"] == pytest.approx(np.exp(found["nll"] * found["tokens"] / found["words"]))
    evaluated(runs, "pairs", tmp_path, splits=["test"], losses=True)
    assert kept
