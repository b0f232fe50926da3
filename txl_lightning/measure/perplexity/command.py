"""`txl evaluate`: score a checkpoint on the splits of its corpus, with either protocol.

`evaluation.json` holds

    checkpoint, step, protocol
    corpus              name, sha256, level; of words unknown, the share of `<unk>` in each split
    evaluation          memory:  mem_len, ext_len, same_length, clamp_len (none for a recurrent model), segment_len,
                                 batch_size, max_segments, cached; compressed_len of a compressed memory
                        sliding: window (as far as the model sees), stride, clamp_len, batch_size (1), max_segments
                        both:    interpolation (of an encoding that rotates), precision
    float32_difference  nll: mean loss in this precision minus that in float32, on the first tokens of split;
                        tokens: how many; null with precision=32-true
    streams_start       context of the first token of every stream
    SPLIT               nll (nats per token), bpc or ppl, tokens (scored), seconds
        bpt             bits per token, for ids
        bpb, bytes      bits per byte, and bytes of the scored tokens; no bpb and null where the bytes are not known:
                        words, ids without `data.bytes`, and characters that are `<unk>`
        standard_error  nll, bpc or ppl (null for a single unit), over (name of a unit), units (how many)
        left_out        tokens of the split that are not scored: first_of_streams, trimmed, max_segments
        losses          with `losses=true`, the file `losses_SPLIT.npz`: nll and positions of the scored tokens, in
                        text order; position t is token t of the split
        units           with `per`, the file of the table (see `perplexity.units`)
        sweep           with `attention_lengths`, as below

and a sweep

    knob                option that sets the attention length: mem_len, ext_len or window
    same_length, limit  mask of the sweep; longest possible attention length, or null
    unit, tolerance     bpc or ppl; distance from the best that counts as reaching it
    lengths             for each length: attention_length, the values of SPLIT from nll to left_out, and all lengths
                        (evaluation)
    init                these values at the lengths of training
    best                these values where the loss is lowest; below_init: difference from init on the same tokens,
                        and its standard_error
    attention_length    shortest length that reaches the best
    unclamped           with `unclamped=true`, the values of lengths beyond the longest trained distance, without clamp

With `models`, the file is that of `perplexity.comparison`.

With `select_on`, only that split has a sweep, which chooses the attention length; the values of every split are those
at the lengths of training, and a split has more entries

    selected            chosen_on: the split; attention_length: that of the lowest loss there
        init, best      these values at the lengths of training, and at those chosen; with `losses=true`, losses: the
                        file `losses_SPLIT_init.npz` or `losses_SPLIT_best.npz`, one file if all lengths are equal
        below_init      difference of both on the same tokens, and its standard_error
    memory_at_evaluation    values of a model with relative distances that was trained without memory, with a memory
                        of `memory_at_evaluation` states; null for other models; not on the split `select_on`

With `dynamic.lr` or `dynamic.search` the values above are static, and there are more entries

    dynamic             lr, decay, epsilon; segments of training text and their rms, the mean over all weights; search:
                        lr, decay and nll (null if not finite) on validation
    SPLIT dynamic       values of dynamic evaluation, from nll to left_out; with `losses=true`, losses: the file
                        `losses_SPLIT_dynamic.npz`
        below_static    difference of both on the same tokens, and its standard_error

A recurrent model has no sweep (null) and no attention lengths (null): init and best are the same.
"""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from txl_lightning.config.schemas import TransformerXLModelConfig, plain
from txl_lightning.data.corpus import SPLITS, WHOLE, Corpus
from txl_lightning.distributed.environment import environment
from txl_lightning.errors import UserError, require
from txl_lightning.files import write_json
from txl_lightning.measure.perplexity import OWN_SPLITS, DynamicOptions, EvaluateOptions
from txl_lightning.measure.perplexity.attention_lengths import (
    AtLength,
    SplitScores,
    Sweep,
    first_tokens,
    memory_at_evaluation,
    plan_sweep,
    score_chosen,
    sweep_lengths,
    swept_splits,
    table_6,
    write_sweeps,
)
from txl_lightning.measure.perplexity.comparison import compare_models
from txl_lightning.measure.perplexity.dynamic import (
    DynamicEvaluation,
    difference_line,
    dynamic_evaluation,
    dynamic_scores,
)
from txl_lightning.measure.perplexity.units import FreshUnits, Units, units_of
from txl_lightning.measure.scoring.option_checks import check_at_least_one, open_checkpoint, options_as_typed
from txl_lightning.measure.scoring.protocols import (
    ScoringProtocol,
    SlidingWindowProtocol,
    StateReuse,
    with_segment_len,
)
from txl_lightning.runs.bfloat16 import chosen_precision
from txl_lightning.runs.metrics import loss_unit, shown_units
from txl_lightning.runs.trained import TrainedModel, checkpoint_corpus, is_other_text

