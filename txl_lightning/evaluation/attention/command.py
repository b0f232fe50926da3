"""`txl attention`: where the heads of a checkpoint attend, over a split and on a piece of text (Figures 5-7)."""

from __future__ import annotations

import re
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from txl_lightning.config.lengths import clamp_untrained, evaluation_lengths, extended_context
from txl_lightning.config.schemas import Config, plain
from txl_lightning.data.datamodule import evaluation_streams
from txl_lightning.errors import OptionError, require
from txl_lightning.evaluation.attention.maps import (
    ALL_TERMS,
    SINGLE_TERMS,
    Array,
    AttentionMaps,
    attention_maps,
    text_attention,
)
from txl_lightning.evaluation.attention.options import AttentionOptions
from txl_lightning.evaluation.attention.report import write_report
from txl_lightning.evaluation.scoring.option_checks import (
    check_at_least_one,
    check_common_options,
    chosen_device,
    options_as_typed,
)
from txl_lightning.files import write_json
from txl_lightning.model.transformer_xl import TransformerXL
from txl_lightning.runs.threads import set_threads
from txl_lightning.runs.trained import checkpoint_corpus, load_trained

OF_RUN = ("batch_size", "segment_len", "mem_len", "same_length", "clamp_len", "max_segments")


@options_as_typed()
def run(options: AttentionOptions, directory: Path) -> list[str]:
    """Average attention over a split; write `attention.json`, `attention.npz`, tables and figures.

    Returns:
        Lines to print: the heads with the largest and the smallest mean distance, and notes.

    Raises:
        UserError: an option, the checkpoint or the corpus is not usable.
    """
    _check_options(options)
    device = chosen_device(options.accelerator)
    started = time.perf_counter()
    trained = load_trained(options.checkpoint)
    set_threads(options.num_threads, trained)
    config, model = trained.config, trained.model
    if not isinstance(model, TransformerXL):
        raise OptionError(
            "checkpoint", options.checkpoint, f"must be of a Transformer-XL; {config.model.name} has no attention"
        )
    compressed = f"compresses its memory ({model.config.compression}); maps are of distances in tokens"
    require(model.config.compression is None, "checkpoint", options.checkpoint, compressed)
    heads = None if options.heads is None else [_head_numbers(head, model) for head in options.heads]
    lengths = _set_lengths(options, config)
    model = model.with_lengths(**lengths).to(device)
    corpus = checkpoint_corpus(trained, options.checkpoint, options.data_path)
    tokens, evaluation = corpus.splits[options.split], config.evaluation
    streams = evaluation_streams(corpus, options.split, evaluation, extended_context(config))

    place = (tokens, corpus.vocabulary, options.text_position, options.text_tokens)
    on_text = partial(text_attention, model, *place, segment_len=evaluation.segment_len)
    text = on_text(heads or [])  # raises for a wrong place before the long pass over the split
    maps = attention_maps(model, streams, evaluation.max_segments)
    if heads is None:
        heads = farthest_heads(maps.mean_distance.reshape(model.config.n_layer, model.config.n_head))
        text = on_text(heads)

    sizes = {"segment_len": evaluation.segment_len, "batch_size": evaluation.batch_size}
    results: dict[str, Any] = {
        "checkpoint": str(options.checkpoint),
        "step": trained.step,
        "corpus": {"name": corpus.name, "sha256": corpus.checksum},
        "split": options.split,
        "evaluation": {**lengths, **sizes},
        **_averages(maps, model),
        "text": {
            "position": text.position,
            "targets": len(text.targets),
            "heads": [f"{n + 1}:{h + 1}" for n, h in heads],
        },
        "seconds": round(time.perf_counter() - started, 2),
    }
    write_json(directory / "attention.json", results, allow_nan=False)
    np.savez_compressed(directory / "attention.npz", **maps.by_distance)  # type: ignore[arg-type]
    return write_report(results, maps.by_distance, text, directory, options.logger, plain(options))


def _check_options(options: AttentionOptions) -> None:
    check_common_options(options)
    check_at_least_one(options, "batch_size", "segment_len", "max_segments")
    require(options.heads is None or len(options.heads) >= 1, "heads", "[]", "must name at least one head")


def _head_numbers(name: str, model: TransformerXL) -> tuple[int, int]:
    """Return layer and head, from 0, of `LAYER:HEAD`, from 1."""
    n_layer, n_head = model.config.n_layer, model.config.n_head
    numbers = re.fullmatch(r"(\d+):(\d+)", name)
    allowed = f"must be LAYER:HEAD, layers 1 … {n_layer} and heads 1 … {n_head}"
    inside = numbers is not None and 1 <= int(numbers[1]) <= n_layer and 1 <= int(numbers[2]) <= n_head
    require(inside, "heads", name, allowed)
    assert numbers is not None
    return int(numbers[1]) - 1, int(numbers[2]) - 1


def farthest_heads(mean_distance_NH: Array) -> list[tuple[int, int]]:
    """Return the head with the largest mean distance in the first, the middle and the last layer, as in Figure 6."""
    n_layer = len(mean_distance_NH)
    return [(n, int(mean_distance_NH[n].argmax())) for n in sorted({0, (n_layer - 1) // 2, n_layer - 1})]


def _set_lengths(options: AttentionOptions, config: Config) -> dict[str, Any]:
    """Set the given lengths in `config.evaluation` and return the lengths of the model."""
    given = {name: getattr(options, name) for name in OF_RUN}
    chosen = {name: value for name, value in given.items() if value is not None}
    config.evaluation = replace(config.evaluation, **chosen)
    return clamp_untrained(evaluation_lengths(config), config)


def _averages(maps: AttentionMaps, model: TransformerXL) -> dict[str, Any]:
    """Return the entries of `attention.json` for the averages of every head."""
    terms = model.config.active_terms
    return {
        "encoding": model.config.encoding,
        "terms": terms,
        "missing_terms": [term for term in SINGLE_TERMS if term not in terms],
        "distances": maps.reach,
        "queries": maps.queries,
        "heads": [
            {
                "layer": row // model.config.n_head + 1,
                "head": row % model.config.n_head + 1,
                "entropy_bits": float(maps.entropy[row]),
                "mean_distance": float(maps.mean_distance[row]),
                "in_segment": float(1 - maps.in_memory[row]),
                "in_memory": float(maps.in_memory[row]),
                "beyond": float(maps.beyond[ALL_TERMS][row]),
            }
            for row in range(len(maps.entropy))
        ],
    }
