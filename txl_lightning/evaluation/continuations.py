"""Continuations of contexts: log-likelihoods of answers, for multiple choice and reranking.

    log P(continuation | context) = Σ_t log P(x_t | context, x_1 … x_{t-1})

Every row is read from a fresh state, in evaluation's segments, with the state carried between them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from txl_lightning.config.lengths import Lengths
from txl_lightning.config.schemas import FileData
from txl_lightning.data.formats import format_of, read_column
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
COLUMNS = ("context", "continuation")


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
    if continuation.n_scored < 1:
        return Likelihood(0, 0.0, greedy=True)
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
    pairs = read_pairs(path)
    continuations = []
    for number, pair in enumerate(pairs, 1):
        with naming(OPTION, f"{path}, row {number}"):
            continuation = encode_pair(trained, *pair)
            if continuation.n_scored < 1:
                raise UserError(
                    "has no token to score; after an empty context the first is not scored"
                )
        continuations.append(continuation)
    protocol = protocol_from_options(trained, options, whole=True)
    likelihoods = score_continuations(protocol, continuations)
    nats_by_context: dict[str, list[float]] = {}
    for (context, _), likelihood in zip(pairs, likelihoods, strict=True):
        nats_by_context.setdefault(context, []).append(likelihood.nats)
    lines = []
    for (context, text), likelihood in zip(pairs, likelihoods, strict=True):
        rank = sorted(nats_by_context[context]).index(likelihood.nats) + 1
        texts = {"context": context, "continuation": text}
        row = {**texts, **likelihood._asdict(), "rank": rank}
        lines.append(json.dumps(row, ensure_ascii=False) + "\n")
    write_text(directory / TABLE, "".join(lines))
    results: dict[str, Any] = {
        "checkpoint": str(options.checkpoint),
        "step": trained.step,
        "continuations": path,
        "rows": len(pairs),
        "evaluation": protocol.settings(),
    }
    write_json(directory / "evaluation.json", results)
    log_results("evaluate", results, options, directory)
    return [f"{len(pairs):,} continuations are in {TABLE}"]


def read_pairs(path: str) -> list[tuple[str, str]]:
    """Read contexts and continuations from a table: JSON lines, CSV, TSV, Parquet or Arrow.

    Raises:
        OptionError: it cannot be read or lacks these columns, or a row has no text in one.
    """
    columns = []
    for column in COLUMNS:
        config = FileData(column=column)
        with naming(OPTION, path):
            file = not_special(path)
            name = format_of(file, config)
            require(name not in ("", "text"), OPTION, path, "must be a table: .jsonl, .csv, .tsv")
            texts = [text for _, text in read_column(file, name, config)]
        for number, text in enumerate(texts, 1):
            allowed = f"row {number} must have a text in the column `{column}`"
            require(isinstance(text, str), OPTION, path, allowed)
        columns.append(texts)
    require(bool(columns[0]), OPTION, path, "has no row")
    return list(zip(*columns, strict=True))