MEMORY_LENGTHS = ("batch_size", "segment_len", "mem_len", "compressed_len", "ext_len", "same_length")
OF_PROTOCOL = {"memory": (*MEMORY_LENGTHS, "memory_at_evaluation"), "sliding": ("window", "stride")}
FOR_A_CHECKPOINT = ("checkpoint", "attention_lengths", "select_on", "losses", "max_segments", "per")
UNITS = {"per": (None, "line", "document", "token"), "unit_memory": ("carried", "fresh"), "table": ("tsv", "parquet")}
SAMPLE_TOKENS = 5_000  # of the difference to float32
REASONS = {"first_of_streams": "at streams' starts", "trimmed": "trimmed", "max_segments": "after max_segments"}


@options_as_typed()
def run(options: EvaluateOptions, directory: Path) -> list[str]:
    """Score the splits and write `evaluation.json`; for a sweep also its tables and figures.

    Returns:
        Lines to print: one for each split, and the tables of a sweep.

    Raises:
        UserError: an option, the checkpoint or the corpus is not usable.
    """
    _check_options(options)
    if options.models:
        return compare_models(options, directory, _make_protocol)
    trained = open_checkpoint(options)
    if options.per is not None:
        trained = replace(trained, vocabulary=replace(trained.vocabulary, lenient=True))
    in_parts = options.splits or options.select_on is not None or options.dynamic.search
    whole = not in_parts and is_other_text(options.data_path, [trained])
    options = replace(options, splits=[WHOLE] if whole else options.splits or OWN_SPLITS)
    corpus = checkpoint_corpus(trained, options.checkpoint, options.data_path, whole=whole)
    if options.select_on is not None:
        corpus = first_tokens(corpus, options.select_on, options.sweep_tokens)
    units = {split: units_of(trained, corpus, split, options) for split in options.splits if options.per}
    protocol = _make_protocol(trained, corpus, options)
    if options.unit_memory == "fresh":
        alone = {split: np.concatenate(of_split.tokens) for split, of_split in units.items()}
        protocol = replace(protocol, corpus=replace(corpus, splits=alone))
        protocol = FreshUnits(**vars(protocol), units=units, per=str(options.per))
    sweep = _plan(protocol, options)
    shown = protocol if options.select_on is None else protocol.at_training_lengths()
    dynamic, found = None, None
    if options.dynamic.on and isinstance(protocol, StateReuse):
        own = corpus if options.data_path is None else checkpoint_corpus(trained, options.checkpoint)
        dynamic, found = dynamic_evaluation(protocol, own, options.dynamic, options.sweep_tokens)
    results: dict[str, Any] = {
        "checkpoint": str(options.checkpoint),
        "step": trained.step,
        "corpus": corpus.facts(),
        "protocol": options.protocol,
        "evaluation": shown.settings(),
        "streams_start": protocol.streams_start,
    }
    scored = _score_splits(protocol, shown, sweep, dynamic, units, options, directory)
    difference = float32_difference(shown, options.splits[0])
    results |= {**scored, "float32_difference": difference, **({} if found is None else {"dynamic": found})}
    write_json(directory / "evaluation.json", results)
    lines = [
        split_line(split, results[split], corpus.name + corpus.unknown_share(split), shown.description())
        for split in scored
    ]
    lines += [f"{split}: {len(units[split].texts):,} {options.per}s in {results[split]['units']}" for split in units]
    if difference is not None:
        sample = f"the first {difference['tokens']:,} tokens of {difference['split']}"
        lines.append(f"{shown.precision}: nll {difference['nll']:+.5f} beside float32 on {sample}")
    if found is not None:
        lines += dynamic_lines(results, options, corpus.name)
    if sweep is not None:
        lines += write_sweeps(results, options.splits, directory)
    if options.logger.name == "wandb":
        log_results(results, options, directory)
    return lines


