"""`txl recl`: score a group of models at equal positions and contexts, and derive their RECL (appendix C)."""

from __future__ import annotations

import re
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from txl_lightning.config.schemas import plain
from txl_lightning.distributed.ranks import all_gather, process_group, rank_and_world_size
from txl_lightning.errors import OptionError, require
from txl_lightning.evaluation.language_models.byte_losses import byte_losses
from txl_lightning.evaluation.recl.context_gains import block_gains, context_gains, token_classes
from txl_lightning.evaluation.recl.effective_context import Array, EffectiveContext, check_definition
from txl_lightning.evaluation.recl.figures import gain_maps
from txl_lightning.evaluation.recl.group import Member, load_group, references
from txl_lightning.evaluation.recl.group_comparisons import (
    group_summaries,
    lengths_in_groups,
    lengths_without_one,
    loss_differences,
)
from txl_lightning.evaluation.recl.group_text import CONTEXT_UNITS, GroupText, group_text
from txl_lightning.evaluation.recl.loss_by_context import mean_and_error
from txl_lightning.evaluation.recl.loss_store import LossStore, array_checksum, write_losses
from txl_lightning.evaluation.recl.options import ReclOptions
from txl_lightning.evaluation.recl.report import write_report
from txl_lightning.evaluation.scoring.device import device_of, prepare_device
from txl_lightning.evaluation.scoring.loss_grid import loss_grid
from txl_lightning.evaluation.scoring.option_checks import check_at_least_one, check_common_options
from txl_lightning.evaluation.scoring.position_blocks import POSITIONS_VERSION, position_blocks
from txl_lightning.files import write_json
from txl_lightning.runs.bfloat16 import autocast, chosen_precision
from txl_lightning.runs.metrics import loss_metrics, loss_unit

SCHEMA_VERSION = 1  # of docs/recl.schema.json
CITATION = "RECL: Dai et al. 2019, Transformer-XL, appendix C (arXiv:1901.02860); measured with txl_lightning"
STORED_PARTS = 10  # of the blocks of a model
DTYPES = ("float32", "bfloat16", "float16")


def run(options: ReclOptions, directory: Path) -> list[str]:
    """Score the losses that are not stored yet; write `recl.json`, the table and the figures.

    Under a launcher (torchrun) the windows are divided over the processes. Only the first process writes
    results and returns lines.

    Returns:
        Lines to print: the table and its notes.

    Raises:
        UserError: an option, a checkpoint, or the group is not usable.
    """
    contexts = _check_options(options)
    prepare_device(options.accelerator, options.num_threads)
    options = replace(options, precision=chosen_precision(options.precision, options.accelerator))
    with process_group():
        started = time.perf_counter()
        members = load_group(options)
        text = group_text(members, options)
        _check_limits(members, contexts[-1], text)
        positions, blocks = position_blocks(text.length, options.n_positions, contexts)
        losses: dict[str, Array] = {}
        scored: dict[str, int] = {}
        for member in members:
            of_member = _stored_losses(member, text, positions, blocks, contexts, options)
            losses[member.name], scored[member.name] = of_member
        if rank_and_world_size()[0] > 0:
            return []
    results = _measure(options, members, losses, contexts, positions, blocks, text)
    results["corpus"] = text.description()
    first, last, n_blocks = int(positions[0]), int(positions[-1]), int(blocks[-1]) + 1
    results["positions"] = {
        "version": POSITIONS_VERSION,
        "number": len(positions),
        "blocks": n_blocks,
        "first": first,
        "last": last,
    }
    for model in results["models"]:
        model["positions_scored"] = scored[model["name"]]
    results["seconds"] = round(time.perf_counter() - started, 2)
    write_json(directory / "recl.json", results, allow_nan=False)
    write_losses(directory / "losses.npz", losses, contexts, positions, blocks)
    gain_maps(directory / "gain_maps", contexts, block_gains(losses, blocks), options.context_unit)
    return write_report(results, directory, options.logger, plain(options))


