"""Continuations of contexts: each as if it were alone, the table, the ranks."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.evaluation.scored import losses_alone
from tests.evaluation.small_runs import SmallRuns
from tests.training.small_run import trained as trained_run
from txl_lightning.config.lengths import evaluation_lengths
from txl_lightning.errors import UserError
from txl_lightning.evaluation.continuations import (
    Continuation,
    encode_pair,
    score_continuations,
)
from txl_lightning.evaluation.options import EvaluateOptions
from txl_lightning.evaluation.perplexity import run
from txl_lightning.evaluation.protocol import protocol_from_options
from txl_lightning.evaluation.trained import load_trained

KINDS = ["relative", "documents", "extended", "rope", "words", "compressive", "lstm", "pairs"]
PAIRS = [
    ("line 7: the", " square"),
    ("line 7: the square of 7 is 49 is the square of 8 is ", "64"),
    ("line 8: the", " square"),  # as long as the first
    ("line 7: the", " square of 7 is 49 is the square"),
    ("line 7: the", " of"),
    ("", "the square of 7"),
]


def nats_alone(trained: Any, continuation: Continuation) -> float:
    """Return the loss of a continuation from the losses of this text alone."""
    lengths = evaluation_lengths(trained.config)
    model = trained.model.with_lengths(**lengths.keywords())
    text_1n = torch.tensor([continuation.tokens])
    losses = losses_alone(model, text_1n, lengths.segment_len, lengths.ext_len)
    return sum(losses[-continuation.n_scored :])


def checkpoint_of(runs: SmallRuns, kind: str) -> str:
    if kind == "pairs":
        words = ("data.level=bpe", "data.vocab_size=270", "trainer.max_steps=1")
        return str(trained_run(*words) / "run/checkpoints/best.ckpt")
    return runs.checkpoint(kind)


@torch.no_grad()
@pytest.mark.parametrize("kind", KINDS)
def test_a_continuation_has_the_likelihood_that_it_has_alone(runs: SmallRuns, kind: str) -> None:
    trained = load_trained(checkpoint_of(runs, kind))
    protocol = protocol_from_options(trained, EvaluateOptions("path"), whole=True)
    continuations = [encode_pair(trained, *pair) for pair in PAIRS]
    first = continuations[0].tokens
    hidden, _ = trained.model(torch.tensor([first]))
    likeliest = int(trained.model.log_probabilities(hidden)[0, -1].argmax())
    continuations.append(Continuation([*first, likeliest], len(first)))
    found = score_continuations(protocol, continuations)
    for continuation, likelihood in zip(continuations, found, strict=True):
        nats = nats_alone(trained, continuation)
        assert likelihood.nats == pytest.approx(nats, rel=1e-5)
        assert likelihood.tokens == continuation.n_scored
    assert found[-1].greedy
    assert not all(likelihood.greedy for likelihood in found)


def test_a_text_is_divided_where_its_tokens_differ(runs: SmallRuns) -> None:
    words = load_trained(runs.checkpoint("words"))
    pair = encode_pair(words, "the square", " of 7\n")
    assert words.vocabulary.decode(pair.tokens) == "the square of 7\n"
    assert pair.n_context == 2
    assert encode_pair(words, "the squ", "are").n_context == 1


def written(directory: Path, runs: SmallRuns, name: str, text: str) -> list[dict[str, Any]]:
    """Score a table and return the rows of the result."""
    table = directory / name
    table.write_text(text)
    lines = run(EvaluateOptions(runs.checkpoint("relative"), continuations=str(table)), directory)
    rows = []
    for line in (directory / "continuations.jsonl").read_text().splitlines():
        rows.append(json.loads(line))
    result = json.loads((directory / "evaluation.json").read_text())
    assert result["rows"] == len(rows)
    assert lines == [f"{len(rows)} continuations are in continuations.jsonl"]
    return rows


def test_ranks_are_of_rows_with_the_same_context_wherever_they_stand(
    runs: SmallRuns, tmp_path: Path
) -> None:
    """Candidates of two contexts in turns, one of them twice: equal ones share a rank."""
    lines = ["context\tcontinuation"]
    for square, digits in zip((" square", " squere", " square", " zz"), "4949", strict=True):
        lines += [f"line 7: the\t{square}", f"is \t{digits}{digits}"]
    rows = written(tmp_path, runs, "table.tsv", "\n".join(lines))
    for row in rows:
        nats = [other["nats"] for other in rows if other["context"] == row["context"]]
        assert row["rank"] == 1 + sorted(nats).index(row["nats"])
    assert rows[0]["rank"] == rows[4]["rank"]


BAD = [
    ("table.txt", "a\n", "must be a table: .jsonl, .csv, .tsv"),
    (
        "table.tsv",
        "context\ttext\na\tb\n",
        "column=continuation: must be a column of .*: context, text",
    ),
    (
        "table.tsv",
        "context\tcontinuation\na\tb\na\n",
        "row 2 must have a text in the column `context`",
    ),
    (
        "table.jsonl",
        '{"context": "a", "continuation": 7}\n',
        "row 1 must have a text in the column `con",
    ),
    ("table.jsonl", '{"context": "line"\n', "row 1 must have a text"),
    ("table.tsv", "context\tcontinuation\n", "has no row"),
    ("table.tsv", "context\tcontinuation\n\ta\n", "row 1: has no token to score; after"),
]


@pytest.mark.parametrize(("name", "text", "said"), BAD)
def test_a_bad_table_is_refused(
    runs: SmallRuns, tmp_path: Path, name: str, text: str, said: str
) -> None:
    with pytest.raises(UserError, match=f"^continuations=.*{said}"):
        written(tmp_path, runs, name, text)
    assert not (tmp_path / "evaluation.json").exists()
