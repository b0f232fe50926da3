"""`txl evaluate`: score a checkpoint on its corpus or another text, choose its attention length (Table 6)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from txl_lightning.config.lengths import Lengths
from txl_lightning.data.corpus import WHOLE
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
from txl_lightning.evaluation.scores import notes, score_line, score_split
from txl_lightning.evaluation.units import loss_unit
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
        tried = lengths_to_try(protocol, options.attention_lengths)
        entries = select_length(splits, tried, score, loss_unit(corpus.vocabulary.level))
    else:
        has_lengths = given_lengths(options).keys() - {"batch_size", "max_segments"}
        for split in splits:
            entries[split] = score(protocol, split)
            if has_lengths:
                entries[split]["init"] = score(protocol.at_training_lengths(), split, "_init")
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
    return lines_of(entries) + notes(entries, corpus)


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


def lines_of(entries: Entries) -> list[str]:
    """Return the lines to print: the loss of every split."""
    lines = []
    for split, entry in entries.items():
        selected = entry.get("selected")
        if selected is None:
            lines.append(score_line(split, entry))
        else:
            title = f"{split}, attention length {selected['attention_length']}"
            lines.append(
                score_line(
                    title,
                    {**selected["best"], "init": selected["init"]},
                )
            )
        if "sweep" in entry:
            sweep = entry["sweep"]
            shortest = f"within {sweep['tolerance']:g} {sweep['unit']} of the best"
            lines.append(f"shortest attention length {shortest}: {sweep['attention_length']}")
    return lines
