"""Continuations of contexts: log-likelihoods of answers, for multiple choice and reranking.

    log P(continuation | context) = Σ_t log P(x_t | context, x_1 … x_{t-1})

Every row is read from a fresh state, in evaluation's segments, with the state carried between them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby, islice
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from txl_lightning.config.lengths import Lengths
from txl_lightning.config.schemas import FileData
from txl_lightning.data.formats import format_of, read_column
from txl_lightning.errors import OptionError, UserError, require
from txl_lightning.evaluation.commands import log_results
from txl_lightning.evaluation.hardware import autocast
from txl_lightning.evaluation.losses import SEGMENT_TOKENS, device_of, with_progress
from txl_lightning.evaluation.options import EvaluateOptions
from txl_lightning.evaluation.protocol import Protocol, protocol_from_options
from txl_lightning.evaluation.texts import encode_open
from txl_lightning.evaluation.trained import TrainedModel, naming
from txl_lightning.files import not_special, write_json, write_text

OPTION = "continuations"
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
    batches = list(_batches(continuations))
    with autocast(protocol.precision, device_of(protocol.trained.model)):
        for rows in with_progress(batches, len(batches), OPTION, "batch"):
            batch = [continuations[row] for row in rows]
            nats_BL, hits_BL = _score_batch(model, protocol.lengths, batch)
            for row, nats_L, hits_L in zip(rows, nats_BL, hits_BL, strict=True):
                n_scored = continuations[row].n_scored
                nats = float(nats_L[-n_scored:].sum())
                is_greedy = bool(hits_L[-n_scored:].all())
                likelihoods[row] = Likelihood(n_scored, nats, is_greedy)
    return likelihoods


def _batches(continuations: Sequence[Continuation]) -> Iterator[list[int]]:
    """Yield rows with equally long texts."""

    def length(row: int) -> int:
        return len(continuations[row].tokens)

    for n_tokens, rows in groupby(
        sorted(range(len(continuations)), key=length),
        length,
    ):
        while batch := list(
            islice(
                rows,
                max(1, SEGMENT_TOKENS // n_tokens),
            )
        ):
            yield batch


def _score_batch(model: Any, lengths: Lengths, batch: list[Continuation]) -> tuple[Tensor, Tensor]:
    """Return the nats of the last targets of texts of equal length, [B, L], and which are the likeliest tokens."""
    text_BL = torch.tensor(
        [continuation.tokens for continuation in batch],
        device=device_of(model),
    )
    last = text_BL.shape[1] - 1
    memory: Any = None
    segments = []
    for start in range(0, last, lengths.segment_len):
        begin = max(0, start - lengths.ext_len)
        stop = min(start + lengths.segment_len, last)
        hidden_BTD, memory = model(
            text_BL[:, begin:stop],
            memory,
        )
        segments.append(hidden_BTD[:, start - begin :])
    n_scored = max(continuation.n_scored for continuation in batch)
    hidden_BLD = torch.cat(
        segments,
        dim=1,
    )[:, -n_scored:]
    targets_BL = text_BL[:, -n_scored:]
    nats = []
    hits = []
    # One place at a time: few distributions are held at once.
    for hidden_B1D, target_B1 in zip(
        hidden_BLD.split(1, 1),
        targets_BL.split(1, 1),
        strict=True,
    ):
        log_probabilities_BV = model.log_probabilities(hidden_B1D)[:, 0]
        nats.append(-log_probabilities_BV.gather(1, target_B1).double())
        hits.append(log_probabilities_BV.argmax(1, keepdim=True) == target_B1)
    return torch.cat(
        nats,
        dim=1,
    ), torch.cat(hits, dim=1)


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
            raise OptionError(OPTION, path, f"row {number}: {error}") from error
        allowed = f"row {number} must have a token to score; without a context the first token is not scored"
        require(continuation.n_scored > 0, OPTION, path, allowed)
        continuations.append(continuation)
    protocol = protocol_from_options(trained, options, whole=True)
    likelihoods = score_continuations(protocol, continuations)
    nats_by_context: dict[str, list[float]] = {}
    for (context, _), likelihood in zip(pairs, likelihoods, strict=True):
        nats_by_context.setdefault(context, []).append(likelihood.nats)
    rows: list[Sequence[object]] = [(*COLUMNS, "tokens", "nats", "greedy", "rank")]
    for (context, text), (n_tokens, nats, is_greedy) in zip(
        pairs,
        likelihoods,
        strict=True,
    ):
        rank = sorted(nats_by_context[context]).index(nats) + 1
        rows.append(
            [
                context,
                text,
                n_tokens,
                nats,
                "yes" if is_greedy else "no",
                rank,
            ]
        )
    name = "continuations.tsv"
    write_tsv(directory / name, rows)
    results: dict[str, Any] = {
        "checkpoint": str(options.checkpoint),
        "step": trained.step,
        "continuations": path,
        "table": name,
        "rows": len(pairs),
        "tokens": sum(likelihood.tokens for likelihood in likelihoods),
        "nats": sum(likelihood.nats for likelihood in likelihoods),
        "evaluation": protocol.settings(),
    }
    write_json(directory / "evaluation.json", results)
    log_results("evaluate", results, options, directory)
    mean = f"{results['nats'] / results['tokens']:.4f} nats per token on average"
    return [f"{len(pairs):,} continuations, {mean}, are in {name}"]


def write_tsv(path: Path, rows: Iterable[Sequence[object]]) -> None:
    """Write a table with a tab between cells; backslash, tab, LF and CR in them are escaped as in C."""
    escapes = str.maketrans(
        {
            "\\": r"\\",
            "\t": r"\t",
            "\n": r"\n",
            "\r": r"\r",
        }
    )
    lines = []
    for row in rows:
        cells = [str(cell).translate(escapes) for cell in row]
        lines.append("\t".join(cells) + "\n")
    write_text(path, "".join(lines))


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
