"""`txl evaluate`: score a checkpoint on its corpus or another text, choose its attention length (Table 6)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from txl_lightning.config.lengths import Lengths
from txl_lightning.config.schemas import check_values
from txl_lightning.data.corpus import WHOLE, Corpus
from txl_lightning.errors import require
from txl_lightning.evaluation.attention_lengths import (
    CHOSEN_ON,
    draw_sweep,
    first_tokens,
    lengths_to_try,
    select_length,
)
from txl_lightning.evaluation.commands import (
    log_results,
    open_checkpoint,
    open_text,
    options_as_typed,
)
from txl_lightning.evaluation.continuations import score_table
from txl_lightning.evaluation.options import OWN_SPLITS, EvaluateOptions
from txl_lightning.evaluation.protocol import Protocol, given_lengths, protocol_from_options
from txl_lightning.evaluation.scores import SplitScores, notes, score_line
from txl_lightning.evaluation.tables import write_units
from txl_lightning.evaluation.trained import TrainedModel
from txl_lightning.files import write_json

Entries = dict[str, dict[str, Any]]
"""Entries of the splits in `evaluation.json`."""


@options_as_typed()
def run(options: EvaluateOptions, directory: Path) -> list[str]:
    """Score the splits and write `evaluation.json`; for attention lengths also a figure.

    The file says what was scored how, and has an entry for every split with `nll` (nats per token), `ppl` or `bpc`,
    `bpt` (bits per token) for ids, `bpb` where the bytes are known, `standard_error` for these with `over` (the unit's
    name) and `units` (how many), `tokens` and `bytes` that are scored, `left_out` (tokens that are not, by reason),
    `seconds` and `evaluation` (lengths, streams, precision). By option it also has

        init        a length: the values at training's lengths
        losses      losses=true: file with nll and positions of the scored tokens, in text order
        units       per: file of the table
        sweep       attention_lengths: of validation unit, tolerance; init, best and lengths, each with its
                    attention_length and values; attention_length: the shortest within tolerance of the best
        selected    attention_lengths: attention_length, init and best

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
    if options.per is not None and trained.vocabulary.unknown >= 0:
        # A log has characters that training lacked.
        trained = replace(trained, vocabulary=replace(trained.vocabulary, lenient=True))
    lengths = options.attention_lengths
    asked_for = options.splits or ([] if lengths is None else OWN_SPLITS)
    corpus, splits = open_text(trained, options, asked_for, OWN_SPLITS)
    corpus = first_tokens(corpus, options.sweep_tokens)
    protocol = protocol_from_options(trained, options, whole=WHOLE in splits)
    folder = directory if options.losses else None
    scores = {
        split: SplitScores(
            corpus,
            split,
            options.block_len,
            folder,
        )
        for split in splits
    }
    if lengths is None:
        entries = score_splits(scores, protocol, options, directory)
    else:
        entries = select_length(scores, lengths_to_try(protocol, lengths))
    write_results(entries, corpus, trained, options, directory)
    return lines_of(entries, corpus, options)


def check_options(options: EvaluateOptions) -> None:
    """Refuse options that do not go together.

    Raises:
        OptionError: names the option.
    """
    check_values(options)
    if options.attention_lengths is None:
        n = options.sweep_tokens
        require(n is None, "sweep_tokens", n, "is for attention_lengths=[…]")
    elif options.splits:
        allowed = f"must have {CHOSEN_ON}, which chooses the attention length"
        require(CHOSEN_ON in options.splits, "splits", options.splits, allowed)
    if options.per is not None:
        refuse_others(options, "per", ["attention_lengths"])
    if options.continuations is not None:
        others = ["attention_lengths", "per", "data_path", "splits", "losses"]
        refuse_others(options, "continuations", others)


def refuse_others(options: EvaluateOptions, kind: str, others: Sequence[str]) -> None:
    """Refuse options that ask for other kinds of scores."""
    for name in others:
        value = getattr(options, name)
        require(not value, name, value, f"must be left out with {kind}")


def score_splits(
    scores: dict[str, SplitScores], protocol: Protocol, options: EvaluateOptions, directory: Path
) -> Entries:
    """Score every split at the command's lengths, and at training's if the command gives others."""
    given = given_lengths(options).keys() - {"batch_size", "max_segments"}
    entries = {}
    for split, split_scores in scores.items():
        entry = split_scores.row(protocol, "")
        if options.per is not None:
            losses = split_scores.losses(protocol)
            entry["units"] = write_units(
                options.per,
                split_scores.corpus,
                split,
                losses,
                directory,
            )
        if given:
            entry["init"] = split_scores.row(protocol.at_training_lengths())
        entries[split] = entry
    return entries


def write_results(
    entries: Entries,
    corpus: Corpus,
    trained: TrainedModel,
    options: EvaluateOptions,
    directory: Path,
) -> None:
    """Write `evaluation.json` and the figure with attention lengths, and log them."""
    settings = next(iter(entries.values()))["evaluation"]
    memory = Lengths(0, settings.get("mem_len"))
    results: dict[str, Any] = {
        "checkpoint": str(options.checkpoint),
        "step": trained.step,
        "corpus": corpus.facts(),
        "evaluation": settings,
        "streams_start": memory.streams_start(trained.config.memory.start),
        **entries,
    }
    write_json(directory / "evaluation.json", results)
    if options.attention_lengths is not None:
        draw_sweep(entries[CHOSEN_ON]["sweep"], corpus, directory)
    log_results("evaluate", results, options, directory)


def lines_of(entries: Entries, corpus: Corpus, options: EvaluateOptions) -> list[str]:
    """Return the lines to print: every split's loss, and how it was scored."""
    lines = []
    for split, entry in entries.items():
        if options.attention_lengths is None:
            lines.append(score_line(split, entry))
        else:
            selected = entry["selected"]
            title = f"{split}, attention length {selected['attention_length']}"
            lines.append(score_line(title, {**selected["best"], "init": selected["init"]}))
        if "units" in entry:
            lines.append(f"{split}: a row for each {options.per} in {entry['units']}")
        if "sweep" in entry:
            sweep = entry["sweep"]
            shortest = f"within {sweep['tolerance']:g} {sweep['unit']} of the best"
            lines.append(f"shortest attention length {shortest}: {sweep['attention_length']}")
    return lines + notes(entries, corpus)
