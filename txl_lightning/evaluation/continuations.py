"""Continuations of contexts: log-likelihoods of answers, for multiple choice and reranking.

    log P(continuation | context) = Σ_t log P(x_t | context, x_1 … x_{t-1})

Every row is read from a fresh state, in evaluation's segments, with the state carried between them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from txl_lightning.config.lengths import Lengths
from txl_lightning.config.schemas import FileData
from txl_lightning.data.formats import READERS, format_of
from txl_lightning.data.streams import Streams
from txl_lightning.errors import UserError, require
from txl_lightning.evaluation.commands import log_results
from txl_lightning.evaluation.hardware import autocast
from txl_lightning.evaluation.losses import device_of, with_progress
from txl_lightning.evaluation.options import EvaluateOptions
from txl_lightning.evaluation.protocol import Protocol, protocol_from_options
from txl_lightning.evaluation.trained import TrainedModel, naming
from txl_lightning.files import not_special, write_json, write_text

OPTION = "continuations"
TABLE = "continuations.jsonl"


class Continuation(NamedTuple):
    """A text as tokens; the last ones are scored.

    Args:
        tokens: context and continuation.
        n_context: tokens in the context. Without any, the first token is not scored.
    """

    tokens: list[int]
    n_context: int

    @property
    def n_scored(self) -> int:
        """Number of scored tokens."""
        return len(self.tokens) - max(1, self.n_context)


class Likelihood(NamedTuple):
    """One continuation's result.

    Args:
        tokens: number of scored tokens.
        nats: -log P(continuation | context).
        greedy: whether every scored token is the likeliest one.
    """

    tokens: int
    nats: float
    greedy: bool


def encode_pair(trained: TrainedModel, context: str, continuation: str) -> Continuation:
    """Encode a context and its continuation as one text.

    A token with characters from both belongs to the continuation.

    Raises:
        UserError: the vocabulary lacks a character, and has no `<unk>`.
    """
    tokens = trained.encode(context + continuation)
    before = trained.encode(context)
    n_context = 0
    for token, token_of_context in zip(tokens, before, strict=False):
        if token != token_of_context:
            break
        n_context += 1
    return Continuation(tokens, n_context)


@torch.no_grad()
def score_continuations(
    protocol: Protocol, continuations: Sequence[Continuation]
) -> list[Likelihood]:
    """Return every continuation's likelihood, in their order.

    Args:
        protocol: lengths and precision; its streams are not used.
        continuations: tokens with at least one to score.
    """
    model = protocol.model()
    rows = with_progress(continuations, len(continuations), OPTION, "row")
    with autocast(protocol.precision, device_of(protocol.trained.model)):
        return [_score(model, protocol.lengths, continuation) for continuation in rows]


def _score(model: Any, lengths: Lengths, continuation: Continuation) -> Likelihood:
    """Read a text from a fresh state; return the likelihood of its last tokens."""
    first = len(continuation.tokens) - continuation.n_scored
    memory: Any = None
    nats = 0.0
    greedy = True
    streams = Streams(
        np.array(continuation.tokens),
        1,
        lengths.segment_len,
        lengths.ext_len,
    )
    for index, segment in enumerate(streams):
        hidden_1TD, memory = model(segment.tokens.to(device_of(model)), memory)
        n = int((streams.positions(index) >= first).sum())
        if n > 0:
            log_probabilities_nV = model.log_probabilities(hidden_1TD[:, -n:])[0]
            targets_n = segment.targets[0, -n:].to(device_of(model))
            losses_n1 = -log_probabilities_nV.gather(1, targets_n[:, None])
            nats += float(losses_n1.double().sum())
            greedy &= torch.equal(log_probabilities_nV.argmax(1), targets_n)
    return Likelihood(continuation.n_scored, nats, greedy)


def score_table(trained: TrainedModel, options: EvaluateOptions, directory: Path) -> list[str]:
    """Score every row in a table with the columns `context` and `continuation`.

    `continuations.jsonl` has these columns and

        tokens      number of scored tokens
        nats        -log P(continuation | context)
        greedy      whether every scored token is the likeliest one
        rank        place among the rows with the same context, 1 for the likeliest

    `evaluation.json` has the settings.

    Returns:
        Lines to print.

    Raises:
        OptionError: the table cannot be read, or a row has no token to score.
    """
    path = str(options.continuations)
    protocol = protocol_from_options(trained, options, whole=True)
    rows = []
    continuations = []
    for row in read_rows(path):
        rows.append(row)
        with naming(OPTION, f"{path}, row {len(rows)}"):
            if isinstance(row, Exception):
                raise row
            texts: Any = [dict(row).get(column) for column in ("context", "continuation")]
            if not all(isinstance(text, str) for text in texts):
                raise UserError("must have a text in each of the columns context and continuation")
            continuation = encode_pair(trained, *texts)
            if continuation.n_scored < 1:
                raise UserError("has no token to score; after an empty context the first is not")
        continuations.append(continuation)
    require(bool(rows), OPTION, path, "has no row")
    nats_by_context: dict[str, list[float]] = {}
    likelihoods = score_continuations(protocol, continuations)
    for row, likelihood in zip(rows, likelihoods, strict=True):
        nats_by_context.setdefault(row["context"], []).append(likelihood.nats)
    lines = ""
    for row, likelihood in zip(rows, likelihoods, strict=True):
        rank = sorted(nats_by_context[row["context"]]).index(likelihood.nats) + 1
        scored = {**row, **likelihood._asdict(), "rank": rank}
        lines += json.dumps(scored, ensure_ascii=False, default=str) + "\n"
    write_text(directory / TABLE, lines)
    results: dict[str, Any] = {
        "checkpoint": str(options.checkpoint),
        "step": trained.step,
        "continuations": path,
        "rows": len(rows),
        "evaluation": protocol.settings(),
    }
    write_json(directory / "evaluation.json", results)
    log_results("evaluate", results, options, directory)
    return [f"{len(rows):,} continuations are in {TABLE}"]


def read_rows(path: str) -> Iterator[Any]:
    """Yield a table's rows: JSON lines, CSV, TSV, Parquet or Arrow.

    Raises:
        OptionError: it cannot be read.
    """
    config = FileData(column="all")  # not only the usual one
    with naming(OPTION, path):
        file = not_special(path)
        name = format_of(file, config)
        require(name in READERS, OPTION, path, "must be a table: .jsonl, .csv, .tsv")
        yield from READERS[name](file, config)
