"""`txl recl`: score a group of models at equal positions and contexts, and derive their RECL (appendix C)."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from txl_lightning.data.corpus import WHOLE
from txl_lightning.distributed.ranks import all_gather, process_group, rank_and_world_size
from txl_lightning.errors import MOST, require
from txl_lightning.evaluation.commands import check_common_options, log_results
from txl_lightning.evaluation.hardware import autocast, chosen_precision, set_threads
from txl_lightning.evaluation.losses import device_of
from txl_lightning.evaluation.trained import is_other_text
from txl_lightning.evaluation.units import loss_unit
from txl_lightning.files import write_atomically, write_json, write_text
from txl_lightning.recl.check import checked
from txl_lightning.recl.effective_context import Array, Entries, Integers, check_definition
from txl_lightning.recl.figures import draw_figures
from txl_lightning.recl.group import load_group, references
from txl_lightning.recl.models import Member
from txl_lightning.recl.options import ReclOptions
from txl_lightning.recl.page import page
from txl_lightning.recl.positions import position_blocks
from txl_lightning.recl.report import report_lines
from txl_lightning.recl.results import group_results
from txl_lightning.recl.text import GroupText, group_text
from txl_lightning.recl.windows import window_losses

SCHEMA_VERSION = 12  # as in docs/recl.schema.json
LARGEST = 700.0  # nats; a larger loss's perplexity would overflow
ROUNDING = 1e-3
LABEL = re.compile(r"[\w.+-]+")


@dataclass(frozen=True)
class Group:
    """Models, their text, and the contexts and positions to score.

    Args:
        options: the command's options, with split and precision as used.
        contexts: the grid.
        members: the models, checked.
        text: the text.
        positions: t, [P].
        blocks: block index per position, [P].
    """

    options: ReclOptions
    contexts: list[int]
    members: list[Member]
    text: GroupText
    positions: Integers
    blocks: Integers


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
    with process_group():  # an error on one rank then ends all ranks
        group = load(options, contexts)
        losses = {member.name: model_losses(member, group) for member in group.members}
        rank, _ = rank_and_world_size()
    if rank > 0:
        return []
    results = results_of(group, losses)
    results["seconds"] = round(time.perf_counter() - started, 2)
    write_json(directory / "recl.json", results, allow_nan=False)
    arrays: Entries = {
        "models": list(losses),
        "contexts": contexts,
        "positions": group.positions,
        "blocks": group.blocks,
        "nll": np.stack([*losses.values()]).astype(np.float32),
    }
    path = directory / "losses.npz"
    write_atomically(path, lambda part: np.savez_compressed(part, **arrays))
    lines = report_lines(results)
    write_text(directory / "recl.md", "\n".join(lines) + "\n")
    draw_figures(results, directory)
    spell = group.text.tokens[group.members[0].name].spell
    html = page(results, losses, group.positions, group.blocks, spell)
    write_text(directory / "recl.html", html)
    log_results("recl", results, options, directory)
    return [*lines, "", f"page: {directory}/recl.html"]


def checked_contexts(options: ReclOptions) -> list[int]:
    """Check the options and return the context grid."""
    check_common_options(options)
    contexts = options.contexts
    if contexts is None:
        grid = range(options.first_context, options.max_context + 1, options.step)
        smallest = grid.start + grid.step
        largest = grid.start + MOST["contexts"] * grid.step
        allowed = f"must be between {smallest} (first_context + step) and {largest} (100,000 steps)"
        is_grid = smallest <= options.max_context <= largest
        require(is_grid, "max_context", options.max_context, allowed)
        contexts = list(grid)
    check_definition(contexts, options.fractions, options.threshold, options.bootstrap)
    n_models = len(references(options))
    names = options.names
    if names is not None:
        is_name_each = len(names) == n_models == len(set(names))
        require(is_name_each, "names", names, f"must be {n_models} different names, one per model")
    groups = options.groups
    if groups is not None:
        is_label_each = len(groups) == n_models and all(map(LABEL.fullmatch, groups))
        allowed = f"must be {n_models} labels of letters, digits and _.+-, one per model"
        require(is_label_each, "groups", groups, allowed)
    return contexts


def load(options: ReclOptions, contexts: list[int]) -> Group:
    """Load models and text, choose positions, and check the models."""
    precision = all_gather(chosen_precision(options.precision, options.accelerator))[0]
    members = load_group(options, contexts[-1])
    trained = [member.trained for member in members if member.trained is not None]
    set_threads(options.num_threads, *trained)
    split = options.split
    if split is None:
        split = "test"
        if is_other_text(options.data_path, trained):
            split = WHOLE
    text = group_text(members, options, split)
    n_tokens = len(text.tokens[members[0].name].tokens)
    positions, blocks = position_blocks(
        n_tokens,
        options.n_positions,
        contexts,
        options.position_seed,
    )
    members = [checked(member, text.tokens[member.name].tokens, contexts) for member in members]
    options = replace(options, split=split, precision=precision)
    return Group(options, contexts, members, text, positions, blocks)


def model_losses(member: Member, group: Group) -> Array:
    """Return one model's l(c, t), [C, P], in nats.

    Raises:
        OptionError: a loss is nan, below 0 by more than `ROUNDING`, or `LARGEST` or more.
    """
    with autocast(group.options.precision, device_of(member.reader.model)):
        losses_CP = window_losses(
            member.reader,
            group.text.tokens[member.name].tokens,
            group.positions,
            group.contexts,
            begins=group.text.document_begins(group.positions),
            title=member.name,
        )
    is_loss = (losses_CP > -ROUNDING) & (losses_CP < LARGEST)
    member.require(bool(is_loss.all()), f"has losses that are not -log P in 0 … {LARGEST:g} nats")
    return losses_CP


def results_of(group: Group, losses: dict[str, Array]) -> Entries:
    """Return the entries in `recl.json`, apart from the seconds."""
    options = group.options
    corpus = group.text.corpus
    results = group_results(
        losses,
        group.contexts,
        group.positions,
        group.blocks,
        unit=loss_unit(corpus["level"]),
        labels=options.groups,
        limits={member.name: member.reader.limit for member in group.members},
        begins=group.text.document_begins(group.positions),
        fractions=options.fractions,
        threshold=options.threshold,
        bootstrap=options.bootstrap,
        seed=options.seed,
    )
    for model, member in zip(results["models"], group.members, strict=True):
        model.update(member.facts())
        model.update(group.text.tokens[member.name].findings)
    results["positions"]["seed"] = options.position_seed
    results.update(
        schema_version=SCHEMA_VERSION,
        split=options.split,
        precision=options.precision,
        documents=options.documents,
        corpus=corpus,
    )
    return results