def _check_options(options: EvaluateOptions) -> None:
    splits = options.splits or OWN_SPLITS
    require(set(splits) <= set(SPLITS), "splits", splits, f"must be of {', '.join(SPLITS)}")
    check_at_least_one(options, "batch_size", "segment_len", "max_segments", "window", "stride", "block_len")
    check_at_least_one(options, "sweep_tokens", "memory_at_evaluation")
    for name in FOR_A_CHECKPOINT if options.models else ():
        value = getattr(options, name)
        require(value == getattr(EvaluateOptions, name), name, value, "is for a checkpoint, not for models")
    if not (options.checkpoint or options.models):
        raise UserError("checkpoint: must be given (checkpoint=…), or models=[…]")
    protocols = [*OF_PROTOCOL, *(["both"] if options.models else [])]
    require(options.protocol in protocols, "protocol", options.protocol, f"must be {' or '.join(protocols)}")
    for protocol, names in OF_PROTOCOL.items():
        for name in names:
            value, used = getattr(options, name), options.protocol in (protocol, "both")
            require(value is None or used, name, value, f"is for protocol={protocol}")
    lengths, split = options.attention_lengths, options.select_on
    valid = lengths is None or (len(lengths) > 0 and min(lengths) >= 1)
    require(valid, "attention_lengths", lengths, "must be integers >= 1, at least one")
    require(lengths is not None or not options.unclamped, "unclamped", True, "is for a sweep of attention_lengths")
    valid = options.tolerance is None or options.tolerance >= 0
    require(valid, "tolerance", options.tolerance, "must be null or a number >= 0")
    allowed = f"must be null, or valid or train and among splits={splits}"
    require(split is None or split in {"valid", "train"}.intersection(splits), "select_on", split, allowed)
    for name in ("sweep_tokens", "memory_at_evaluation"):
        value, used = getattr(options, name), split is not None or (name == "sweep_tokens" and options.dynamic.search)
        require(value is None or used, name, value, "is for select_on=valid")
    for name, values in UNITS.items():
        value, used = getattr(options, name), options.per is not None
        require(value in values, name, value, f"must be {' or '.join(str(one or 'null') for one in values)}")
        require(used or value == values[0], name, value, "is for per=line, document or token")
    used = options.unit_memory == "carried" or (options.per != "token" and options.protocol == "memory")
    require(used, "unit_memory", "fresh", "is for per=line or document, protocol=memory")
    require(options.per is None or lengths is None, "attention_lengths", lengths, "must be null with per")
    _check_dynamic(options)


def _check_dynamic(options: EvaluateOptions) -> None:
    dynamic = options.dynamic
    for name, most in (("lr", math.inf), ("lrs", math.inf), ("decay", 1), ("decays", 1)):
        value = getattr(dynamic, name)
        values = value if isinstance(value, list) else [value or 0.0]
        allowed = "must be >= 0" if name.startswith("lr") else "must be in 0 … 1"
        require(bool(values) and min(values) >= 0 and max(values) <= most, f"dynamic.{name}", value, allowed)
    require(dynamic.epsilon > 0, "dynamic.epsilon", dynamic.epsilon, "must be > 0")
    require(dynamic.segments >= 1, "dynamic.segments", dynamic.segments, "must be an integer >= 1")
    right = dynamic.lr is None if dynamic.search else dynamic.on or dynamic == DynamicOptions()
    allowed = "must be null with dynamic.search=true, and given with other options of dynamic without it"
    require(right, "dynamic.lr", dynamic.lr, allowed)
    others: dict[str, Any] = {
        "protocol": "memory",
        "attention_lengths": None,
        "select_on": None,
        "models": [],
        "per": None,
    }
    for name, only in others.items():
        value = getattr(options, name)
        allowed = f"must be {'null' if only is None else only} for dynamic evaluation"
        require(not dynamic.on or value == only, name, value, allowed)
    alone = (started := environment()) is None or started.world_size() == 1
    require(not dynamic.on or alone, "dynamic.lr", dynamic.lr, "must run in one process: segments follow each other")


def _plan(protocol: ScoringProtocol, options: EvaluateOptions) -> Sweep | None:
    """Plan the sweep; None without attention lengths, and with `select_on` for a model that has none."""
    config = protocol.trained.config
    has_lengths = isinstance(config.model, TransformerXLModelConfig) and config.memory.n_tokens == 0
    if options.select_on is not None and options.protocol == "memory" and not has_lengths:
        return None
    lengths = options.attention_lengths
    allowed = "must be given with select_on: lengths to choose from"
    require(options.select_on is None or lengths is not None, "attention_lengths", lengths, allowed)
    return None if lengths is None else plan_sweep(protocol, lengths, options.unclamped)


