"""Continuations of contexts: log-likelihoods of answers, for multiple choice and reranking.

    log P(continuation | context) = Σ_t log P(x_t | context, x_1 … x_{t-1})

Every row is read from a fresh state, in evaluation's segments, with the state carried between them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from txl_lightning.config.schemas import FileData
from txl_lightning.data.formats import format_of, read_column
from txl_lightning.errors import OptionError, UserError, require
from txl_lightning.evaluation.commands import log_results
from txl_lightning.evaluation.hardware import autocast
from txl_lightning.evaluation.losses import SEGMENT_TOKENS, device_of, with_progress
from txl_lightning.evaluation.options import EvaluateOptions
from txl_lightning.evaluation.protocol import Protocol, protocol_from_options
from txl_lightning.evaluation.tables import write_tsv
from txl_lightning.evaluation.texts import encode_open
from txl_lightning.evaluation.trained import TrainedModel, naming
from txl_lightning.files import not_special, write_json

OPTION = "continuations"
COLUMNS = ("context", "continuation")
GREEDY_POSITIONS = 256


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
    tokens = encode_open(trained.vocabulary, context + continuation, trained.closed_sentences)
    before = encode_open(trained.vocabulary, context, trained.closed_sentences)
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
    likelihoods: list[Any] = [None] * len(continuations)
    batches = list(_batches(continuations, protocol.lengths.attention_length))
    with autocast(protocol.precision, device_of(protocol.trained.model)):
        for rows in with_progress(batches, len(batches), OPTION, "batch"):
            batch = [continuations[row] for row in rows]
            nats_BL, misses_BL = _score_batch(model, protocol, batch)
            for row, nats_L, misses_L in zip(rows, nats_BL, misses_BL, strict=True):
                n_scored = continuations[row].n_scored
                nats = float(nats_L[-n_scored:].sum())
                is_greedy = not misses_L[-n_scored:].any()
                likelihoods[row] = Likelihood(n_scored, nats, is_greedy)
    return likelihoods


def _batches(continuations: Sequence[Continuation], attention_length: int) -> Iterator[list[int]]:
    """Yield rows with equally long texts."""
    rows_by_length: dict[int, list[int]] = {}
    for row, continuation in enumerate(continuations):
        rows_by_length.setdefault(len(continuation.tokens), []).append(row)
    for length, rows in rows_by_length.items():
        size = max(1, SEGMENT_TOKENS // min(length, attention_length))
        for first in range(0, len(rows), size):
            yield rows[first : first + size]


def _score_batch(
    model: Any, protocol: Protocol, batch: list[Continuation]
) -> tuple[Tensor, Tensor]:
    """Return the last targets' nats in equally long texts, [B, L], and which targets are not the likeliest."""
    text_BL = torch.tensor([continuation.tokens for continuation in batch], device=device_of(model))
    last = text_BL.shape[1] - 1
    segment_len = protocol.lengths.segment_len
    first_scored = min(continuation.n_context for continuation in batch)
    memory: Any = None
    nats = []
    misses = []
    for start in range(0, last, segment_len):
        begin = max(0, start - protocol.lengths.ext_len)
        stop = min(start + segment_len, last)
        hidden_BTD, memory = model(text_BL[:, begin:stop], memory)
        if stop < first_scored:
            continue
        hidden_BTD = hidden_BTD[:, start - begin :]
        targets_BT = text_BL[:, start + 1 : stop + 1]
        nats.append(model.losses(hidden_BTD, targets_BT).double())
        misses.append(_likeliest(model, hidden_BTD) != targets_BT)
    return torch.cat(nats, dim=1), torch.cat(misses, dim=1)


def _likeliest(model: Any, hidden_BTD: Tensor) -> Tensor:
    """Return the likeliest token after every hidden state, [B, T]; few distributions are held at once."""
    likeliest = []
    for hidden_BPD in hidden_BTD.split(max(1, GREEDY_POSITIONS // len(hidden_BTD)), dim=1):
        likeliest.append(model.log_probabilities(hidden_BPD).argmax(-1))
    return torch.cat(likeliest, dim=1)


def score_table(trained: TrainedModel, options: EvaluateOptions, directory: Path) -> list[str]:
    """Score every row in a table with the columns `context` and `continuation`.

    `continuations.tsv` has these columns and

        tokens      number of scored tokens
        nats        -log P(continuation | context)
        greedy      whether every scored token is the likeliest one
        rank        place among the rows with the same context, 1 for the likeliest

    `evaluation.json` has the sums over all rows and the settings.

    Returns:
        Lines to print.

    Raises:
        OptionError: the table cannot be read, or a row has no token to score.
    """
    path = str(options.continuations)
    pairs = read_pairs(path)
    continuations = []
    for number, pair in enumerate(pairs, 1):
        try:
            continuation = encode_pair(trained, *pair)
        except UserError as error:
            raise OptionError(
                OPTION,
                path,
                f"row {number}: {error}",
            ) from error
        allowed = f"row {number} must have a token to score; without a context the first token is not scored"
        require(continuation.n_scored > 0, OPTION, path, allowed)
        continuations.append(continuation)
    protocol = protocol_from_options(trained, options, whole=True)
    likelihoods = score_continuations(protocol, continuations)
    nats_by_context: dict[str, list[float]] = {}
    for (context, _), likelihood in zip(pairs, likelihoods, strict=True):
        nats_by_context.setdefault(context, []).append(likelihood.nats)
    rows = []
    for (context, text), likelihood in zip(pairs, likelihoods, strict=True):
        rank = 1 + sum(nats < likelihood.nats for nats in nats_by_context[context])
        greedy = "yes" if likelihood.greedy else "no"
        rows.append([context, text, likelihood.tokens, likelihood.nats, greedy, rank])
    name = "continuations.tsv"
    header = [*COLUMNS, "tokens", "nats", "greedy", "rank"]
    write_tsv(directory / name, header, rows)
    n_tokens = sum(likelihood.tokens for likelihood in likelihoods)
    nats = sum(likelihood.nats for likelihood in likelihoods)
    results: dict[str, Any] = {
        "checkpoint": str(options.checkpoint),
        "step": trained.step,
        "continuations": path,
        "table": name,
        "rows": len(rows),
        "tokens": n_tokens,
        "nats": nats,
        "evaluation": protocol.settings(),
    }
    write_json(directory / "evaluation.json", results)
    log_results("evaluate", results, options, directory)
    mean = f"{nats / n_tokens:.4f} nats per token on average"
    return [f"{len(rows):,} continuations, {mean}, are in {name}"]


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
