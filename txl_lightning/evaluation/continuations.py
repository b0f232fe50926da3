"""Continuations of contexts: log-likelihoods of answers, for multiple choice and reranking.

    log P(continuation | context) = Σ_t log P(x_t | context, x_1 … x_{t-1})

Every row is read from a fresh state, in segments as long as those of an evaluation, the state carried between them.
"""

from __future__ import annotations

import csv
import json
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from txl_lightning.errors import OptionError, UserError, require
from txl_lightning.evaluation.commands import log_results
from txl_lightning.evaluation.hardware import autocast
from txl_lightning.evaluation.losses import SEGMENT_TOKENS, device_of
from txl_lightning.evaluation.options import EvaluateOptions
from txl_lightning.evaluation.protocol import Protocol, protocol_from_options
from txl_lightning.evaluation.tables import write_tsv
from txl_lightning.evaluation.texts import encode_open
from txl_lightning.evaluation.trained import TrainedModel
from txl_lightning.files import not_special, write_json

FORMATS = (".tsv", ".csv", ".jsonl")
GREEDY_POSITIONS = 256  # whose distributions are held at once


class Continuation(NamedTuple):
    """A text of tokens, the last ones to be scored.

    Args:
        tokens: context and continuation.
        n_context: number of tokens of the context. Without any, the first token is not scored.
    """

    tokens: list[int]
    n_context: int

    @property
    def n_scored(self) -> int:
        """Number of scored tokens."""
        return len(self.tokens) - max(1, self.n_context)


@dataclass(frozen=True)
class Likelihood:
    """Result of one continuation.

    Args:
        nats: -log P(continuation | context).
        tokens: number of scored tokens.
        greedy: whether every scored token is the likeliest one.
    """

    nats: float
    tokens: int
    greedy: bool


