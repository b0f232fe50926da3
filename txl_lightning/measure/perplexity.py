"""`txl evaluate`: score a checkpoint on the splits of its corpus, with the state carried or in windows."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from txl_lightning.data.corpus import SPLITS, WHOLE
from txl_lightning.errors import UserError, require
from txl_lightning.files import write_json
from txl_lightning.measure.attention_lengths import (
    AtLength,
    curves_of,
    first_tokens,
    plan_sweep,
    score_chosen,
    sweep_lengths,
    table_6,
    write_sweeps,
)
from txl_lightning.measure.commands import check_at_least_one, log_panels, open_checkpoint, options_as_typed
from txl_lightning.measure.group import compare_models
from txl_lightning.measure.options import OWN_SPLITS, DynamicOptions, EvaluateOptions
from txl_lightning.measure.scoring import OF_CARRIED, OF_WINDOW, Scoring, SplitScores, scoring_of
from txl_lightning.measure.units import FreshUnits, units_of
from txl_lightning.runs.metrics import loss_unit, shown_units
from txl_lightning.runs.models import beyond
from txl_lightning.runs.trained import checkpoint_corpus, is_other_text

FOR_A_CHECKPOINT = ("checkpoint", "attention_lengths", "select_on", "losses", "max_segments", "per")
DYNAMIC = "dynamic_evaluation"  # module of `txl_lightning.beyond`
REASONS = {"first_of_streams": "at streams' starts", "trimmed": "trimmed", "max_segments": "after max_segments"}


@dataclass(frozen=True)
class Evaluation:
    """Contents of `evaluation.json`, besides an entry for every split.

    An entry has `nll` (nats per token), `bpc` or `ppl`, `bpt` (bits per token) for ids, `bpb` where the bytes are
    known, `standard_error` of these with `over` (name of a unit) and `units` (how many), `tokens` and `bytes` that are
    scored, `left_out` (tokens that are not, by reason) and `seconds`. By option it also has

        losses      losses=true: file with nll and positions of the scored tokens, in text order
        units       per: file of the table
        sweep       attention_lengths: length_option, limit, unit, tolerance; init, best and lengths, each with
                    attention_length, the values above and evaluation; attention_length: the shortest within tolerance
                    of the best; null for a model without attention lengths
        selected    select_on: chosen_on, attention_length, init, best; below_init: their difference, by token
        dynamic     dynamic.lr or dynamic.search: the values above; below_static: the difference, by token

    Args:
        checkpoint: path.
        step: training steps.
        corpus: name, sha256, level; of words unknown, the share of `<unk>` in each split.
        protocol: option `protocol`.
        evaluation: all lengths, in the words of the options, and the precision.
        streams_start: context of the first token of every stream.
        dynamic: rates of dynamic evaluation and how they were found; None without.
    """

    checkpoint: str
    step: int
    corpus: dict[str, Any]
    protocol: str
    evaluation: dict[str, Any]
    streams_start: str
    dynamic: dict[str, Any] | None


@options_as_typed()
def run(options: EvaluateOptions, directory: Path) -> list[str]:
    """Score the splits and write `evaluation.json`; for a sweep also its table and figure.

    Returns:
        Lines to print: one for each split, and the table of a sweep.

    Raises:
        UserError: an option, the checkpoint or the corpus is not usable.
    """
    _check_options(options)
    if options.models:
        return compare_models(options, directory)
    trained, chosen_on = open_checkpoint(options), options.select_on
    if options.per is not None:
        trained = replace(trained, vocabulary=replace(trained.vocabulary, lenient=True))
    in_parts = options.splits or chosen_on is not None or options.dynamic.search
    whole = not in_parts and is_other_text(options.data_path, [trained])
    options = replace(options, splits=[WHOLE] if whole else options.splits or OWN_SPLITS)
    corpus = checkpoint_corpus(trained, options.checkpoint, options.data_path, whole=whole)
    corpus = corpus if chosen_on is None else first_tokens(corpus, chosen_on, options.sweep_tokens)
    units = {split: units_of(trained, corpus, split, options) for split in options.splits if options.per}
    scoring = scoring_of(trained, corpus, options)
    if options.unit_memory == "fresh":
        alone = {split: np.concatenate(of_split.tokens) for split, of_split in units.items()}
        scoring = replace(scoring, corpus=replace(corpus, splits=alone))
        scoring = FreshUnits(**vars(scoring), units=units, per=str(options.per))
    shown = scoring if chosen_on is None else scoring.at_training_lengths()
    plan = _plan(scoring, options) or [(None, shown)]
    learning: Any = None
    if options.dynamic.on:
        own = corpus if options.data_path is None else checkpoint_corpus(trained, options.checkpoint)
        learning = beyond(DYNAMIC).dynamic_evaluation(scoring, own, options.dynamic, options.sweep_tokens)

    best, files, scored = plan[0], directory if options.losses else None, {}
    for split in sorted(options.splits, key=lambda split: split != chosen_on):
        scores = SplitScores(scoring.corpus, split, options.block_len)
        result = scored[split] = scores.values(scores.losses(shown))
        if len(plan) > 1 and chosen_on in (None, split):
            result["sweep"], best = sweep_lengths(plan, scores, options.tolerance)
        elif split == chosen_on:
            result["sweep"] = None
        if chosen_on is not None:
            result["selected"] = score_chosen(plan[0], best, chosen_on, scores, files)
        elif files is not None:
            result["losses"] = scores.write(shown, files / f"losses_{split}.npz")
        if split in units:
            result["units"] = f"{options.per}s_{split}.{options.table}"
            units[split].write(scores.losses(shown), directory / result["units"])
        if learning is not None:
            result["dynamic"] = learning.scores(shown, scores, files)

    evaluation = Evaluation(
        checkpoint=str(options.checkpoint),
        step=trained.step,
        corpus=corpus.facts(),
        protocol=options.protocol,
        evaluation=shown.settings(),
        streams_start=scoring.streams_start,
        dynamic=None if learning is None else learning.found,
    )
    results = {**vars(evaluation), **scored}
    write_json(directory / "evaluation.json", results)
    lengths = f"{evaluation.evaluation['protocol']}: {shown.description()}"
    names = {split: corpus.name + corpus.unknown_share(split) for split in scored}
    lines = [split_line(split, result, names[split], lengths) for split, result in scored.items()]
    lines += [f"{split}: {len(units[split].texts):,} {options.per}s in {scored[split]['units']}" for split in units]
    lines += learning.lines(scored, corpus.name) if learning is not None else []
    lines += write_sweeps(results, options.splits, directory) if len(plan) > 1 else []
    log_results(results, options, directory)
    return lines


def _check_options(options: EvaluateOptions) -> None:
    splits, lengths, per = options.splits or OWN_SPLITS, options.attention_lengths, options.per
    check_at_least_one(options, "batch_size", "segment_len", "max_segments", "window", "stride", "block_len")
    check_at_least_one(options, "sweep_tokens")
    if not (options.checkpoint or options.models):
        raise UserError("checkpoint: must be given (checkpoint=…), or models=[…]")
    for name in FOR_A_CHECKPOINT if options.models else ():
        value = getattr(options, name)
        require(value == getattr(EvaluateOptions(), name), name, value, "is for a checkpoint, not for models")
    protocols = ["carried", "window", *(["both"] if options.models else [])]
    require(options.protocol in protocols, "protocol", options.protocol, f"must be {' or '.join(protocols)}")
    for protocol, names in {"carried": OF_CARRIED, "window": OF_WINDOW}.items():
        for name in names:
            value, used = getattr(options, name), options.protocol in (protocol, "both")
            require(value is None or used, name, value, f"is for protocol={protocol}")
    to_select = [split for split in splits if split in ("valid", "train")]
    shortened = options.select_on is not None or options.dynamic.search
    fresh = options.unit_memory == "fresh"
    rules = [
        ("splits", set(splits) <= set(SPLITS), f"must be of {', '.join(SPLITS)}"),
        ("attention_lengths", lengths is None or min(lengths, default=0) >= 1, "must be integers >= 1, at least one"),
        ("tolerance", options.tolerance is None or options.tolerance >= 0, "must be null or a number >= 0"),
        ("select_on", options.select_on in (None, *to_select), f"must be null, or valid or train and among {splits=}"),
        ("sweep_tokens", options.sweep_tokens is None or shortened, "is for select_on=valid"),
        ("per", per in (None, "line", "document", "token"), "must be null, line, document or token"),
        ("unit_memory", options.unit_memory in ("carried", "fresh"), "must be carried or fresh"),
        ("unit_memory", not fresh or per in ("line", "document"), "is for per=line or document"),
        ("unit_memory", not fresh or options.protocol == "carried", "is for protocol=carried"),
        ("table", options.table in ("tsv", "parquet"), "must be tsv or parquet"),
        ("table", options.table == "tsv" or per is not None, "is for per=line, document or token"),
        ("attention_lengths", per is None or lengths is None, "must be null with per"),
    ]
    for name, right, allowed in rules:
        require(right, name, getattr(options, name), allowed)
    if options.dynamic != DynamicOptions():
        beyond(DYNAMIC).check_options(options)


def _plan(scoring: Scoring, options: EvaluateOptions) -> list[AtLength]:
    """Plan the sweep; empty without attention lengths, and with `select_on` for a model that has none."""
    lengths = options.attention_lengths
    cannot = getattr(scoring.trained.model, "cannot", {"attention lengths": "a recurrent model has none"})
    if options.select_on is not None and options.protocol == "carried" and "attention lengths" in cannot:
        return []
    allowed = "must be given with select_on: lengths to choose from"
    require(options.select_on is None or lengths is not None, "attention_lengths", lengths, allowed)
    return [] if lengths is None else plan_sweep(scoring, lengths)


def split_line(split: str, result: dict[str, Any], corpus: str, lengths: str) -> str:
    """Return one line: loss with its standard error, tokens scored, lengths, and tokens left out."""
    unit = "ppl" if "ppl" in result else "bpc"
    error, margin, over = result["standard_error"], "", ""
    if error[unit] is not None:
        margin, over = f" ± {error[unit]:.4f}", f"; ± over {error['units']:,} {error['over']}"
    others = "".join(f", {name} {result[name]:.4f}" for name in shown_units(result)[1:])
    reasons = ", ".join(f"{n:,} {REASONS[reason]}" for reason, n in result["left_out"].items() if n)
    return (
        f"{split}: nll {result['nll']:.4f}, {unit} {result[unit]:.4f}{margin}{others} over "
        f"{result['tokens']:,} tokens of {corpus} ({lengths}; left out: {reasons}{over})"
    )


def log_results(results: dict[str, Any], options: EvaluateOptions, directory: Path) -> None:
    """Log a W&B run, if `logger=wandb`: the scores as summary and table; for a sweep also its table and curves.

    Args:
        results: contents of `evaluation.json`.
        options: options of the command.
        directory: folder for the files of the run.
    """
    splits, unit = options.splits, loss_unit(results["corpus"]["level"])
    summary: dict[str, Any] = {}
    for split in splits:
        for prefix, result in ((split, results[split]), (f"{split}/dynamic", results[split].get("dynamic"))):
            shown = ("nll", *shown_units(result), "tokens") if result else ()
            summary |= {f"{prefix}/{name}": result[name] for name in shown}
    names = ["nll", unit, "tokens"]
    tables: dict[str, Any] = {
        "table": (["split", *names], [[split, *(results[split][name] for name in names)] for split in splits])
    }
    curves: dict[str, Any] = {}
    if swept := curves_of(results, splits):
        tables["table_6"], (lengths, _) = table_6(results, splits), next(iter(swept.values()))
        losses = {split: y for split, (_, y) in swept.items()}
        curves["attention_lengths"] = (lengths, losses, "attention length", f"{unit} by attention length")
    known = {"corpus": results["corpus"], "evaluation": results["evaluation"]}
    log_panels(options, directory, "evaluate", known, tables, curves, summary=summary)
