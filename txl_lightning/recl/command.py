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
from txl_lightning.recl.check import checked
from txl_lightning.recl.effective_context import Array, Entries, Integers, check_definition
from txl_lightning.recl.figures import draw_figures
from txl_lightning.recl.group import load_group, load_text, model_names
from txl_lightning.recl.loss_by_context import group_results
from txl_lightning.recl.models import Speller, foreign_errors
from txl_lightning.recl.options import ReclOptions
from txl_lightning.recl.page import page
from txl_lightning.recl.positions import position_blocks
from txl_lightning.recl.report import report_lines
from txl_lightning.recl.windows import window_losses

SCHEMA_VERSION = 14  # of docs/recl.schema.json


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
    check_common_options(options)
    names = model_names(options)
    contexts = grid(options)
    check_definition(contexts, options.fractions, options.threshold, options.bootstrap)
    started = time.perf_counter()
    with process_group():  # an error on one rank then ends all ranks
        results, losses, positions, blocks, spell = measure(
            options,
            names,
            contexts,
        )
        rank, _ = rank_and_world_size()
    if rank > 0:
        return []
    results.update(
        schema_version=SCHEMA_VERSION,
        position_seed=options.position_seed,
        documents=options.documents,
        seconds=round(time.perf_counter() - started, 2),
    )
    write_json(directory / "recl.json", results, allow_nan=False)
    losses_ICP = np.stack([*losses.values()])
    arrays: Entries = {
        "models": names,
        "contexts": contexts,
        "positions": positions,
        "blocks": blocks,
        "nll": losses_ICP.astype(np.float32),
    }
    path = directory / "losses.npz"
    write_atomically(path, lambda part: np.savez_compressed(part, **arrays))
    lines = report_lines(results)
    write_text(directory / "recl.md", "\n".join(lines) + "\n")
    draw_figures(results, directory)
    html = page(results, losses_ICP, positions, blocks, spell)
    write_text(directory / "recl.html", html)
    log_results("recl", results, options, directory)
    return [*lines, "", f"page: {directory}/recl.html"]


def grid(options: ReclOptions) -> list[int]:
    """Return the contexts.

    Raises:
        OptionError: there are too few or too many.
    """
    if options.contexts is not None:
        return options.contexts
    contexts = range(
        options.first_context,
        options.max_context + 1,
        options.step,
    )
    is_grid = 2 <= len(contexts) <= 100_000
    allowed = "must be first_context + step or more, and give at most 100,000 contexts"
    require(is_grid, "max_context", options.max_context, allowed)
    return list(contexts)


def measure(
    options: ReclOptions,
    names: Sequence[str],
    contexts: Sequence[int],
) -> tuple[Entries, dict[str, Array], Integers, Integers, Speller]:
    """Load, check and score the models.

    Returns:
        The contents of `recl.json`; l(c, t) of each model, [C, P], in nats; t and the block of each position, [P]; what
        spells the text.

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
    texts, corpus, documents = load_text(members, options, split)
    n_tokens = len(texts[0].tokens)
    positions, blocks = position_blocks(
        n_tokens,
        options.n_positions,
        contexts,
        options.position_seed,
    )
    # The document of the token before each position.
    begins = documents[np.searchsorted(documents, positions - 1, side="right") - 1]
    for m, text in enumerate(texts):
        with foreign_errors(members[m].reference, "cannot be scored"):
            members[m] = checked(
                members[m],
                text.tokens,
                contexts,
            )
    losses = {}
    facts = {}
    for name, member, text in zip(
        names,
        members,
        texts,
        strict=True,
    ):
        reader = member.reader
        precise = autocast(precision, device_of(reader.model))
        with precise, foreign_errors(member.reference, "cannot be scored"):
            losses[name] = window_losses(
                reader,
                text.tokens,
                positions,
                contexts,
                begins,
                name,
            )
        facts[name] = {**member.facts(), **text.findings}
    results = group_results(
        losses,
        contexts,
        positions,
        blocks,
        corpus["level"],
        {name: of_model["limit"] for name, of_model in facts.items()},
        begins,
        fractions=options.fractions,
        threshold=options.threshold,
        bootstrap=options.bootstrap,
        seed=options.seed,
    )
    for model in results["models"]:
        model.update(facts[model["name"]])
    results.update(split=split, precision=precision, corpus=corpus)
    return results, losses, positions, blocks, texts[0].spell
