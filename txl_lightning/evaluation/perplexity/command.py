"""`txl evaluate`: score a checkpoint on the splits of its corpus, with either protocol.

`evaluation.json` holds

    checkpoint, step, protocol
    corpus              name, sha256, level
    evaluation          memory:  mem_len, ext_len, same_length, clamp_len (none for a recurrent model), segment_len,
                                 batch_size, max_segments, cached; compressed_len of a compressed memory
                        sliding: window (as far as the model sees), stride, clamp_len, batch_size (1), max_segments
                        both:    interpolation (of an encoding that rotates), precision
    float32_difference  nll: mean loss in this precision minus that in float32, on the first tokens of split;
                        tokens: how many; null with precision=32-true
    streams_start       context of the first token of every stream
    SPLIT               nll (nats per token), bpc or ppl, tokens (scored), seconds
        bpb, bytes      bits per byte, and bytes of the scored tokens; no bpb and null where the bytes are not known:
                        words, and characters that are `<unk>`
        standard_error  nll, bpc or ppl (null for a single unit), over (name of a unit), units (how many)
        left_out        tokens of the split that are not scored: first_of_streams, trimmed, max_segments
        losses          with `losses=true`, the file `losses_SPLIT.npz`: nll and positions of the scored tokens, in
                        text order; position t is token t of the split
        sweep           with `attention_lengths`, as below

and a sweep

    knob                option that sets the attention length: mem_len, ext_len or window
    same_length, limit  mask of the sweep; longest possible attention length, or null
    unit, tolerance     bpc or ppl; distance from the best that counts as reaching it
    lengths             for each length: attention_length, nll, bpc or ppl, standard_error, tokens, seconds, and all
                        lengths (evaluation)
    init                these values at the lengths of training
    best                these values where the loss is lowest; below_init: difference from init on the same tokens,
                        and its standard_error
    attention_length    shortest length that reaches the best
    unclamped           with `unclamped=true`, the values of lengths beyond the longest trained distance, without clamp

With `select_on`, only that split has a sweep, which chooses the attention length; the values of every split are those
at the lengths of training, and a split has more entries

    selected            chosen_on: the split; attention_length: that of the lowest loss there
        init, best      these values at the lengths of training, and at those chosen; with `losses=true`, losses: the
                        file `losses_SPLIT_init.npz` or `losses_SPLIT_best.npz`, one file if all lengths are equal
        below_init      difference of both on the same tokens, and its standard_error
    memory_at_evaluation    values of a model with relative distances that was trained without memory, with a memory
                        of `memory_at_evaluation` states; null for other models; not on the split `select_on`

A recurrent model has no sweep (null) and no attention lengths (null): init and best are the same.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from txl_lightning.config.schemas import TransformerXLModelConfig, plain
from txl_lightning.data.corpus import SPLITS, Corpus
from txl_lightning.data.documents import without_marks
from txl_lightning.errors import require
from txl_lightning.evaluation.perplexity.attention_lengths import (
    ChosenLengths,
    SplitScores,
    Sweep,
    first_tokens,
    memory_at_evaluation,
    plan_sweep,
    score_chosen,
    sweep_lengths,
)
from txl_lightning.evaluation.perplexity.options import EvaluateOptions
from txl_lightning.evaluation.perplexity.report import log_results, precision_lines, split_line, write_sweeps
from txl_lightning.evaluation.scoring.option_checks import (
    check_at_least_one,
    check_common_options,
    chosen_device,
    options_as_typed,
)
from txl_lightning.evaluation.scoring.protocols import (
    ScoringProtocol,
    SlidingWindowProtocol,
    StateReuse,
    with_segment_len,
)
from txl_lightning.evaluation.scoring.standard_errors import errors_by_unit, standard_error
from txl_lightning.evaluation.scoring.token_losses import TokenLosses
from txl_lightning.files import write_json
from txl_lightning.runs.bfloat16 import chosen_precision
from txl_lightning.runs.metrics import loss_metrics
from txl_lightning.runs.threads import set_threads
from txl_lightning.runs.trained import TrainedModel, checkpoint_corpus, load_trained

ONLY_MEMORY = ("batch_size", "segment_len", "mem_len", "compressed_len", "ext_len", "same_length")
ONLY_SLIDING = ("window", "stride")
SAMPLE_TOKENS = 5_000  # of the difference to float32


@options_as_typed()
def run(options: EvaluateOptions, directory: Path) -> list[str]:
    """Score the splits and write `evaluation.json`; for a sweep also its tables and figures.

    Returns:
        Lines to print: one for each split, and the tables of a sweep.

    Raises:
        UserError: an option, the checkpoint or the corpus is not usable.
    """
    _check_options(options)
    device = chosen_device(options.accelerator)
    trained = load_trained(options.checkpoint)
    set_threads(options.num_threads, trained)
    trained.model.to(device)
    corpus = checkpoint_corpus(trained, options.checkpoint, options.data_path)
    if options.select_on is not None:
        corpus = first_tokens(corpus, options.select_on, options.sweep_tokens)
    protocol = _make_protocol(trained, corpus, options)
    sweep = _plan(protocol, options)
    results: dict[str, Any] = {
        "checkpoint": str(options.checkpoint),
        "step": trained.step,
        "corpus": {"name": corpus.name, "sha256": corpus.checksum, "level": trained.vocabulary.level},
        "protocol": options.protocol,
        "evaluation": protocol.settings(),
        "streams_start": protocol.streams_start,
    }
    shown = protocol if options.select_on is None else protocol.at_training_lengths()
    lines = _score_splits(results, protocol, shown, sweep, options, directory)
    results["float32_difference"] = float32_difference(shown, options.splits[0])
    lines += precision_lines(results)
    write_json(directory / "evaluation.json", results)
    if sweep is not None:
        lines += write_sweeps(results, options.splits, directory)
    if options.logger.name == "wandb":
        log_results(results, options.splits, directory, options.logger, plain(options))
    return lines


def _plan(protocol: ScoringProtocol, options: EvaluateOptions) -> Sweep | None:
    """Plan the sweep; None without attention lengths, and with `select_on` for a model without attention."""
    if options.select_on is not None and options.protocol == "memory" and _is_recurrent(protocol):
        return None
    lengths = options.attention_lengths
    allowed = "must be given with select_on: lengths to choose from"
    require(options.select_on is None or lengths is not None, "attention_lengths", lengths, allowed)
    return None if lengths is None else plan_sweep(protocol, lengths, options.unclamped)


def _score_splits(
    results: dict[str, Any],
    protocol: ScoringProtocol,
    shown: ScoringProtocol,
    sweep: Sweep | None,
    options: EvaluateOptions,
    directory: Path,
) -> list[str]:
    """Score the splits as `shown`; sweep each, or choose the attention length on one. Return a line for each split."""
    corpus, chosen_on, lines = protocol.corpus, options.select_on, []
    chosen = ChosenLengths(shown, shown)
    for split in sorted(options.splits, key=lambda split: split != chosen_on):
        scores = SplitScores(corpus, split, options.block_len)
        result = results[split] = _split_result(scores.losses(shown), scores, corpus)
        lines.append(split_line(split, result, corpus.name, shown.description()))
        if chosen_on is None and options.losses:
            result["losses"] = scores.write(shown, directory / f"losses_{split}.npz")
        if sweep is not None and chosen_on in (None, split):
            result["sweep"], chosen = sweep_lengths(sweep, scores, options.tolerance)
        if chosen_on is not None:
            result["selected"] = score_chosen(chosen, chosen_on, scores, directory if options.losses else None)
            if split == chosen_on:
                result.setdefault("sweep", None)
            else:
                result["memory_at_evaluation"] = memory_at_evaluation(protocol, options.memory_at_evaluation, scores)
    results["evaluation"] = shown.settings()
    return lines


def _is_recurrent(protocol: ScoringProtocol) -> bool:
    return not isinstance(protocol.trained.config.model, TransformerXLModelConfig)


def _check_options(options: EvaluateOptions) -> None:
    known = bool(options.splits) and set(options.splits) <= set(SPLITS)
    require(known, "splits", options.splits, f"must be of {', '.join(SPLITS)}, at least one")
    check_at_least_one(options, "batch_size", "segment_len", "max_segments", "window", "stride", "block_len")
    require(options.protocol in ("memory", "sliding"), "protocol", options.protocol, "must be memory or sliding")
    foreign, other, own = {
        "memory": (ONLY_SLIDING, "sliding", "memory has segment_len, mem_len and ext_len"),
        "sliding": (ONLY_MEMORY, "memory", "sliding has window and stride, and one stream"),
    }[options.protocol]
    for name in foreign:
        value = getattr(options, name)
        require(value is None, name, value, f"is for protocol={other}; protocol={own}")
    lengths = options.attention_lengths
    valid = lengths is None or (len(lengths) > 0 and min(lengths) >= 1)
    require(valid, "attention_lengths", lengths, "must be integers >= 1, at least one")
    _check_selection(options)
    valid = options.tolerance is None or options.tolerance >= 0
    require(valid, "tolerance", options.tolerance, "must be null or a number >= 0")
    check_common_options(options)


def _check_selection(options: EvaluateOptions) -> None:
    split, check = options.select_on, partial(require, option="select_on", value=options.select_on)
    check(split in (None, "valid", "train"), allowed="must be null, valid or train")
    check(split is None or split in options.splits, allowed=f"must be among splits={options.splits}")
    for name in ("sweep_tokens", "memory_at_evaluation"):
        value = getattr(options, name)
        require(value is None or value >= 1, name, value, "must be null or an integer >= 1")
        require(value is None or split is not None, name, value, "is for select_on=valid")
    memory = options.memory_at_evaluation
    require(memory is None or options.protocol == "memory", "memory_at_evaluation", memory, "is for protocol=memory")
    free = options.unclamped and options.attention_lengths is None
    require(not free, "unclamped", options.unclamped, "is for a sweep of attention_lengths")


def _make_protocol(trained: TrainedModel, corpus: Corpus, options: EvaluateOptions) -> ScoringProtocol:
    """Return the protocol at the given lengths; the others are those of the run's own evaluation."""
    common: dict[str, Any] = {"precision": chosen_precision(options.precision, options.accelerator)}
    common["interpolation"] = options.interpolation
    if options.protocol == "sliding":
        sizes = (options.window, options.stride, options.clamp_len, options.max_segments)
        return SlidingWindowProtocol(trained, corpus, *sizes, **common)
    given = {name: getattr(options, name) for name in (*ONLY_MEMORY, "clamp_len", "max_segments")}
    chosen = {name: value for name, value in given.items() if value is not None}
    own = trained.config.evaluation
    limited = with_segment_len(own, chosen.get("segment_len", own.segment_len))
    if limited.max_segments is not None:  # as many tokens with other streams, too
        batch_size = chosen.get("batch_size", own.batch_size)
        limited = replace(limited, max_segments=-(-limited.max_segments * own.batch_size // batch_size))
    evaluation = replace(limited, **chosen)
    clamped = not {"segment_len", "mem_len", "compressed_len", "ext_len"}.isdisjoint(chosen)
    return StateReuse(trained, corpus, evaluation, options.cached, clamped=clamped, **common)


def _split_result(losses: TokenLosses, scores: SplitScores, corpus: Corpus) -> dict[str, Any]:
    """Return the entry of a split in `evaluation.json`."""
    vocabulary, level, units = corpus.vocabulary, scores.level, scores.units
    scored = None if vocabulary.byte_lengths is None else without_marks(corpus.splits[scores.split][losses.positions])
    n_bytes = None if scored is None else vocabulary.count_bytes(scored)
    error, n_units = standard_error(losses.nll, units.of_positions(losses.positions))
    errors = errors_by_unit(error, losses.mean, level)
    return {
        **loss_metrics(losses.mean, level, None if n_bytes is None else n_bytes / len(losses.nll)),
        "standard_error": {**errors, "over": units.name, "units": n_units},
        "tokens": len(losses.nll),
        "bytes": n_bytes,
        "left_out": losses.left_out,
        "seconds": round(losses.seconds, 2),
    }


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
