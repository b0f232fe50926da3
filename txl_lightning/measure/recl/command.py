"""`txl recl`: score a group of models at equal positions and contexts, and derive their RECL (appendix C)."""

from __future__ import annotations

import re
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from txl_lightning.config.lengths import tokens_per_step
from txl_lightning.config.schemas import plain
from txl_lightning.data.corpus import WHOLE
from txl_lightning.distributed.ranks import process_group, rank_and_world_size
from txl_lightning.errors import OptionError, require
from txl_lightning.files import write_json
from txl_lightning.measure.recl.effective_context import (
    Array,
    check_definition,
    even_contexts,
    group_lengths,
    group_summaries,
)
from txl_lightning.measure.recl.loss_by_context import (
    context_gains,
    key_tokens,
    loss_differences,
    mean_and_error,
)
from txl_lightning.measure.recl.model_losses import (
    ScoredPositions,
    loss_arrays,
    model_losses,
    scored_positions,
    write_arrays,
)
from txl_lightning.measure.recl.options import ReclOptions
from txl_lightning.measure.recl.report import write_report
from txl_lightning.measure.scoring.group import GroupText, group_text, load_group, references
from txl_lightning.measure.scoring.models import HUGGING_FACE, Member
from txl_lightning.measure.scoring.option_checks import check_at_least_one, check_common_options
from txl_lightning.measure.scoring.trial import tried
from txl_lightning.measure.scoring.windows import CHUNK, LONG_WINDOW, POSITIONS_VERSION, position_blocks
from txl_lightning.runs.bfloat16 import chosen_precision
from txl_lightning.runs.metrics import errors_by_unit, loss_metrics, loss_unit
from txl_lightning.runs.threads import set_threads
from txl_lightning.runs.trained import is_other_text

SCHEMA_VERSION = 6  # of docs/recl.schema.json
CITATION = "RECL: Dai et al. 2019, Transformer-XL, appendix C (arXiv:1901.02860); measured with txl_lightning"
CHOICES = {"context_unit": ("token", "byte"), "documents": ("respect", "ignore")}
DOUBLING = "doubling"


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
        trained = [member.trained for member in members if member.trained]
        set_threads(options.num_threads, *trained)
        split = options.split or (WHOLE if is_other_text(options.data_path, trained) else "test")
        options = replace(options, split=split)
        text = group_text(members, options)
        _check_limits(members, contexts[-1], text)
        # In bytes a window also has the tokens of the piece that it predicts.
        longest = contexts[-1] + (0 if text.pieces is None else int(np.diff(text.pieces).max()))
        chunks = {HUGGING_FACE: CHUNK} if longest > LONG_WINDOW else {}
        members = [tried(one, text.of_member[one.name], longest, chunks.get(one.path[:3])) for one in members]
        positions, blocks = position_blocks(text.length, options.n_positions, contexts, options.position_seed)
        at = scored_positions(text, positions, blocks, contexts)
        scored = {member.name: model_losses(member, at, options) for member in members}
        if rank_and_world_size()[0] > 0:
            return []
    losses = {name: losses_CP for name, (losses_CP, _) in scored.items()}
    results = _measure(options, members, losses, at)
    for model in results["models"]:
        model |= scored[model["name"]][1]
    results["seconds"] = round(time.perf_counter() - started, 2)
    write_json(directory / "recl.json", results, allow_nan=False)
    write_arrays(directory / "losses.npz", np.savez_compressed, loss_arrays(losses, at))
    return write_report(results, directory, options.logger, plain(options))


def _check_options(options: ReclOptions) -> list[int]:
    """Check the options and return the grid of contexts."""
    n_models, names, groups = len(references(options)), options.names, options.groups
    valid = names is None or (len(names) == len(set(names)) == n_models and all(names))
    require(valid, "names", names, f"must be {n_models} different names, one per model")
    valid = groups is None or (len(groups) == n_models and all(re.fullmatch(r"[\w.+-]+", label) for label in groups))
    require(valid, "groups", groups, f"must be {n_models} labels of letters, digits and _.+-, one per model")
    for name, choices in CHOICES.items():
        value = getattr(options, name)
        require(value in choices, name, value, f"must be one of {', '.join(choices)}")
    check_common_options(options)
    check_at_least_one(options, "first_context", "step", "batch_tokens")
    contexts = _grid(options)
    allowed = "must be an integer >= 2 (for a standard error)"
    require(options.n_positions >= 2, "n_positions", options.n_positions, allowed)
    seed = options.position_seed
    require(seed is None or seed >= 0, "position_seed", seed, "must be null or an integer >= 0")
    check_definition(contexts, options.fractions, options.threshold, options.bootstrap)
    require(options.key_gain > 0, "key_gain", options.key_gain, "must be above 0")
    keys = options.key_contexts
    valid = keys is None or (len(keys) == 2 and keys[0] < keys[1] and set(keys) <= set(contexts))
    require(valid, "key_contexts", keys, "must be two contexts of the grid, ascending")
    return contexts


