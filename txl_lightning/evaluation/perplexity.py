"""`txl evaluate`: score a checkpoint on its corpus or another text, choose its attention length (Table 6)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from txl_lightning.config.lengths import training_lengths
from txl_lightning.data.corpus import WHOLE, Corpus
from txl_lightning.data.vocabulary import without_marks
from txl_lightning.errors import require
from txl_lightning.evaluation.commands import (
    log_results,
    open_checkpoint,
    open_text,
    options_as_typed,
)
from txl_lightning.evaluation.continuations import score_table
from txl_lightning.evaluation.losses import TokenLosses, standard_error, text_units
from txl_lightning.evaluation.options import OWN_SPLITS, EvaluateOptions
from txl_lightning.evaluation.protocol import Protocol, given_lengths, protocol_from_options
from txl_lightning.evaluation.units import (
    UNITS,
    errors_by_unit,
    loss_metrics,
    loss_unit,
    shown_units,
)
from txl_lightning.files import write_atomically, write_json
from txl_lightning.reporting.canvas import line_figure

CHOSEN_ON = "valid"
LINE_WIDTH = 100
Entries: TypeAlias = dict[str, dict[str, Any]]
"""Entries of the splits in `evaluation.json`."""
Score: TypeAlias = Callable[[Protocol, str, str], dict[str, Any]]
"""Returns a split's values with a protocol; the last argument ends the names of its files."""


@options_as_typed()
def run(options: EvaluateOptions, directory: Path) -> list[str]:
    """Score the splits and write `evaluation.json`; for attention lengths also a figure.

    The file says what was scored how, and has an entry for every split with `nll` (nats per token), `ppl` or `bpc`,
    `bpt` (bits per token) for ids, `bpb` where the bytes are known, `standard_error` for these with `over` (the unit's
    name) and `units` (how many), `tokens` and `bytes` that are scored, `left_out` (tokens that are not, by reason),
    `seconds` and `evaluation` (lengths, streams, precision). By option it also has

        init        a length: the values at training's lengths
        losses      losses=true: file with nll and positions of the scored tokens, in text order
        sweep       attention_lengths: a row for each length on validation, with its attention_length and values
        selected    attention_lengths: init and best, the rows at training's length and at the best one

    `continuations` scores a table's rows instead (`continuations.score_table`).

    Returns:
        Lines to print: one for each split, and how they were scored.

    Raises:
        UserError: an option, the checkpoint or the corpus is not usable.
    """
    check_options(options)
    trained = open_checkpoint(options)
    if options.continuations is not None:
        return score_table(trained, options, directory)
    asked_for = options.splits
    if options.attention_lengths is not None:
        asked_for = asked_for or OWN_SPLITS
    corpus, splits = open_text(trained, options, asked_for, OWN_SPLITS)
    corpus = first_tokens(corpus, options.sweep_tokens)
    protocol = protocol_from_options(trained, options, whole=WHOLE in splits)

    def score(protocol: Protocol, split: str, stem: str = "") -> dict[str, Any]:
        return score_split(protocol, corpus, split, options, directory, stem)

    entries: Entries = {}
    if options.attention_lengths is not None:
        unit = loss_unit(corpus.vocabulary.level)
        entries = select_length(splits, protocol, options.attention_lengths, score, unit)
        draw_sweep(
            entries[CHOSEN_ON]["sweep"],
            unit,
            corpus.name,
            directory,
        )
    else:
        has_lengths = given_lengths(options).keys() - {"batch_size", "max_segments"}
        for split in splits:
            entries[split] = score(protocol, split)
            if has_lengths:
                entries[split]["init"] = score(
                    protocol.at_training_lengths(),
                    split,
                    "_init",
                )
    results: dict[str, Any] = {
        "checkpoint": str(options.checkpoint),
        "step": trained.step,
        "corpus": corpus.facts(),
        "evaluation": protocol.settings(),
        "streams_start": protocol.lengths.streams_start(trained.config.memory.start),
        **entries,
    }
    write_json(directory / "evaluation.json", results)
    log_results("evaluate", results, options, directory)
    lines = []
    for split, entry in entries.items():
        lines.append(score_line(f"{split}{corpus.unknown_share(split)}", entry))
    over = entry["standard_error"]["over"]
    return [*lines, f"± is a standard error over {over}; lengths and streams: evaluation.json"]


def check_options(options: EvaluateOptions) -> None:
    """Refuse options that do not go together.

    Raises:
        OptionError: names the option.
    """
    if options.attention_lengths is None:
        n = options.sweep_tokens
        require(n is None, "sweep_tokens", n, "is for attention_lengths=[…]")
    elif options.splits:
        allowed = f"must have {CHOSEN_ON}, which chooses the attention length"
        require(CHOSEN_ON in options.splits, "splits", options.splits, allowed)
    if options.continuations is not None:
        for name in ("attention_lengths", "data_path", "splits", "losses"):
            value = getattr(options, name)
            require(not value, name, value, "must be left out with continuations")


