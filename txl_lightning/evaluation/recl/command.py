"""`txl recl`: score a group of models at equal positions and contexts, and derive their RECL (appendix C)."""

from __future__ import annotations

import re
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from txl_lightning.config.schemas import plain
from txl_lightning.data.documents import without_marks
from txl_lightning.distributed.ranks import process_group, rank_and_world_size
from txl_lightning.errors import OptionError, require
from txl_lightning.evaluation.language_models.tokenized_text import pieces_of_symbols, pieces_of_text, word_pieces
from txl_lightning.evaluation.recl.effective_context import Array, EffectiveContext, check_definition
from txl_lightning.evaluation.recl.far_context import ABLATIONS
from txl_lightning.evaluation.recl.figures import gain_maps
from txl_lightning.evaluation.recl.group import CONTEXT_UNITS, GroupText, Member, group_text, load_group, references
from txl_lightning.evaluation.recl.group_comparisons import (
    group_summaries,
    lengths_in_groups,
    lengths_without_one,
    loss_differences,
)
from txl_lightning.evaluation.recl.loss_by_context import block_gains, context_gains, mean_and_error, token_classes
from txl_lightning.evaluation.recl.model_losses import (
    context_use,
    further_arrays,
    model_losses,
    scored_positions,
    write_losses,
)
from txl_lightning.evaluation.recl.options import ReclOptions
from txl_lightning.evaluation.recl.report import write_report
from txl_lightning.evaluation.scoring.option_checks import check_at_least_one, check_common_options
from txl_lightning.evaluation.scoring.position_blocks import POSITIONS_VERSION, position_blocks
from txl_lightning.evaluation.scoring.standard_errors import errors_by_unit
from txl_lightning.evaluation.scoring.windows import Integers
from txl_lightning.files import write_json
from txl_lightning.runs.bfloat16 import chosen_precision
from txl_lightning.runs.metrics import loss_metrics, loss_unit
from txl_lightning.runs.threads import set_threads

SCHEMA_VERSION = 3  # of docs/recl.schema.json
CITATION = "RECL: Dai et al. 2019, Transformer-XL, appendix C (arXiv:1901.02860); measured with txl_lightning"
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
    options = replace(options, precision=chosen_precision(options.precision, options.accelerator))
    with process_group():
        started = time.perf_counter()
        members = load_group(options)
        set_threads(options.num_threads, *(member.trained for member in members if member.trained))
        text = group_text(members, options)
        _check_limits(members, contexts[-1], text)
        positions, blocks = position_blocks(text.length, options.n_positions, contexts)
        at = scored_positions(text, positions, blocks, contexts, options)
        scored = {member.name: model_losses(member, at, options) for member in members}
        if rank_and_world_size()[0] > 0:
            return []
    losses = {name: of_model.losses_CP for name, of_model in scored.items()}
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
        model |= context_use(scored[model["name"]], at)
    results["seconds"] = round(time.perf_counter() - started, 2)
    write_json(directory / "recl.json", results, allow_nan=False)
    write_losses(directory / "losses.npz", losses, contexts, positions, blocks, further_arrays(scored, at))
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
    windows = options.position_windows
    require(windows == 0 or windows >= 2, "position_windows", windows, "must be 0 or an integer >= 2")
    allowed = "must be an integer >= 2 (for a standard error)"
    require(options.n_positions >= 2, "n_positions", options.n_positions, allowed)
    shortest = options.first_context + options.step
    allowed = f"must be at least first_context + step = {shortest}"
    require(options.max_context >= shortest, "max_context", options.max_context, allowed)
    contexts = list(range(options.first_context, options.max_context + 1, options.step))
    check_definition(contexts, options.fractions, options.threshold, options.bootstrap)
    _check_ablations(options, contexts)
    return contexts


def _check_ablations(options: ReclOptions, contexts: list[int]) -> None:
    named = options.ablations
    allowed = f"must be different ones of {', '.join(ABLATIONS)}"
    require(len(set(named)) == len(named) and set(named) <= set(ABLATIONS), "ablations", named, allowed)
    altered = options.ablation_contexts
    if altered is not None:
        allowed = f"must be contexts of the grid below {contexts[-1]}, ascending"
        fits = bool(altered) and sorted(set(altered)) == altered and set(altered) <= set(contexts[:-1])
        require(fits, "ablation_contexts", altered, allowed)


def _check_limits(members: list[Member], max_context: int, text: GroupText) -> None:
    """Check that one model sees the longest context, if any model is from elsewhere."""
    limits = [member.reader.limit for member in members]
    longest = max((limit for limit in limits if limit is not None), default=0)
    if None in limits or longest >= max_context or text.pieces is not None or all(m.trained for m in members):
        return
    allowed = f"must be at most {longest}, the tokens that {members[limits.index(longest)].path} can see"
    raise OptionError("max_context", max_context, allowed)


def _measure(
    options: ReclOptions,
    members: list[Member],
    losses: dict[str, Array],
    contexts: list[int],
    positions: Integers,
    blocks: Integers,
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
        "trained_len": member.trained_len,
    }


def _mean_losses(losses_CP: Array, blocks: Integers, level: str) -> dict[str, Any]:
    """Return the mean loss at each context with its standard error, in nats and in the unit of the level."""
    nll, error = (of_each.tolist() for of_each in mean_and_error(losses_CP, blocks))
    unit = loss_unit(level)
    return {
        "nll": nll,
        "nll_standard_error": error,
        unit: [loss_metrics(value, level)[unit] for value in nll],
        f"{unit}_standard_error": [errors_by_unit(*pair, level)[unit] for pair in zip(error, nll, strict=True)],
    }


def _without(by_left_out: dict[str, dict[float, EffectiveContext]], fraction: float) -> dict[str, dict[str, Any]]:
    """Return RECL and whether it is only a lower bound, by the model that is left out of the group."""
    found = {left_out: lengths[fraction] for left_out, lengths in by_left_out.items()}
    return {left_out: {"value": length.value, "at_least": length.at_least} for left_out, length in found.items()}


def _token_classes(
    member: Member, text: GroupText, losses_CP: Array, contexts: list[int], positions: Integers
) -> dict[str, Any] | None:
    """Return the losses of classes of tokens; None in bytes, where a position has no single token."""
    if text.pieces is not None:
        return None
    tokens = text.of_member[member.name]
    pieces = None
    if text.content is not None and tokens.starts is not None:
        pieces = pieces_of_text(tokens, text.content, positions)
    elif text.content is None and member.trained:
        pieces = pieces_of_symbols(member.trained.vocabulary, without_marks(tokens.tokens), positions)
    further = {} if pieces is None else dict(zip(("first_piece", "later_piece"), word_pieces(pieces), strict=True))
    return token_classes(losses_CP, contexts, tokens.tokens, positions, further)
