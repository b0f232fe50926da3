"""`txl recl`: score a group of models at equal positions and contexts, and derive their RECL (appendix C)."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from txl_lightning.data.corpus import WHOLE
from txl_lightning.errors import require
from txl_lightning.evaluation.commands import check_common_options, log_results
from txl_lightning.evaluation.hardware import autocast, chosen_precision, set_threads
from txl_lightning.evaluation.losses import device_of
from txl_lightning.evaluation.trained import is_other_text
from txl_lightning.files import write_atomically, write_json, write_text
from txl_lightning.ranks import all_gather, process_group, rank_and_world_size
from txl_lightning.recl.check import checked, require_losses
from txl_lightning.recl.effective_context import Array, Entries, Integers, check_definition
from txl_lightning.recl.figures import draw_figures
from txl_lightning.recl.group import load_group, references
from txl_lightning.recl.models import Member, foreign_errors
from txl_lightning.recl.options import ReclOptions
from txl_lightning.recl.page import page
from txl_lightning.recl.positions import position_blocks
from txl_lightning.recl.report import report_lines
from txl_lightning.recl.results import group_results
from txl_lightning.recl.text import load_text
from txl_lightning.recl.windows import window_losses

SCHEMA_VERSION = 13  # of docs/recl.schema.json


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
        results, losses, positions, blocks, members = measure(options, contexts)
        rank, _ = rank_and_world_size()
    if rank > 0:
        return []
    results["seconds"] = round(time.perf_counter() - started, 2)
    write_json(directory / "recl.json", results, allow_nan=False)
    arrays: Entries = {
        "models": list(losses),
        "contexts": contexts,
        "positions": positions,
        "blocks": blocks,
        "nll": np.stack([*losses.values()]).astype(np.float32),
    }
    path = directory / "losses.npz"
    write_atomically(path, lambda part: np.savez_compressed(part, **arrays))
    lines = report_lines(results)
    write_text(directory / "recl.md", "\n".join(lines) + "\n")
    draw_figures(results, directory)
    html = page(results, losses, positions, blocks, members[0].text.spell)
    write_text(directory / "recl.html", html)
    log_results("recl", results, options, directory)
    return [*lines, "", f"page: {directory}/recl.html"]


def checked_contexts(options: ReclOptions) -> Sequence[int]:
    """Check the options and return the context grid."""
    check_common_options(options)
    contexts: Sequence[int] | None = options.contexts
    if contexts is None:
        contexts = range(options.first_context, options.max_context + 1, options.step)
        is_grid = 2 <= len(contexts) <= 100_000
        allowed = "must be first_context + step or more, and give at most 100,000 contexts"
        require(is_grid, "max_context", options.max_context, allowed)
    check_definition(contexts, options.fractions, options.threshold, options.bootstrap)
    n_models = len(references(options))
    if options.names is not None:
        is_name_each = len(options.names) == n_models == len(set(options.names))
        allowed = f"must be {n_models} different names, one per model"
        require(is_name_each, "names", options.names, allowed)
    return list(contexts)


def measure(
    options: ReclOptions,
    contexts: Sequence[int],
) -> tuple[Entries, dict[str, Array], Integers, Integers, list[Member]]:
    """Load, check and score the models.

    Returns:
        The contents of `recl.json` but the seconds; l(c, t) of each model, [C, P], in nats; t and the block of each
        position, [P]; the models.

    Raises:
        OptionError: a model or the text is not usable, or a loss is not -log P.
    """
    precision = all_gather(chosen_precision(options.precision, options.accelerator))[0]
    members = load_group(options, contexts[-1])
    trained = [member.trained for member in members if member.trained is not None]
    set_threads(options.num_threads, *trained)
    split = options.split or "test"
    if options.split is None and is_other_text(options.data_path, trained):
        split = WHOLE
    members, corpus, documents = load_text(members, options, split)
    n_tokens = len(members[0].text.tokens)
    n_positions = options.n_positions
    positions, blocks = position_blocks(n_tokens, n_positions, contexts, options.position_seed)
    document_P = (
        np.searchsorted(
            documents,
            positions - 1,
            side="right",
        )
        - 1
    )
    begins = documents[document_P]  # of the document of the token before each position
    members = [checked(member, contexts) for member in members]
    losses = {}
    for member in members:
        tokens = member.text.tokens
        device = device_of(member.reader.model)
        place = (tokens, positions, contexts, begins)
        with autocast(precision, device), foreign_errors(member.reference, "cannot be scored"):
            losses[member.name] = window_losses(
                member.reader,
                *place,
                title=member.name,
            )
        require_losses(member, losses[member.name])
    results = group_results(
        losses,
        contexts,
        positions,
        blocks,
        corpus["level"],
        limits={member.name: member.reader.limit for member in members},
        begins=begins,
        fractions=options.fractions,
        threshold=options.threshold,
        bootstrap=options.bootstrap,
        seed=options.seed,
    )
    for model, member in zip(results["models"], members, strict=True):
        model.update(member.facts())
    results.update(
        schema_version=SCHEMA_VERSION,
        position_seed=options.position_seed,
        split=split,
        precision=precision,
        documents=options.documents,
        corpus=corpus,
    )
    return results, losses, positions, blocks, members