def select_length(
    splits: Sequence[str], protocol: Protocol, lengths: Sequence[int], score: Score, unit: str
) -> Entries:
    """Choose the attention length on validation; score all splits at training's lengths and at this length.

    Args:
        splits: names of the splits, `CHOSEN_ON` among them.
        protocol: the way of reading; its attention length is varied, as far as the model sees.
        lengths: attention lengths to try, besides training's.
        score: scores a split.
        unit: compared is the loss in this unit.

    Raises:
        OptionError: the model has no attention, or a length is not allowed.
    """
    allowed = f"must be null: {protocol.fixed}"
    require(protocol.fixed is None, "attention_lengths", lengths, allowed)
    trained = training_lengths(protocol.trained.config).attention_length
    tried = {"init": (protocol.within_limit(trained), protocol.at_training_lengths())}
    for length in sorted(set(map(protocol.within_limit, lengths))):
        tried[str(length)] = (length, protocol.at_attention_length(length))
    for _, at_length in tried.values():
        at_length.settings()  # raises for a length that is not allowed, before anything is scored

    def row(name: str, split: str) -> dict[str, Any]:
        length, at_length = tried[name]
        return {
            "attention_length": length,
            **score(
                at_length,
                split,
                f"_{name}",
            ),
        }

    sweep = {name: row(name, CHOSEN_ON) for name in tried}
    best = min(sweep, key=lambda name: sweep[name][unit])
    entries = {}
    for split in splits:
        rows = sweep
        if split != CHOSEN_ON:
            rows = {name: row(name, split) for name in {"init", best}}
        selected = {"init": rows["init"], "best": rows[best]}
        entries[split] = {**rows["init"], "selected": selected}
    entries[CHOSEN_ON]["sweep"] = [*sweep.values()]
    return entries


def first_tokens(corpus: Corpus, n: int | None) -> Corpus:
    """Return the corpus with only the first n validation tokens."""
    if n is None:
        return corpus
    splits = {**corpus.splits, CHOSEN_ON: corpus.splits[CHOSEN_ON][:n]}
    starts = corpus.documents.get(CHOSEN_ON, np.zeros(1))
    documents = {**corpus.documents, CHOSEN_ON: starts[starts < n]}
    return replace(corpus, splits=splits, documents=documents)


def draw_sweep(sweep: Sequence[dict[str, Any]], unit: str, corpus: str, directory: Path) -> None:
    """Draw the validation loss by attention length: `attention_lengths.svg|png`."""
    losses = {row["attention_length"]: row[unit] for row in sweep}
    lengths = sorted(losses)
    curve = (lengths, [losses[length] for length in lengths])
    title = f"Loss by attention length, {corpus}"
    stem = directory / "attention_lengths"
    line_figure(
        stem,
        {CHOSEN_ON: curve},
        "attention length (tokens)",
        UNITS[unit].name,
        title,
    )


def score_split(
    protocol: Protocol,
    corpus: Corpus,
    split: str,
    options: EvaluateOptions,
    directory: Path,
    stem: str = "",
) -> dict[str, Any]:
    """Score a split; return its values, the settings, and the losses file's name, if it is written.

    Args:
        protocol: lengths, streams and precision.
        corpus: the split's corpus.
        split: name of the split.
        options: `block_len` and `losses`.
        directory: folder for the losses file.
        stem: ends the name of the losses file.
    """
    losses = protocol.losses(corpus, split)
    row = loss_values(losses, corpus, split, options.block_len)
    if options.losses:
        row["losses"] = f"losses_{split}{stem}.npz"
        arrays: Any = {"nll": losses.nll, "positions": losses.positions}
        write_atomically(
            directory / row["losses"],
            lambda path: np.savez(path, **arrays),
        )
    row["evaluation"] = protocol.settings()
    return row


def loss_values(losses: TokenLosses, corpus: Corpus, split: str, block_len: int) -> dict[str, Any]:
    """Return the values that `evaluation.json` has for every split and length."""
    level = corpus.vocabulary.level
    n_tokens = len(losses.nll)
    # After the last sentence of a split comes the `<S>` of the first.
    tokens = corpus.splits[split].take(losses.positions, mode="wrap")
    n_bytes = corpus.vocabulary.count_bytes(without_marks(tokens))
    units_P, unit_name = text_units(
        losses.positions,
        corpus.sentences.get(split),
        block_len,
    )
    error, n_units = standard_error(losses.nll, units_P)
    return {
        **loss_metrics(losses.mean, level, (n_bytes or 0) / n_tokens),
        "standard_error": {
            **errors_by_unit(error, losses.mean, level),
            "over": unit_name,
            "units": n_units,
        },
        "tokens": n_tokens,
        "bytes": n_bytes,
        "left_out": losses.left_out,
        "seconds": round(losses.seconds, 2),
    }


def score_line(name: str, entry: Mapping[str, Any]) -> str:
    """Return one line: the loss in words with its standard error, bits per byte, the loss at training's lengths.

    test: 1.9460 ± 0.0123 bits per byte (at training lengths: 1.9871)

    Further units are left out if the line is too long. With attention lengths it is the loss at the best one.
    """
    values = entry
    if "selected" in entry:
        values = {**entry["selected"]["best"], "init": entry["selected"]["init"]}
        name = f"{name}, attention length {values['attention_length']}"
    first, *others = shown_units(values)
    unit = UNITS[first]
    number = unit.number(values[first])
    error = values["standard_error"][first]
    if error is not None:
        number += f" ± {unit.number(error)}"
    line = f"{name}: {unit.words.format(number)}"
    ending = ""
    if "init" in values:
        ending = f" (at training lengths: {unit.number(values['init'][first])})"
    for other in others:
        words = UNITS[other].words.format(UNITS[other].number(values[other]))
        if len(f"{line}, {words}{ending}") <= LINE_WIDTH:
            line += f", {words}"
    return line + ending
