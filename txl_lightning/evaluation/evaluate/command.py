"""`txl evaluate`: a checkpoint on the splits of its corpus, by either protocol.

`evaluation.json` holds

    checkpoint, step, protocol
    corpus              name, sha256, level
    evaluation          memory:  mem_len, ext_len, same_length, clamp_len (none of a recurrent model), segment_len,
                                 batch_size, max_segments, cached
                        sliding: window (of what the model sees), stride, clamp_len, batch_size (1), max_segments
    streams_start       what the first token of every stream has before it
    SPLIT               nll (nats a token), bpc or ppl, tokens (scored), seconds
        standard_error  nll, bpc or ppl (null of a single unit), over (what), units (how many): see `uncertainty`
        left_out        tokens of the split that are not scored: first_of_streams, trimmed, max_segments
        losses          with `losses=true`, the file `losses_SPLIT.npz`: nll and positions of the scored tokens in the
                        order of the text; position t is that of the split's token t
        sweep           with `attention_lengths`: see below

and a sweep

    knob                what was varied: mem_len, ext_len or window
    same_length, limit  how it was varied; the longest attention length that there is, or null
    unit, tolerance     bpc or ppl, and how near to the best counts as reaching it
    lengths             for each: attention_length, nll, bpc or ppl, standard_error, tokens, seconds
    init                the same at training's lengths, and these (evaluation)
    best                the same where the loss is lowest; below_init: how far, on the same tokens, and standard_error
    attention_length    the shortest that reaches the best
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from txl_lightning.config.schemas import check_logger, plain
from txl_lightning.data.corpora.corpus import SPLITS, Corpus, load_corpus
from txl_lightning.errors import OptionError, UserError, require
from txl_lightning.evaluation.evaluate.attention_lengths import plan_sweep, sweep_lengths
from txl_lightning.evaluation.evaluate.options import EvaluateOptions
from txl_lightning.evaluation.evaluate.report import log_results, split_line, write_sweeps
from txl_lightning.evaluation.scoring.device import chosen_device
from txl_lightning.evaluation.scoring.protocols import Protocol, SlidingWindow, StateReuse
from txl_lightning.evaluation.scoring.standard_errors import TextUnits, error_figures, standard_error, text_units
from txl_lightning.evaluation.scoring.token_losses import TokenLosses
from txl_lightning.runs.metrics import loss_metrics
from txl_lightning.runs.trained import TrainedModel, load_trained

ONLY_MEMORY = ("batch_size", "segment_len", "mem_len", "ext_len", "same_length")
ONLY_SLIDING = ("window", "stride")
TYPED_OTHERWISE = {"data.path": "data_path", "trained_len": "checkpoint"}


def evaluate(options: EvaluateOptions, directory: Path) -> list[str]:
    """`score_checkpoint`, with errors that name options as they are typed behind `txl evaluate`."""
    try:
        return score_checkpoint(options, directory)
    except OptionError as error:
        option = error.option.removeprefix("evaluation.")
        raise OptionError(TYPED_OTHERWISE.get(option, option), error.value, error.allowed) from error


def score_checkpoint(options: EvaluateOptions, directory: Path) -> list[str]:
    """Score the chosen splits and write `evaluation.json`, of a sweep also its table and figures.

    Returns:
        A line of text for each split, and the table of a sweep.

    Raises:
        UserError: the checkpoint or a length is not usable, or the corpus needs another vocabulary.
    """
    check_options(options)
    if options.num_threads is not None:
        torch.set_num_threads(options.num_threads)
    trained = load_trained(options.checkpoint)
    trained.model.to(chosen_device(options.accelerator))
    corpus = corpus_of(trained, options)
    protocol = make_protocol(trained, corpus, options)
    sweep = None if options.attention_lengths is None else plan_sweep(protocol, options.attention_lengths)
    level = trained.vocabulary.level
    results: dict[str, Any] = {
        "checkpoint": str(options.checkpoint),
        "step": trained.step,
        "corpus": {"name": corpus.name, "sha256": corpus.checksum, "level": level},
        "protocol": options.protocol,
        "evaluation": protocol.stated(),
        "streams_start": protocol.streams_start,
    }
    lines = []
    for split in options.splits:
        units = text_units(corpus.sentences.get(split), options.block_len)
        measure = measuring_once(split)
        losses = measure(protocol)
        results[split] = result_of(losses, units, level)
        if options.losses:
            results[split]["losses"] = f"losses_{split}.npz"
            np.savez(directory / f"losses_{split}.npz", nll=losses.nll, positions=losses.positions)
        lines.append(split_line(split, results[split], corpus.name, protocol.in_words()))
        if sweep is not None:
            results[split]["sweep"] = sweep_lengths(sweep, measure, units, level, options.tolerance)
    (directory / "evaluation.json").write_text(json.dumps(results, indent=2) + "\n")
    if sweep is not None:
        lines += write_sweeps(results, options.splits, directory)
    if options.logger.name == "wandb":
        log_results(results, options.splits, directory, options.logger, plain(options))
    return lines


def check_options(options: EvaluateOptions) -> None:
    """Refuse what needs no checkpoint to be refused."""
    for split in options.splits:
        require(split in SPLITS, "splits", options.splits, f"must be of {', '.join(SPLITS)}")
    for name in ("batch_size", "segment_len", "max_segments", "num_threads", "window", "stride", "block_len"):
        value = getattr(options, name)
        require(value is None or value >= 1, name, value, "must be an integer >= 1")
    require(options.protocol in ("memory", "sliding"), "protocol", options.protocol, "must be memory or sliding")
    of_other, other, has = {
        "memory": (ONLY_SLIDING, "sliding", "memory has segment_len, mem_len and ext_len"),
        "sliding": (ONLY_MEMORY, "memory", "sliding has window and stride, and one stream"),
    }[options.protocol]
    for name in of_other:
        value = getattr(options, name)
        require(value is None, name, value, f"is for protocol={other}; protocol={has}")
    lengths = options.attention_lengths
    good = lengths is None or (len(lengths) > 0 and min(lengths) >= 1)
    require(good, "attention_lengths", lengths, "must be integers >= 1, at least one")
    good = options.tolerance is None or options.tolerance >= 0
    require(good, "tolerance", options.tolerance, "must be null or a number >= 0")
    chosen_device(options.accelerator)
    check_logger(options.logger, ("wandb", "none"))


def corpus_of(trained: TrainedModel, options: EvaluateOptions) -> Corpus:
    """The corpus of the run, or the text of `data_path` in the vocabulary of the checkpoint.

    Raises:
        UserError: it cannot be read, or has symbols that the checkpoint's vocabulary has not.
    """
    data, vocabulary = trained.config.data, trained.vocabulary
    if options.data_path is not None:
        data = replace(data, name="file", path=options.data_path, level=vocabulary.level)
        try:
            return load_corpus(data, vocabulary)
        except OptionError:
            raise
        except UserError as error:
            why = str(error).removeprefix(f"{Path(options.data_path).name}: ")
            raise OptionError("data_path", options.data_path, why) from error
    corpus = load_corpus(data)
    if corpus.vocabulary != vocabulary:
        raise UserError(f"the vocabulary of {corpus.name} is not the checkpoint's ({options.checkpoint})")
    return corpus


def make_protocol(trained: TrainedModel, corpus: Corpus, options: EvaluateOptions) -> Protocol:
    """The chosen protocol at the chosen lengths; what is null as the run was evaluated in training."""
    if options.protocol == "sliding":
        sizes = (options.window, options.stride, options.clamp_len, options.max_segments)
        return SlidingWindow(trained, corpus, *sizes)
    given = {name: getattr(options, name) for name in (*ONLY_MEMORY, "clamp_len", "max_segments")}
    chosen = {name: value for name, value in given.items() if value is not None}
    return StateReuse(trained, corpus, replace(trained.config.evaluation, **chosen), options.cached)


def measuring_once(split: str) -> Callable[[Protocol], TokenLosses]:
    """Scores a split by a protocol, and remembers what it has scored: a sweep often has the plain figure in it."""
    known: list[tuple[dict[str, Any], TokenLosses]] = []

    def measure(protocol: Protocol) -> TokenLosses:
        stated = protocol.stated()
        for lengths, losses in known:
            if lengths == stated:
                return losses
        known.append((stated, protocol.losses(split)))
        return known[-1][1]

    return measure


def result_of(losses: TokenLosses, units: TextUnits, level: str) -> dict[str, Any]:
    """What `evaluation.json` has for a split."""
    error, n_units = standard_error(losses.nll, units.of_positions(losses.positions))
    errors = error_figures(error, losses.mean, level)
    return {
        **loss_metrics(losses.mean, level),
        "standard_error": {**errors, "over": units.name, "units": n_units},
        "tokens": len(losses.nll),
        "left_out": losses.left_out,
        "seconds": round(losses.seconds, 2),
    }


def run(options: EvaluateOptions, directory: Path) -> list[str]:
    """Run the command: see `evaluate`."""
    return evaluate(options, directory)
