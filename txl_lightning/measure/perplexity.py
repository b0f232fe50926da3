"""`txl evaluate`: score a checkpoint on the splits of its corpus, with the state carried or in windows."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from txl_lightning.config.lengths import in_windows, with_segment_len
from txl_lightning.config.schemas import plain
from txl_lightning.data.corpus import SPLITS, WHOLE, Corpus
from txl_lightning.errors import UserError, require
from txl_lightning.files import write_json
from txl_lightning.measure.attention_lengths import (
    AtLength,
    SplitScores,
    first_tokens,
    plan_sweep,
    score_chosen,
    sweep_lengths,
    swept_splits,
    table_6,
    write_sweeps,
)
from txl_lightning.measure.comparison import compare_models
from txl_lightning.measure.option_checks import check_at_least_one, open_checkpoint, options_as_typed
from txl_lightning.measure.options import OWN_SPLITS, DynamicOptions, EvaluateOptions
from txl_lightning.measure.protocols import (
    ScoringProtocol,
    SlidingWindowProtocol,
    StateReuse,
)
from txl_lightning.measure.units import FreshUnits, units_of
from txl_lightning.runs.bfloat16 import chosen_precision
from txl_lightning.runs.metrics import loss_unit, shown_units
from txl_lightning.runs.models import beyond
from txl_lightning.runs.trained import TrainedModel, checkpoint_corpus, is_other_text

MEMORY_LENGTHS = ("batch_size", "segment_len", "mem_len", "ext_len", "same_length")
OF_PROTOCOL = {"carried": MEMORY_LENGTHS, "window": ("window", "stride")}
FOR_A_CHECKPOINT = ("checkpoint", "attention_lengths", "select_on", "losses", "max_segments", "per")
DYNAMIC = "dynamic_evaluation"  # module of `txl_lightning.beyond`
SAMPLE_TOKENS = 5_000  # of the difference to float32
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
        float32_difference: nll in this precision minus that in float32, on the first `tokens` tokens of `split`; None
            with precision=32-true.
        dynamic: rates of dynamic evaluation and how they were found; None without.
    """

    checkpoint: str
    step: int
    corpus: dict[str, Any]
    protocol: str
    evaluation: dict[str, Any]
    streams_start: str
    float32_difference: dict[str, Any] | None
    dynamic: dict[str, Any] | None


@options_as_typed()
def run(options: EvaluateOptions, directory: Path) -> list[str]:
    """Score the splits and write `evaluation.json`; for a sweep also its tables and figure.

    Returns:
        Lines to print: one for each split, and the tables of a sweep.

    Raises:
        UserError: an option, the checkpoint or the corpus is not usable.
    """
    _check_options(options)
    if options.models:
        return compare_models(options, directory, _make_protocol)
    trained, chosen_on = open_checkpoint(options), options.select_on
    if options.per is not None:
        trained = replace(trained, vocabulary=replace(trained.vocabulary, lenient=True))
    in_parts = options.splits or chosen_on is not None or options.dynamic.search
    whole = not in_parts and is_other_text(options.data_path, [trained])
    options = replace(options, splits=[WHOLE] if whole else options.splits or OWN_SPLITS)
    corpus = checkpoint_corpus(trained, options.checkpoint, options.data_path, whole=whole)
    corpus = corpus if chosen_on is None else first_tokens(corpus, chosen_on, options.sweep_tokens)
    units = {split: units_of(trained, corpus, split, options) for split in options.splits if options.per}
    protocol = _make_protocol(trained, corpus, options)
    if options.unit_memory == "fresh":
        alone = {split: np.concatenate(of_split.tokens) for split, of_split in units.items()}
        protocol = replace(protocol, corpus=replace(corpus, splits=alone))
        protocol = FreshUnits(**vars(protocol), units=units, per=str(options.per))
    shown = protocol if chosen_on is None else protocol.at_training_lengths()
    plan = _plan(protocol, options) or [(None, shown)]
    learning: Any = None
    if options.dynamic.on:
        own = corpus if options.data_path is None else checkpoint_corpus(trained, options.checkpoint)
        learning = beyond(DYNAMIC).dynamic_evaluation(protocol, own, options.dynamic, options.sweep_tokens)

    best, files, scored = plan[0], directory if options.losses else None, {}
    for split in sorted(options.splits, key=lambda split: split != chosen_on):
        scores = SplitScores(protocol.corpus, split, options.block_len)
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
        streams_start=protocol.streams_start,
        float32_difference=float32_difference(shown, options.splits[0]),
        dynamic=None if learning is None else learning.found,
    )
    results = {**vars(evaluation), **scored}
    write_json(directory / "evaluation.json", results)
    lengths = f"{evaluation.evaluation['protocol']}: {shown.description()}"
    lines = [
        split_line(split, result, corpus.name + corpus.unknown_share(split), lengths)
        for split, result in scored.items()
    ]
    lines += [f"{split}: {len(units[split].texts):,} {options.per}s in {scored[split]['units']}" for split in units]
    if (difference := evaluation.float32_difference) is not None:
        sample = f"the first {difference['tokens']:,} tokens of {difference['split']}"
        lines.append(f"{shown.precision}: nll {difference['nll']:+.5f} beside float32 on {sample}")
    lines += learning.lines(scored, corpus.name) if learning is not None else []
    lines += write_sweeps(results, options.splits, directory) if len(plan) > 1 else []
    if options.logger.name == "wandb":
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
    protocols = [*OF_PROTOCOL, *(["both"] if options.models else [])]
    require(options.protocol in protocols, "protocol", options.protocol, f"must be {' or '.join(protocols)}")
    for protocol, names in OF_PROTOCOL.items():
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


