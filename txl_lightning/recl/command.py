"""`txl recl`: score a group of models at equal positions and contexts, and derive their RECL (appendix C)."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from txl_lightning.data.corpus import WHOLE
from txl_lightning.distributed.ranks import all_gather, process_group, rank_and_world_size
from txl_lightning.errors import MOST, notice, require
from txl_lightning.evaluation.commands import check_common_options, log_results
from txl_lightning.evaluation.hardware import autocast, chosen_precision, set_threads
from txl_lightning.evaluation.losses import device_of
from txl_lightning.evaluation.trained import is_other_text
from txl_lightning.evaluation.units import loss_unit
from txl_lightning.evaluation.windows import window_losses
from txl_lightning.files import write_atomically, write_json, write_text
from txl_lightning.recl.check import checked
from txl_lightning.recl.effective_context import Array, Integers, check_definition
from txl_lightning.recl.figures import draw_figures
from txl_lightning.recl.group import load_group, references
from txl_lightning.recl.models import Member, TokenizedText
from txl_lightning.recl.options import ReclOptions
from txl_lightning.recl.page import page
from txl_lightning.recl.positions import position_blocks
from txl_lightning.recl.report import report_lines
from txl_lightning.recl.results import group_results
from txl_lightning.recl.text import GroupText, group_text

SCHEMA_VERSION = 11  # of docs/recl.schema.json
LARGEST = 700.0  # nats; a perplexity of a larger loss would overflow
ROUNDING = 1e-3
LABEL = re.compile(r"[\w.+-]+")


def run(options: ReclOptions, directory: Path) -> list[str]:
    """Score the models; write `recl.json`, the table, the figures and the page.

    Under a launcher (torchrun) the windows are divided over the processes. Only the first one
    writes and returns lines.

    `losses.npz` has `models` [I], `contexts` [C], `positions` [P], `blocks` [P] and `nll` [I, C,
    P], in nats.

    Returns:
        Lines to print: the tables, their notes, and the page.

    Raises:
        UserError: an option, a checkpoint, or the group is not usable.
    """
    contexts = checked_contexts(options)
    started = time.perf_counter()
    with process_group():  # an error on one rank then ends the others too
        options, members, text = prepare(options, contexts)
        n_tokens = len(text.first.tokens)
        positions, blocks = position_blocks(
            n_tokens, options.n_positions, contexts, options.position_seed
        )
        members = [checked(member, text.texts[member.name], contexts) for member in members]
        losses = {}
        for member in members:
            tokens = text.texts[member.name]
            losses[member.name] = model_losses(
                member, tokens, positions, contexts, options.precision
            )
        rank, _ = rank_and_world_size()
    if rank > 0:
        return []
    results = measure(options, members, text, losses, contexts, positions, blocks)
    results["seconds"] = round(time.perf_counter() - started, 2)
    write_json(directory / "recl.json", results, allow_nan=False)
    write_losses(directory / "losses.npz", losses, contexts, positions, blocks)
    lines = report_lines(results)
    write_text(directory / "recl.md", "\n".join(lines) + "\n")
    draw_figures(results, directory)
    write_text(directory / "recl.html", page(results, losses, positions, blocks, text.first.spell))
    log_results("recl", results, options, directory)
    return [*lines, "", f"page: {directory}/recl.html"]


def checked_contexts(options: ReclOptions) -> list[int]:
    """Check the options and return the grid of contexts."""
    check_common_options(options)
    contexts: Sequence[int] | None = options.contexts
    if contexts is None:
        contexts = _even_contexts(options.first_context, options.step, options.max_context)
    check_definition(contexts, options.fractions, options.threshold, options.bootstrap)
    n_models = len(references(options))
    names = options.names
    if names is not None:
        is_name_each = len(names) == n_models and len(set(names)) == n_models and "" not in names
        require(is_name_each, "names", names, f"must be {n_models} different names, one per model")
    groups = options.groups
    if groups is not None:
        is_label_each = len(groups) == n_models and all(LABEL.fullmatch(label) for label in groups)
        allowed = f"must be {n_models} labels of letters, digits and _.+-, one per model"
        require(is_label_each, "groups", groups, allowed)
    return list(contexts)


def _even_contexts(first: int, step: int, longest: int) -> range:
    contexts = range(first, longest + 1, step)
    require(
        len(contexts) >= 2,
        "max_context",
        longest,
        f"must be at least {first + step}: first_context + step",
    )
    allowed = f"gives {len(contexts):,} contexts in steps of {step}, more than {MOST['contexts']:,}"
    require(len(contexts) <= MOST["contexts"], "max_context", longest, allowed)
    if contexts[-1] < longest:
        notice(f"max_context={longest}: the grid ends at {contexts[-1]}, first_context + n·step")
    return contexts


def prepare(
    options: ReclOptions, contexts: list[int]
) -> tuple[ReclOptions, list[Member], GroupText]:
    """Load models and text; return them, and the options with split and precision as they are used."""
    precision = all_gather(chosen_precision(options.precision, options.accelerator))[0]
    members = load_group(options, contexts[-1])
    trained = [member.trained for member in members if member.trained is not None]
    set_threads(options.num_threads, *trained)
    split = options.split
    if split is None:
        split = WHOLE if is_other_text(options.data_path, trained) else "test"
    options = replace(options, split=split, precision=precision)
    return options, members, group_text(members, options, split)


def model_losses(
    member: Member,
    text: TokenizedText,
    positions: Integers,
    contexts: Sequence[int],
    precision: str,
) -> Array:
    """Return l(c, t), [C, P], in nats, of one model.

    Raises:
        OptionError: a loss is nan, below 0 by more than `ROUNDING`, or `LARGEST` or more.
    """
    begins = text.document_begins(positions)
    with autocast(precision, device_of(member.reader.model)):
        losses_CP = window_losses(
            member.reader, text.tokens, positions, contexts, begins, progress=True
        )
    is_loss = (losses_CP > -ROUNDING) & (losses_CP < LARGEST)
    member.require(bool(is_loss.all()), f"has losses that are not -log P in 0 … {LARGEST:g} nats")
    return losses_CP


def measure(
    options: ReclOptions,
    members: list[Member],
    text: GroupText,
    losses: dict[str, Array],
    contexts: list[int],
    positions: Integers,
    blocks: Integers,
) -> dict[str, Any]:
    """Return the entries of `recl.json`, apart from the seconds."""
    begins = [tokens.document_begins(positions) for tokens in text.texts.values()]
    results = group_results(
        losses,
        contexts,
        positions,
        blocks,
        unit=loss_unit(text.corpus["level"]),
        labels=options.groups,
        limits={member.name: member.reader.limit for member in members},
        begins=np.max(begins, axis=0),
        fractions=options.fractions,
        threshold=options.threshold,
        bootstrap=options.bootstrap,
        seed=options.seed,
    )
    for model, member in zip(results["models"], members, strict=True):
        model.update(member.facts())
        model.update(text.texts[member.name].findings)
    results["positions"]["seed"] = options.position_seed
    return {
        "schema_version": SCHEMA_VERSION,
        **results,
        "split": options.split,
        "precision": options.precision,
        "documents": options.documents,
        "corpus": text.corpus,
    }


def write_losses(
    path: Path, losses: dict[str, Array], contexts: list[int], positions: Integers, blocks: Integers
) -> None:
    """Write the losses of all models at all contexts and positions."""
    arrays: dict[str, Any] = {
        "models": list(losses),
        "contexts": contexts,
        "positions": positions,
        "blocks": blocks,
        "nll": np.stack([losses_CP.astype(np.float32) for losses_CP in losses.values()]),
    }
    write_atomically(path, lambda part: np.savez_compressed(part, **arrays))
