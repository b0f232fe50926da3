"""`txl evaluate`: a checkpoint on the splits of its corpus."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import torch

from txl_lightning.config import EvaluateConfig, evaluation_lengths, extended_context
from txl_lightning.data.datamodule import StreamsDataModule
from txl_lightning.errors import OptionError, UserError, require
from txl_lightning.evaluation.scoring import score_streams
from txl_lightning.runs.checkpoints import load_trained
from txl_lightning.runs.metrics import figures


def evaluate(options: EvaluateConfig, directory: Path) -> list[str]:
    """`score_checkpoint`, with errors that name options as they are typed behind `txl evaluate`."""
    try:
        return score_checkpoint(options, directory)
    except OptionError as error:
        raise OptionError(error.option.removeprefix("evaluation."), error.value, error.allowed) from error


def score_checkpoint(options: EvaluateConfig, directory: Path) -> list[str]:
    """Score the chosen splits, write `evaluation.json`, and return a line of text for each.

    Raises:
        UserError: the checkpoint or a length is not usable, or the corpus needs another vocabulary.
    """
    for split in options.splits:
        require(split in ("train", "valid", "test"), "splits", options.splits, "must be of train, valid, test")
    for name in ("batch_size", "segment_len", "max_segments", "num_threads"):
        value = getattr(options, name)
        require(value is None or value >= 1, name, value, "must be an integer >= 1")
    if options.num_threads is not None:
        torch.set_num_threads(options.num_threads)
    trained = load_trained(options.checkpoint)
    given = {
        name: getattr(options, name)
        for name in ("batch_size", "segment_len", "mem_len", "same_length", "clamp_len", "max_segments")
    }
    config = trained.config
    config.evaluation = replace(config.evaluation, **{name: v for name, v in given.items() if v is not None})
    if options.data_path is not None:
        config.data = replace(config.data, name="file", path=options.data_path)
    lengths = evaluation_lengths(config)
    model = trained.model.with_lengths(**lengths)
    data = StreamsDataModule(config.data, config.evaluation, extended_context(config))
    if data.corpus.vocabulary != trained.vocabulary:
        raise UserError(f"the vocabulary of {data.corpus.name} is not the checkpoint's ({options.checkpoint})")

    results: dict[str, object] = {
        "checkpoint": str(options.checkpoint),
        "step": trained.step,
        "corpus": {"name": data.corpus.name, "sha256": data.corpus.checksum},
        "evaluation": {
            **lengths,
            "segment_len": config.evaluation.segment_len,
            "batch_size": config.evaluation.batch_size,
        },
        "streams_start": "without context",
    }
    memory = f"memory {lengths['mem_len']}, " if lengths else ""
    lines = []
    for split in options.splits:
        score = score_streams(model, data.streams(split), config.evaluation.max_segments)
        values = figures(score.nll, trained.vocabulary.level)
        results[split] = {**values, "tokens": score.tokens, "seconds": round(score.seconds, 2)}
        shown = ", ".join(f"{name} {value:.4f}" for name, value in values.items())
        lines.append(
            f"{split}: {shown} over {score.tokens:,} tokens of {data.corpus.name} ({memory}segments of "
            f"{config.evaluation.segment_len}, {config.evaluation.batch_size} streams without context)"
        )
    (directory / "evaluation.json").write_text(json.dumps(results, indent=2) + "\n")
    return lines