def encode_pair(trained: TrainedModel, context: str, continuation: str) -> Continuation:
    """Encode a context and its continuation as one text.

    A token that holds characters of both belongs to the continuation.

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


def score_continuations(protocol: Protocol, continuations: Sequence[Continuation]) -> list[Likelihood]:
    """Return the likelihood of every continuation, in their order.

    Args:
        protocol: lengths and precision; its streams are not used.
        continuations: tokens with at least one to score.
    """
    model = protocol.model()
    found: list[Any] = [None] * len(continuations)
    with torch.no_grad(), autocast(protocol.precision, device_of(protocol.trained.model)):
        for rows in _batches(continuations, protocol, getattr(model, "takes_lengths", False)):
            batch = [continuations[row] for row in rows]
            for row, likelihood in zip(rows, _score_batch(model, protocol, batch), strict=True):
                found[row] = likelihood
    return found


def _batches(continuations: Sequence[Continuation], protocol: Protocol, ragged: bool) -> Iterator[list[int]]:
    """Yield rows with texts of similar length, of equal length unless `ragged`, the longest first."""
    segment_and_memory = protocol.lengths.segment + (protocol.lengths.memory or 0)
    lengths = [len(continuation.tokens) for continuation in continuations]
    batch: list[int] = []
    for row in sorted(range(len(lengths)), key=lambda row: -lengths[row]):
        if batch:
            longest = lengths[batch[0]]
            n_tokens = (len(batch) + 1) * min(longest, segment_and_memory)
            if n_tokens > SEGMENT_TOKENS or not (ragged or lengths[row] == longest):
                yield batch
                batch = []
        batch.append(row)
    if batch:
        yield batch


def _score_batch(model: Any, protocol: Protocol, batch: list[Continuation]) -> list[Likelihood]:
    """Score texts together, segment by segment; the first is the longest."""
    device = device_of(model)
    texts = [torch.tensor(continuation.tokens) for continuation in batch]
    text_BL = pad_sequence(texts, batch_first=True).to(device)
    n_targets_B = torch.tensor([len(text) - 1 for text in texts], device=device)
    first_scored_B = torch.tensor([max(0, continuation.n_context - 1) for continuation in batch], device=device)
    nats_B = torch.zeros(len(batch), dtype=torch.float64, device=device)
    misses_B = torch.zeros(len(batch), dtype=torch.int64, device=device)
    rows_B = torch.arange(len(batch), device=device)
    T = protocol.lengths.segment
    memory: Any = None
    for start in range(0, len(texts[0]) - 1, T):
        begin = max(0, start - protocol.lengths.extended)
        stop = min(start + T, len(texts[0]) - 1)
        options = {}
        lengths_B = (n_targets_B - begin).clamp(min=0, max=stop - begin)
        if bool((lengths_B < stop - begin).any()):
            options["lengths_B"] = lengths_B
        hidden_BTD, memory = model(text_BL[:, begin:stop], memory, **options)
        places_T = torch.arange(begin, stop, device=device)
        scored_BT = (places_T >= first_scored_B[:, None]) & (places_T < n_targets_B[:, None])
        scored_BT &= places_T >= start
        if not bool(scored_BT.any()):
            continue
        hidden_1ND = hidden_BTD[scored_BT][None]
        targets_1N = text_BL[:, begin + 1 : stop + 1][scored_BT][None]
        row_N = rows_B[:, None].expand_as(scored_BT)[scored_BT]
        nats_B.index_add_(0, row_N, model.losses(hidden_1ND, targets_1N)[0].double())
        misses_B.index_add_(0, row_N, _likeliest(model, hidden_1ND).ne(targets_1N)[0].long())
    found = []
    for continuation, nats, misses in zip(batch, nats_B.tolist(), misses_B.tolist(), strict=True):
        found.append(Likelihood(nats, continuation.n_scored, misses == 0))
    return found


def _likeliest(model: Any, hidden_1ND: Tensor) -> Tensor:
    """Return the likeliest token after every hidden state, [1, N]."""
    parts = [model.log_probabilities(part).argmax(-1) for part in hidden_1ND.split(GREEDY_POSITIONS, dim=1)]
    return torch.cat(parts, dim=1)


def score_table(trained: TrainedModel, options: EvaluateOptions, directory: Path) -> list[str]:
    """Score every row of a table with the columns `context` and `continuation`.

    `continuations.tsv` has the columns of the table and

        tokens      number of scored tokens
        nats        -log P(continuation | context)
        rank        place among the rows with the same context, 1 for the likeliest
        greedy      whether every scored token is the likeliest one

    `evaluation.json` has the sums over all rows and the settings.

    Returns:
        Lines to print.

    Raises:
        OptionError: the table cannot be read, or a row has no token to score.
    """
    rows = read_table(str(options.continuations))
    protocol = protocol_from_options(trained, options, whole=True)
    continuations = []
    for number, row in enumerate(rows, 1):
        continuation = _encode_row(trained, options, row, number)
        continuations.append(continuation)
    likelihoods = score_continuations(protocol, continuations)
    ranks = rank_by_context([row["context"] for row in rows], [likelihood.nats for likelihood in likelihoods])
    columns = list(rows[0])
    cells = []
    for row, likelihood, rank in zip(rows, likelihoods, ranks, strict=True):
        greedy = "yes" if likelihood.greedy else "no"
        copied = [row.get(column, "") for column in columns]
        cells.append([*copied, likelihood.tokens, likelihood.nats, rank, greedy])
    name = "continuations.tsv"
    write_tsv(directory / name, [*columns, "tokens", "nats", "rank", "greedy"], cells)
    results: dict[str, Any] = {
        "checkpoint": str(options.checkpoint),
        "step": trained.step,
        "continuations": str(options.continuations),
        "table": name,
        "rows": len(rows),
        "tokens": sum(likelihood.tokens for likelihood in likelihoods),
        "nats": sum(likelihood.nats for likelihood in likelihoods),
        "evaluation": protocol.settings(),
    }
    write_json(directory / "evaluation.json", results)
    log_results("evaluate", results, options, directory)
    per_token = results["nats"] / results["tokens"]
    return [f"{len(rows):,} continuations, {per_token:.4f} nats per token on average, are in {name}"]


def _encode_row(trained: TrainedModel, options: EvaluateOptions, row: Mapping[str, str], number: int) -> Continuation:
    try:
        continuation = encode_pair(trained, row["context"], row["continuation"])
    except UserError as error:
        raise OptionError("continuations", options.continuations, f"row {number}: {error}") from error
    allowed = f"row {number} must have a token to score; without a context the first token is not scored"
    require(continuation.n_scored > 0, "continuations", options.continuations, allowed)
    return continuation


def rank_by_context(contexts: Sequence[str], nats: Sequence[float]) -> list[int]:
    """Return the place of every row among those with its context, by ascending nats, from 1; equal ones share one."""
    by_context: dict[str, list[float]] = {}
    for context, value in zip(contexts, nats, strict=True):
        by_context.setdefault(context, []).append(value)
    for values in by_context.values():
        values.sort()
    ranks = []
    for context, value in zip(contexts, nats, strict=True):
        ranks.append(1 + bisect_left(by_context[context], value))
    return ranks


def read_table(path: str) -> list[dict[str, str]]:
    """Read a table with the columns `context`, which may be missing, and `continuation`.

    Raises:
        OptionError: it cannot be read, or has no such column or no row.
    """
    option = "continuations"
    suffix = Path(path).suffix
    require(suffix in FORMATS, option, path, f"must be a file of {', '.join(FORMATS)}")
    try:
        with not_special(path).open(newline="", encoding="utf-8-sig") as file:
            if suffix == ".jsonl":
                rows = [json.loads(line) for line in file if line.strip()]
            elif suffix == ".csv":
                rows = list(csv.DictReader(file, strict=True))
            else:
                rows = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    except (OSError, ValueError, csv.Error) as error:
        raise OptionError(option, path, f"cannot be read ({error})") from error
    require(bool(rows), option, path, "has no row")
    table = []
    for number, row in enumerate(rows, 1):
        allowed = f"row {number} must have a text in the column `continuation`"
        require(isinstance(row, dict) and isinstance(row.get("continuation"), str), option, path, allowed)
        row.setdefault("context", "")
        require(isinstance(row["context"], str), option, path, f"row {number} must have a text in `context`")
        table.append(row)
    return table