def _check_options(options: ReclOptions) -> list[int]:
    """Check the options and return the grid of contexts."""
    n_models = len(references(options))
    if options.names is not None:
        fits = len(options.names) == len(set(options.names)) == n_models and all(options.names)
        require(fits, "names", options.names, f"must be {n_models} different names, one per model")
    if options.groups is not None:
        fits = len(options.groups) == n_models and all(re.fullmatch(r"[\w.+-]+", label) for label in options.groups)
        require(fits, "groups", options.groups, f"must be {n_models} labels of letters, digits and _.+-, one per model")
    for name, choices in {"context_unit": CONTEXT_UNITS, "dtype": DTYPES}.items():
        value = getattr(options, name)
        require(value in choices, name, value, f"must be one of {', '.join(choices)}")
    check_common_options(options)
    check_at_least_one(options, "first_context", "step", "batch_tokens")
    allowed = "must be an integer >= 2 (for a standard error)"
    require(options.n_positions >= 2, "n_positions", options.n_positions, allowed)
    shortest = options.first_context + options.step
    allowed = f"must be at least first_context + step = {shortest}"
    require(options.max_context >= shortest, "max_context", options.max_context, allowed)
    contexts = list(range(options.first_context, options.max_context + 1, options.step))
    check_definition(contexts, options.fractions, options.threshold, options.bootstrap)
    return contexts


def _check_limits(members: list[Member], max_context: int, text: GroupText) -> None:
    """Check that one model sees the longest context, if any model is from elsewhere."""
    limits = [member.reader.limit for member in members]
    longest = max((limit for limit in limits if limit is not None), default=0)
    if None in limits or longest >= max_context or text.pieces is not None or all(m.trained for m in members):
        return
    allowed = f"must be at most {longest}, the tokens that {members[limits.index(longest)].path} can see"
    raise OptionError("max_context", max_context, allowed)