def _plan(protocol: ScoringProtocol, options: EvaluateOptions) -> list[AtLength]:
    """Plan the sweep; empty without attention lengths, and with `select_on` for a model that has none."""
    lengths = options.attention_lengths
    cannot = getattr(protocol.trained.model, "cannot", {"attention lengths": "a recurrent model has none"})
    has_lengths = "attention lengths" not in cannot
    if options.select_on is not None and options.protocol == "carried" and not has_lengths:
        return []
    allowed = "must be given with select_on: lengths to choose from"
    require(options.select_on is None or lengths is not None, "attention_lengths", lengths, allowed)
    return [] if lengths is None else plan_sweep(protocol, lengths)


def _make_protocol(trained: TrainedModel, corpus: Corpus, options: EvaluateOptions) -> ScoringProtocol:
    """Return the protocol at the given lengths; the others are those of the run's own evaluation."""
    common: dict[str, Any] = {"precision": chosen_precision(options.precision, options.accelerator)}
    common["interpolation"] = options.interpolation
    if options.protocol == "window":
        sizes = (options.window, options.stride, options.clamp_len, options.max_segments)
        return SlidingWindowProtocol(trained, corpus, *sizes, **common)
    given = {name: getattr(options, name) for name in (*MEMORY_LENGTHS, "clamp_len", "max_segments")}
    chosen = {name: value for name, value in given.items() if value is not None}
    if options.dynamic.on:
        chosen.setdefault("batch_size", 1)
    own = trained.config.evaluation
    own = replace(own, max_segments=None) if WHOLE in corpus.splits else own
    limited = with_segment_len(own, chosen.get("segment_len", own.segment_len))
    if limited.max_segments is not None:  # as many tokens with other streams, too
        batch_size = chosen.get("batch_size", own.batch_size)
        limited = replace(limited, max_segments=-(-limited.max_segments * own.batch_size // batch_size))
    evaluation = in_windows(replace(trained.config, evaluation=replace(limited, **chosen))).evaluation
    clamped = not {"segment_len", "mem_len", "ext_len"}.isdisjoint(chosen)
    cached = options.cached and not options.dynamic.on  # keys and values would be those of earlier weights
    return StateReuse(trained, corpus, evaluation, cached, clamped=clamped, **common)


def float32_difference(protocol: ScoringProtocol, split: str) -> dict[str, Any] | None:
    """Return by how much the protocol's precision changes the mean loss of about `SAMPLE_TOKENS` first tokens.

    Args:
        protocol: scored protocol.
        split: split to take the tokens from.

    Returns:
        The entry `float32_difference` of `evaluation.json`; None with `32-true`.
    """
    if protocol.precision == "32-true":
        return None
    sample = protocol.first(SAMPLE_TOKENS)
    ours, exact = sample.losses(split), replace(sample, precision="32-true").losses(split)
    return {"nll": ours.mean - exact.mean, "tokens": len(ours.nll), "split": split}


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
    """Log a W&B run: the scores as summary and table; for a sweep also its table and curves.

    Args:
        results: contents of `evaluation.json`.
        options: options of the command.
        directory: folder for the files of the run.
    """
    from txl_lightning.reporting.wandb_panels import log_line_series, log_table, wandb_run

    splits, unit, rows = options.splits, loss_unit(results["corpus"]["level"]), []
    known = {**plain(options), "corpus": results["corpus"], "evaluation": results["evaluation"]}
    with wandb_run(directory, options.logger, "evaluate", known) as run:
        for split in splits:
            for prefix, result in ((split, results[split]), (f"{split}/dynamic", results[split].get("dynamic"))):
                shown = ("nll", *shown_units(result), "tokens") if result else ()
                run.summary.update({f"{prefix}/{name}": result[name] for name in shown})
            rows.append([split, *(results[split][name] for name in ("nll", unit)), results[split]["tokens"]])
        log_table(run, "evaluate/table", ["split", "nll", unit, "tokens"], rows)
        if sweeps := swept_splits(results, splits):
            log_table(run, "evaluate/table_6", *table_6(results, splits))
            lengths = [row["attention_length"] for row in next(iter(sweeps.values()))["lengths"]]
            curves = {split: [row[unit] for row in sweep["lengths"]] for split, sweep in sweeps.items()}
            words = ("attention length", f"{unit} by attention length")
            log_line_series(run, "evaluate/attention_lengths", lengths, curves, *words)