def _score_splits(
    protocol: ScoringProtocol,
    shown: ScoringProtocol,
    sweep: Sweep | None,
    dynamic: DynamicEvaluation | None,
    units: dict[str, Units],
    options: EvaluateOptions,
    directory: Path,
) -> dict[str, Any]:
    """Score the splits as `shown`; sweep each, or choose the attention length on one. Return their entries."""
    chosen_on, files = options.select_on, directory if options.losses else None
    chosen: tuple[AtLength, AtLength] = ((None, shown), (None, shown))
    results: dict[str, Any] = {}
    for split in sorted(options.splits, key=lambda split: split != chosen_on):
        scores = SplitScores(protocol.corpus, split, options.block_len)
        result = results[split] = scores.values(scores.losses(shown))
        if sweep is not None and chosen_on in (None, split):
            result["sweep"], chosen = sweep_lengths(sweep, scores, options.tolerance)
        if chosen_on is not None:
            result["selected"] = score_chosen(*chosen, chosen_on, scores, files)
        elif files is not None:
            result["losses"] = scores.write(shown, files / f"losses_{split}.npz")
        if split in units:
            result["units"] = f"{options.per}s_{split}.{options.table}"
            units[split].write(scores.losses(shown), directory / result["units"])
        if dynamic is not None:
            result["dynamic"] = dynamic_scores(shown, dynamic, scores, files)
        if split == chosen_on:
            result.setdefault("sweep", None)
        elif chosen_on is not None:
            result["memory_at_evaluation"] = memory_at_evaluation(protocol, options.memory_at_evaluation, scores)
    return results


def _make_protocol(trained: TrainedModel, corpus: Corpus, options: EvaluateOptions) -> ScoringProtocol:
    """Return the protocol at the given lengths; the others are those of the run's own evaluation."""
    common: dict[str, Any] = {"precision": chosen_precision(options.precision, options.accelerator)}
    common["interpolation"] = options.interpolation
    if options.protocol == "sliding":
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
    evaluation = replace(limited, **chosen)
    clamped = not {"segment_len", "mem_len", "compressed_len", "ext_len"}.isdisjoint(chosen)
    cached = options.cached and not options.dynamic.on  # keys and values would be those of earlier weights
    return StateReuse(trained, corpus, evaluation, cached, clamped=clamped, **common)


def float32_difference(protocol: ScoringProtocol, split: str) -> dict[str, Any] | None:
    """Return by how much the protocol's precision changes the mean loss of about `SAMPLE_TOKENS` first tokens.

    Args:
        protocol: scored protocol.
        split: split to take the tokens from.

    Returns:
        The entry `float32_difference` of `evaluation.json` (see `perplexity.command`); None with `32-true`.
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


def dynamic_lines(results: dict[str, Any], options: EvaluateOptions, corpus: str) -> list[str]:
    """Return the chosen rates, if they were searched, and for every split its dynamic loss and the difference.

    Args:
        results: contents of `evaluation.json`.
        options: options of the command.
        corpus: name of the corpus.
    """
    found, lrs = results["dynamic"], options.dynamic.lrs
    rates, lines = ", ".join(f"{name} {found[name]:g}" for name in ("lr", "decay", "epsilon")), []
    if options.dynamic.search:
        end = "; lr is an end of dynamic.lrs" if found["lr"] in (min(lrs), max(lrs)) else ""
        lines = [f"{rates}: lowest validation loss of {len(found['search'])}{end}"]
    for split in options.splits:
        result = results[split]["dynamic"]
        lines += [
            split_line(f"{split}, dynamic", result, corpus, rates),
            difference_line(split, result["below_static"]),
        ]
    return lines


def log_results(results: dict[str, Any], options: EvaluateOptions, directory: Path) -> None:
    """Log a W&B run: the scores as summary and table; for a sweep also its table and curves.

    Args:
        results: contents of `evaluation.json`.
        options: options of the command.
        directory: folder for the files of the run.
    """
    from txl_lightning.reporting.wandb_panels import log_line_series, log_table, wandb_run

    splits, unit = options.splits, loss_unit(results["corpus"]["level"])
    scored = {split: results[split] for split in splits}
    rows = [[split, r["nll"], r[unit], r["standard_error"][unit], r["tokens"]] for split, r in scored.items()]
    known = {**plain(options), "corpus": results["corpus"], "evaluation": results["evaluation"]}
    with wandb_run(directory, options.logger, "evaluate", known) as run:
        for split, result in scored.items():
            shown = ("nll", *shown_units(result), "tokens")
            run.summary.update({f"{split}/{name}": result[name] for name in shown})
            learned = result.get("dynamic", {})
            run.summary.update({f"{split}/dynamic/{name}": learned[name] for name in shown if learned})
        log_table(run, "evaluate/table", ["split", "nll", unit, f"{unit} standard error", "tokens"], rows)
        if sweeps := swept_splits(results, splits):
            log_table(run, "evaluate/table_6", *table_6(results, splits))
            lengths = [row["attention_length"] for row in next(iter(sweeps.values()))["lengths"]]
            curves = {split: [row[unit] for row in sweep["lengths"]] for split, sweep in sweeps.items()}
            title = f"{unit} by attention length"
            log_line_series(run, "evaluate/attention_lengths", lengths, curves, "attention length", title)
