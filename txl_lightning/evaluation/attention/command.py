"""`txl attention`: where the heads of a checkpoint look, over a split and on a piece of text (Figures 5-7)."""

from __future__ import annotations

import json
import re
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from omegaconf import OmegaConf

from txl_lightning.config.lengths import evaluation_lengths, extended_context
from txl_lightning.config.schemas import Config, check_logger, plain
from txl_lightning.data.corpora.corpus import SPLITS
from txl_lightning.data.datamodule import StreamsDataModule
from txl_lightning.errors import OptionError, UserError, require
from txl_lightning.evaluation.attention.maps import ALL_TERMS, SINGLE_TERMS, Array, AttentionMaps, attention_maps
from txl_lightning.evaluation.attention.options import AttentionOptions
from txl_lightning.evaluation.attention.report import write_report
from txl_lightning.evaluation.attention.text_attention import piece_attention
from txl_lightning.model.transformer_xl import TransformerXL
from txl_lightning.runs.trained import load_trained

OF_RUN = ("batch_size", "segment_len", "mem_len", "same_length", "clamp_len", "max_segments")


def attention(options: AttentionOptions, directory: Path) -> list[str]:
    """`map_checkpoint`, with errors that name options as they are typed behind `txl attention`."""
    try:
        return map_checkpoint(options, directory)
    except OptionError as error:
        option = "data_path" if options.data_path and error.option == "data.path" else error.option
        if option in ("data.batch_size", "data.segment_len") and options.split == "train":
            option = option.removeprefix("data.")
        raise OptionError(option.removeprefix("evaluation."), error.value, error.allowed) from error


def map_checkpoint(options: AttentionOptions, directory: Path) -> list[str]:
    """Look at a split, write `attention.json`, `attention.npz`, table and figures, and return what to print.

    Raises:
        UserError: an option or the checkpoint is not usable, or the corpus needs another vocabulary.
    """
    check_options(options)
    if options.num_threads is not None:
        torch.set_num_threads(options.num_threads)
    started = time.perf_counter()
    trained = load_trained(options.checkpoint)
    config, model = trained.config, trained.model
    if not isinstance(model, TransformerXL):
        raise OptionError("checkpoint", options.checkpoint, f"is a recurrent model ({config.model.name}): no attention")
    heads = None if options.heads is None else [head_numbers(head, model) for head in options.heads]
    lengths = given_lengths(options, config)
    device = torch.device("cuda" if options.accelerator == "gpu" else "cpu")
    model = model.with_lengths(**lengths).to(device)
    data = StreamsDataModule(config.data, config.evaluation, extended_context(config))
    if data.corpus.vocabulary != trained.vocabulary:
        raise UserError(f"the vocabulary of {data.corpus.name} is not the checkpoint's ({options.checkpoint})")

    tokens, streams = data.corpus.splits[options.split], data.streams(options.split)
    segment_len = config.evaluation.segment_len
    place = (tokens, data.corpus.vocabulary, options.text_position, options.text_tokens)
    piece = piece_attention(model, *place, heads or [], segment_len)  # refuses a wrong place before the long pass
    maps = attention_maps(model, streams, config.evaluation.max_segments)
    if heads is None:
        heads = wide_heads(maps.mean_distance.reshape(model.config.n_layer, model.config.n_head))
        piece = piece_attention(model, *place, heads, segment_len)

    results: dict[str, Any] = {
        "checkpoint": str(options.checkpoint),
        "step": trained.step,
        "corpus": {"name": data.corpus.name, "sha256": data.corpus.checksum},
        "split": options.split,
        "evaluation": {**lengths, "segment_len": segment_len, "batch_size": config.evaluation.batch_size},
        **measured(maps, model),
        "text": {
            "position": piece.position,
            "targets": len(piece.targets),
            "heads": [f"{n + 1}:{h + 1}" for n, h in heads],
        },
        "seconds": round(time.perf_counter() - started, 2),
    }
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.yaml").write_text(OmegaConf.to_yaml(OmegaConf.create(plain(options))))
    (directory / "attention.json").write_text(json.dumps(results, indent=2, allow_nan=False) + "\n")
    np.savez_compressed(directory / "attention.npz", **maps.by_distance)  # type: ignore[arg-type]
    return write_report(results, maps.by_distance, piece, directory, options.logger, plain(options))


def check_options(options: AttentionOptions) -> None:
    """Refuse what needs no checkpoint to be refused."""
    require(options.split in SPLITS, "split", options.split, f"must be one of {', '.join(SPLITS)}")
    for name in ("batch_size", "segment_len", "max_segments", "num_threads"):
        value = getattr(options, name)
        require(value is None or value >= 1, name, value, "must be an integer >= 1")
    require(options.heads is None or len(options.heads) >= 1, "heads", "[]", "must name at least one head")
    require(options.accelerator in ("cpu", "gpu"), "accelerator", options.accelerator, "must be cpu or gpu")
    no_gpu = options.accelerator == "gpu" and not torch.cuda.is_available()
    require(not no_gpu, "accelerator", options.accelerator, "no GPU is visible")
    check_logger(options.logger, ("wandb", "none"))


def head_numbers(name: str, model: TransformerXL) -> tuple[int, int]:
    """Layer and head from 0 of `LAYER:HEAD` from 1."""
    n_layer, n_head = model.config.n_layer, model.config.n_head
    numbers = re.fullmatch(r"(\d+):(\d+)", name)
    allowed = f"must be LAYER:HEAD, layers 1 … {n_layer} and heads 1 … {n_head}"
    inside = numbers is not None and 1 <= int(numbers[1]) <= n_layer and 1 <= int(numbers[2]) <= n_head
    require(inside, "heads", name, allowed)
    assert numbers is not None
    return int(numbers[1]) - 1, int(numbers[2]) - 1


def wide_heads(mean_distance_NH: Array) -> list[tuple[int, int]]:
    """The head that looks farthest in the first, the middle and the last layer, as the paper's figure has them."""
    n_layer = len(mean_distance_NH)
    return [(n, int(mean_distance_NH[n].argmax())) for n in sorted({0, (n_layer - 1) // 2, n_layer - 1})]


def given_lengths(options: AttentionOptions, config: Config) -> dict[str, Any]:
    """The lengths to look at; `config` gets what else is given, and the training split the sizes of the others."""
    given = {name: getattr(options, name) for name in OF_RUN}
    config.evaluation = replace(
        config.evaluation, **{name: value for name, value in given.items() if value is not None}
    )
    lengths = evaluation_lengths(config)
    if options.split == "train":
        sizes = config.evaluation
        config.data = replace(config.data, batch_size=sizes.batch_size, segment_len=sizes.segment_len)
    if options.data_path is not None:
        config.data = replace(config.data, name="file", path=options.data_path)
    return lengths


def measured(maps: AttentionMaps, model: TransformerXL) -> dict[str, Any]:
    """What `attention.json` holds of the averages, head by head."""
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


def run(options: AttentionOptions, directory: Path) -> list[str]:
    """Run the command: see `attention`."""
    return attention(options, directory)