def _grid(options: ReclOptions) -> list[int]:
    """Return the contexts: those given, doubling, or in even steps."""
    given, first = options.contexts, options.first_context
    listed = isinstance(given, list) and all(type(c) is int for c in given)
    allowed = f"must be null, {DOUBLING} or a list of integers, ascending"
    require(listed or given in (None, DOUBLING), "contexts", given, allowed)
    if listed:
        return list(given)
    second = first + (first if given else options.step)
    allowed = f"must be at least {'2 first_context' if given else 'first_context + step'} = {second}"
    require(options.max_context >= second, "max_context", options.max_context, allowed)
    if given:
        return [first << i for i in range((options.max_context // first).bit_length())]
    return even_contexts(first, options.max_context, options.step)


def _check_limits(members: list[Member], max_context: int, text: GroupText) -> None:
    """Check that one model sees the longest context, if any model is from elsewhere."""
    limits = [member.reader.limit or max_context for member in members]
    if max(limits) < max_context and text.pieces is None and not all(member.trained for member in members):
        longest = members[limits.index(max(limits))].path
        allowed = f"must be at most {max(limits)}, the tokens that {longest} can see"
        raise OptionError("max_context", max_context, allowed)


def _measure(
    options: ReclOptions, members: list[Member], losses: dict[str, Array], at: ScoredPositions
) -> dict[str, Any]:
    """Return the entries of `recl.json`, apart from those of `model_losses` and the seconds."""
    level, unit = at.text.corpus["level"], loss_unit(at.text.corpus["level"])
    # In bytes a limit of tokens caps the windows, not RECL.
    in_tokens = at.text.pieces is None
    limits = {member.name: member.reader.limit if in_tokens else None for member in members}
    labels = dict(zip(losses, options.groups or ["all"] * len(losses), strict=True))
    stated = ("split", "context_unit", "precision", "documents")
    steps = set(np.diff(at.contexts).tolist())
    definition = {name: getattr(options, name) for name in ("fractions", "threshold", "bootstrap", "seed")}
    lengths = group_lengths(losses, at.contexts, labels, limits=limits, blocks=at.blocks, **definition)
    ends = [at.contexts[0], at.contexts[-1]]
    key: dict[str, Any] = {"key_contexts": options.key_contexts or ends, "key_gain": options.key_gain}
    models = []
    for member in members:
        losses_CP, trained = losses[member.name], member.trained
        nll, error = (of_each.tolist() for of_each in mean_and_error(losses_CP, at.blocks))
        models.append(
            {
                "name": member.name,
                "checkpoint": member.path,
                "sha256": member.checksum,
                "step": trained.step if trained else None,
                "tokens_trained": trained.step * tokens_per_step(trained.config) if trained else None,
                "kind": member.kind,
                "begin_of_text": member.begin_of_text,
                "scoring": "one pass" if member.reader.one_pass else "direct",
                "parameters": sum(p.numel() for p in getattr(member.reader.model, "parameters", list)()),
                "limit": member.reader.limit,
                "clamp_len": member.clamp_len,
                "trained_len": member.trained_len,
                "nll": nll,
                "nll_standard_error": error,
                unit: [loss_metrics(value, level)[unit] for value in nll],
                f"{unit}_standard_error": [errors_by_unit(*pair, level)[unit] for pair in zip(error, nll, strict=True)],
                **context_gains(losses_CP, at.contexts, at.blocks),
                "key_tokens": key_tokens(losses_CP, at.contexts, at.positions, **key) if in_tokens else None,
                "group": labels[member.name],
                "recl": lengths[member.name],
            }
        )
    return {
        "schema_version": SCHEMA_VERSION,
        "citation": CITATION,
        "unit": unit,
        "contexts": at.contexts,
        "first_context": at.contexts[0],
        "step": steps.pop() if len(steps) == 1 else None,
        **{name: getattr(options, name) for name in stated},
        **definition,
        **key,
        "models": models,
        "differences": loss_differences(losses, at.blocks),
        "groups": group_summaries(lengths, losses, labels),
        "corpus": at.text.corpus,
        "positions": {
            "version": POSITIONS_VERSION,
            "seed": options.position_seed,
            "number": len(at.positions),
            "blocks": int(at.blocks[-1]) + 1,
            "first": int(at.positions[0]),
            "last": int(at.positions[-1]),
            "cut": at.n_cut,
        },
    }