def _stored_losses(
    member: Member,
    text: GroupText,
    positions: NDArray[np.int64],
    blocks: NDArray[np.int64],
    contexts: list[int],
    options: ReclOptions,
) -> tuple[Array, int]:
    """Return l(c, t) of one model, [C, P], and the number of positions scored now; the store has the others.

    A tenth of the blocks is scored and stored at a time, so an interrupted command resumes after the last tenth.
    """
    store = LossStore(Path(options.store).expanduser())
    key = {
        "checkpoint": member.checksum,
        "split": options.split,
        "tokens": array_checksum(text.of_member[member.name].tokens),
        "positions": array_checksum(positions),
        "clamp_len": member.clamp_len,
        "segment_len": member.reader.segment_len,
        "precision": options.precision,
    }
    if text.pieces is not None:
        key["pieces"] = array_checksum(text.pieces)
    rank, _ = rank_and_world_size()
    # Only the first rank reads the store: another rank could read it after the first has written to it.
    keeps = rank == 0 and member.checksum is not None
    stored = all_gather(store.read(key) if keeps else {})[0]
    unknown = np.full(len(positions), np.nan)
    losses_CP = np.stack([stored.get(context, unknown) for context in contexts])
    missing_P = np.isnan(losses_CP).any(axis=0)
    missing = np.unique(blocks[missing_P])
    at_once = -(-int(blocks[-1] + 1) // STORED_PARTS)
    starts = range(0, len(missing), at_once)
    for start in tqdm(starts, desc=member.name, unit="part", disable=True if rank else None, leave=False):
        here = np.isin(blocks, missing[start : start + at_once])
        with autocast(options.precision, device_of(member.reader.model)):
            losses_CP[:, here] = _losses(member, text, positions[here], contexts, options.batch_tokens)
        if keeps:
            store.write(key, dict(zip(contexts, losses_CP, strict=True)))
    return losses_CP, int(missing_P.sum())


def _losses(
    member: Member, text: GroupText, positions: NDArray[np.int64], contexts: list[int], batch_tokens: int | None
) -> Array:
    tokens = text.of_member[member.name]
    if text.pieces is None:
        return loss_grid(member.reader, tokens.tokens, positions, contexts, batch_tokens)
    return byte_losses(member.reader, tokens, text.pieces, positions, contexts, batch_tokens)


def _measure(
    options: ReclOptions,
    members: list[Member],
    losses: dict[str, Array],
    contexts: list[int],
    positions: NDArray[np.int64],
    blocks: NDArray[np.int64],
    text: GroupText,
) -> dict[str, Any]:
    """Return the entries of `recl.json` for the definition and the models."""
    # In bytes a limit of tokens caps the windows, not RECL.
    limits = {member.name: member.reader.limit if text.pieces is None else None for member in members}
    labels = dict(zip(losses, options.groups or ["all"] * len(losses), strict=True))
    definition = {name: getattr(options, name) for name in ("fractions", "threshold", "bootstrap", "seed")}
    definition |= {"limits": limits, "blocks": blocks}
    lengths = lengths_in_groups(losses, contexts, labels, **definition)
    without = lengths_without_one(losses, contexts, labels, **definition)
    models = []
    for member in members:
        losses_CP = losses[member.name]
        recl = {
            str(float(r)): {**vars(length), "without": _without(without[member.name], r)}
            for r, length in lengths[member.name].items()
        }
        models.append(
            {
                **_identity(member),
                **_mean_losses(losses_CP, blocks, text.level),
                **context_gains(losses_CP, contexts, blocks),
                "token_classes": _token_classes(member, text, losses_CP, contexts, positions),
                "group": labels[member.name],
                "recl": recl,
            }
        )
    names = ("split", "context_unit", "first_context", "step", "precision")
    return {
        "schema_version": SCHEMA_VERSION,
        "citation": CITATION,
        "unit": loss_unit(text.level),
        "contexts": contexts,
        **{name: getattr(options, name) for name in (*names, "fractions", "threshold", "bootstrap", "seed")},
        "models": models,
        "differences": loss_differences(losses, blocks),
        "groups": group_summaries(lengths, losses, labels),
    }


def _identity(member: Member) -> dict[str, Any]:
    """Return the entries of a model that say which it is and how it was read."""
    return {
        "name": member.name,
        "checkpoint": str(member.path),
        "sha256": member.checksum,
        "step": member.trained.step if member.trained else None,
        "tokens_trained": member.tokens_trained,
        "kind": member.kind,
        "begin_of_text": member.begin_of_text,
        "scoring": "one pass" if member.reader.one_pass else "direct",
        "parameters": sum(p.numel() for p in getattr(member.reader.model, "parameters", list)()),
        "limit": member.reader.limit,
        "clamp_len": member.clamp_len,
    }


def _mean_losses(losses_CP: Array, blocks: NDArray[np.int64], level: str) -> dict[str, Any]:
    """Return the mean loss at each context with its standard error, in nats and in the unit of the level."""
    nll, error = mean_and_error(losses_CP, blocks)
    units = [loss_metrics(value, level) for value in nll.tolist()]
    unit = next(name for name in units[0] if name != "nll")
    values = [of_context[unit] for of_context in units]
    # d ppl = ppl · d nll; d bpc = d nll / ln 2
    scale = np.asarray(values) if unit == "ppl" else np.full(len(values), 1 / np.log(2))
    return {
        "nll": nll.tolist(),
        "nll_standard_error": error.tolist(),
        unit: values,
        f"{unit}_standard_error": (scale * error).tolist(),
    }


def _without(by_left_out: dict[str, dict[float, EffectiveContext]], fraction: float) -> dict[str, dict[str, Any]]:
    """Return RECL and whether it is only a lower bound, by the model that is left out of the group."""
    found = {left_out: lengths[fraction] for left_out, lengths in by_left_out.items()}
    return {left_out: {"value": length.value, "at_least": length.at_least} for left_out, length in found.items()}


def _token_classes(
    member: Member, text: GroupText, losses_CP: Array, contexts: list[int], positions: NDArray[np.int64]
) -> dict[str, Any] | None:
    """Return the losses of classes of tokens; None in bytes, where a position has no single token."""
    if text.pieces is not None:
        return None
    return token_classes(losses_CP, contexts, text.of_member[member.name].tokens, positions)
