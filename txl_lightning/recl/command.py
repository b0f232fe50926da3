"""`txl recl`: score a group of models at equal positions and contexts, and derive their RECL (appendix C)."""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import trange

from txl_lightning.data.corpus import WHOLE
from txl_lightning.distributed.ranks import all_gather, process_group, rank_and_world_size
from txl_lightning.errors import MOST, Stopped, UserError, notice, require
from txl_lightning.evaluation.commands import check_common_options, log_results, write_markdown
from txl_lightning.evaluation.losses import Array, Integers, WindowReader, device_of, read_windows, window_losses
from txl_lightning.evaluation.options import ReclOptions
from txl_lightning.files import write_atomically, write_json, write_text
from txl_lightning.recl.effective_context import check_definition
from txl_lightning.recl.group import GroupText, group_text, load_group, references
from txl_lightning.recl.loss_by_context import group_results
from txl_lightning.recl.models import Member, TokenizedText, checked
from txl_lightning.recl.page import notes, page, tables
from txl_lightning.reporting.canvas import line_figure, plain_text
from txl_lightning.runs.hardware import autocast, chosen_precision, set_threads
from txl_lightning.runs.metrics import loss_unit, unit_name
from txl_lightning.runs.trained import is_other_text

SCHEMA_VERSION = 10  # of docs/recl.schema.json
PART_TOKENS, LONG = 200_000, 30  # tokens; seconds
LARGEST = 700.0  # nats; a perplexity of a larger loss would overflow
ROUNDING = 1e-3


def run(options: ReclOptions, directory: Path) -> list[str]:
    """Score the models; write `recl.json`, the table, the figures and the page.

    Under a launcher (torchrun) the windows are divided over the processes. Only the first one writes and returns lines.

    `losses.npz` has `models` [I], `contexts` [C], `positions` [P], `blocks` [P] and `nll` [I, C, P], in nats.

    Returns:
        Lines to print: the table and its notes.

    Raises:
        UserError: an option, a checkpoint, or the group is not usable.
        Stopped: SIGINT ended the reading; what was complete is written.
    """
    contexts = checked_contexts(options)
    started = time.perf_counter()
    with process_group():  # an error on one rank then ends the others too
        precision = all_gather(chosen_precision(options.precision, options.accelerator))[0]
        members = load_group(options)
        trained = [member.trained for member in members if member.trained]
        set_threads(options.num_threads, *trained)
        split = options.split or (WHOLE if is_other_text(options.data_path, trained) else "test")
        options = replace(options, split=split, precision=precision)
        at = group_text(members, options, split).at(contexts, options.n_positions, options.position_seed)
        members = [checked(one, at.of_member[one.name], at.in_tokens(one.name), len(at.t)) for one in members]
        n_parts, asked = parts_of(members, at), len(at.t)
        losses_ICP, done_P = np.empty((len(members), len(contexts), asked)), np.zeros(asked, bool)
        try:
            for k in trange(n_parts, unit="part", leave=False, disable=None if n_parts > 1 else True):
                here_P = at.blocks % n_parts == k
                losses_ICP[:, :, here_P] = [model_losses(member, at.where(here_P), options) for member in members]
                done_P |= here_P
        except KeyboardInterrupt:
            if not done_P.any() or rank_and_world_size()[1] > 1:
                raise
        if rank_and_world_size()[0] > 0:
            return []
    at, losses = at.where(done_P), {one.name: of for one, of in zip(members, losses_ICP[:, :, done_P], strict=True)}
    results = _measure(options, members, losses, at)
    results["seconds"] = round(time.perf_counter() - started, 2)
    arrays: dict[str, Any] = {"models": list(losses), "contexts": contexts, "positions": at.t, "blocks": at.blocks}
    nll_ICP = losses_ICP[:, :, done_P].astype(np.float32)
    write_atomically(directory / "losses.npz", lambda path: np.savez_compressed(path, **arrays, nll=nll_ICP))
    write_json(directory / "recl.json", results, allow_nan=False)
    lines = write_report(results, directory)
    write_text(directory / "recl.html", page(results, losses, at.t, at.blocks, at.spell))
    log_results("recl", results, options, directory, line_series(results))
    if len(at.t) < asked:
        raise Stopped(f"stopped by SIGINT: {directory}/recl.md has {len(at.t):,} of {asked:,} positions", signal.SIGINT)
    return lines


def parts_of(members: list[Member], at: GroupText) -> int:
    """Return the number of parts, each of at least two blocks spread over the text, in which positions are read.

    A run that is interrupted keeps the parts that are complete. If they take long, it says how long.
    """
    tokens, seconds = [], 0.0
    for member in members:
        text, reader = at.of_member[member.name], member.reader
        seen = np.array([reader.visible(context) for context in at.in_tokens(member.name)])
        longest = min(int(seen.max()), len(text.tokens) - 1)
        tokens.append(len(at.t) * int(longest if reader.one_pass else seen.sum()))
        if tokens[-1] > PART_TOKENS:
            targets = np.arange(longest, len(text.tokens))[: reader.windows_at_once(longest)]
            started = time.perf_counter()
            window_losses(reader, text.tokens, targets, [longest])
            seconds += (time.perf_counter() - started) * tokens[-1] / (longest * len(targets))
    if seconds > LONG:
        about = f"about {timedelta(seconds=round(seconds))}"
        notice(f"{sum(tokens):,} tokens to read: {about}; Ctrl-C keeps what is complete")
    return max(1, min(sum(tokens) // PART_TOKENS, (int(at.blocks[-1]) + 1) // 2))


def checked_contexts(options: ReclOptions) -> list[int]:
    """Check the options and return the grid of contexts."""
    n_models, names, groups = len(references(options)), options.names, options.groups
    check_common_options(options)
    contexts: Sequence[int] | None = options.contexts
    first, most, step = options.first_context, options.max_context, options.step
    if contexts is None:
        contexts = range(first, most + 1, step)
        require(len(contexts) >= 2, "max_context", most, f"must be at least {first + step}: first_context + step")
        allowed = f"gives {len(contexts):,} contexts in steps of {step}, more than {MOST['contexts']:,}"
        require(len(contexts) <= MOST["contexts"], "max_context", most, allowed)
        if contexts[-1] < most:
            notice(f"max_context={most}: the grid ends at {contexts[-1]}, first_context + n·step")
    check_definition(contexts, options.fractions, options.threshold, options.bootstrap)
    named = names is None or (len(names) == len(set(names)) == n_models and all(names))
    require(named, "names", names, f"must be {n_models} different names, one per model")
    labelled = groups is None or (len(groups) == n_models and all(re.fullmatch(r"[\w.+-]+", label) for label in groups))
    require(labelled, "groups", groups, f"must be {n_models} labels of letters, digits and _.+-, one per model")
    return list(contexts)


def model_losses(member: Member, at: GroupText, options: ReclOptions) -> Array:
    """Return l(c, t), [C, P], in nats, of one model.

    Raises:
        OptionError: a loss is nan, below 0 by more than `ROUNDING`, or `LARGEST` or more.
    """
    text = at.of_member[member.name]
    with autocast(options.precision, device_of(member.reader.model)):
        if at.pieces is None:
            begins = text.document_begins(at.t)
            losses_CP = window_losses(member.reader, text.tokens, at.t, at.contexts, begins, progress=True)
        else:
            losses_CP = byte_losses(member.reader, text, at.pieces, at.t, at.contexts)
    allowed = f"has losses that are not -log P in 0 … {LARGEST:g} nats"
    member.require(bool(((losses_CP > -ROUNDING) & (losses_CP < LARGEST)).all()), allowed)
    return losses_CP


def byte_losses(
    reader: WindowReader, text: TokenizedText, pieces: Integers, positions: Integers, contexts: Sequence[int]
) -> Array:
    """Return l(c, t), [C, P], in nats per byte, for byte positions t and contexts of c bytes.

        l(c, t) = 1 / (b - a) · Σ_k -log P(x_k | tokens that begin at byte t - c or later, as far as x_{k-1})

    [a, b) is the piece that covers byte t, and x_k are its tokens: no tokenizer of the group has a token across a or
    b, so all models predict the same bytes. The context is cut to whole tokens, at byte t - c or after it. A model
    reads at least one token, also where the last one before the piece has more than c bytes.

    Args:
        reader: reader of the model.
        text: tokens of the model, with known starts.
        pieces: bounds of the pieces of a `GroupText`.
        positions: t.
        contexts: c, in bytes.

    Raises:
        UserError: a position is in the first piece, before which there is no token; or a piece has more tokens than
            the model can see.
    """
    starts, piece_P = text.known_starts, np.searchsorted(pieces, positions, side="right") - 1
    if len(piece_P) and piece_P.min() == 0:
        raise UserError(f"the tokenizers have no common bound in the first {pieces[1]} bytes of the text")
    first_P, stop_P = (np.searchsorted(starts, pieces[at]) for at in (piece_P, piece_P + 1))
    longest = int((stop_P - first_P).max(initial=0))
    if reader.visible(longest) < longest:
        raise UserError(f"the tokenizers have no common bound in {longest} tokens; a model sees only {reader.limit}")
    begins_CP = np.searchsorted(starts, positions - np.asarray(contexts)[:, None])
    shape, n_P = begins_CP.shape, stop_P - first_P
    begins, firsts, stops, n = (
        np.broadcast_to(of_P, shape).ravel() for of_P in (np.minimum(begins_CP, first_P - 1), first_P, stop_P, n_P)
    )
    ends = np.cumsum(n)
    targets = np.arange(ends[-1]) - np.repeat(ends - n - firsts, n)
    losses = read_windows(reader, text.tokens, np.repeat(begins, n), targets, np.repeat(stops - 1, n), progress=True)
    sums_CP: Array = np.add.reduceat(losses, ends - n).reshape(shape)
    return sums_CP / (pieces[piece_P + 1] - pieces[piece_P])


def _measure(options: ReclOptions, members: list[Member], losses: dict[str, Array], at: GroupText) -> dict[str, Any]:
    """Return the entries of `recl.json`, apart from the seconds."""
    # In bytes a limit of tokens caps the windows, not RECL.
    limits = {one.name: one.reader.limit if at.pieces is None else None for one in members}
    begins = np.max([of.document_begins(at.t) for of in at.of_member.values()], axis=0)
    given = {name: getattr(options, name) for name in ("context_unit", "fractions", "threshold", "bootstrap", "seed")}
    places, unit = (at.contexts, at.t, at.blocks), loss_unit(at.corpus["level"])
    results = group_results(losses, *places, unit, labels=options.groups, limits=limits, begins=begins, **given)
    for model, member in zip(results["models"], members, strict=True):
        model |= member.facts()
    results["positions"]["seed"] = options.position_seed
    given = {name: getattr(options, name) for name in ("split", "precision", "documents")}
    return {"schema_version": SCHEMA_VERSION, **results, **given, "corpus": at.corpus}


def write_report(results: dict[str, Any], directory: Path) -> list[str]:
    """Write the tables and the figures.

        recl.md                  losses and gains by context, Table 8, differences
        gains_*.svg|png          Figure 3, a file for each r and group
        contexts.svg|png         Figure 4
        differences.svg|png      loss minus that of the first model, if there are several

    Args:
        results: contents of `recl.json`.
        directory: folder for the files.

    Returns:
        Lines to print: the tables and their notes.
    """
    parts: list[Any] = [part for title, rows in tables(results).items() for part in (title, "", rows, "")]
    lines = write_markdown(directory / "recl.md", *parts, *notes(results))
    shared: dict[str, Any] = {"log_x": results["step"] is None}
    units, level = f"({results['context_unit']}s)", unit_name(results["corpus"]["level"])
    for panel, (x, curves, x_name, title) in line_series(results).items():
        drawn: Any = {name: [(x, y)] for name, y in curves.items()}
        if panel == results["unit"]:
            line_figure(directory / "contexts", drawn, f"{x_name} {units}", level, title, **shared)
        else:
            gain = "gain: exp f(c, c) − exp f(c, c') (perplexity)"
            line_figure(directory / panel, drawn, f"{x_name} {units}", gain, title, log_y=True, **shared)
    # Paired by position: variation of the text that both models share is not in the bands.
    first, x = results["models"][0]["name"], results["contexts"]
    paired = [one for one in results["differences"] if one["model"] == first]
    drawn = {one["minus"]: [(x, [-y for y in one["nll"]], one["nll_standard_error"])] for one in paired}
    if paired:
        names = ("difference of the loss (nats)", f"Loss minus that of {plain_text(first)} (± standard error)")
        line_figure(directory / "differences", drawn, f"context {units}", *names, **shared)
    return lines


def line_series(results: dict[str, Any]) -> dict[str, tuple[Sequence[float], dict[str, Any], str, str]]:
    """Return the curves of Figures 3 and 4: by panel, x, named curves, the name of x, a title.

    Figure 3 has the perplexity gains of each fraction of each group, and the gain that counts, threshold · exp f(c, c),
    equal for all models of a group.
    """
    contexts, unit, found, only = results["contexts"], results["unit"], dict[str, Any](), len(results["groups"]) == 1
    for group, r in product((group["name"] for group in results["groups"]), map(str, map(float, results["fractions"]))):
        of_group = {model["name"]: model["recl"][r] for model in results["models"] if model["group"] == group}
        curves = {name: length["perplexity_gains"] for name, length in of_group.items()}
        shortest = next(iter(of_group.values()))["perplexities"]
        curves["needed for a longer RECL"] = [results["threshold"] * perplexity for perplexity in shortest]
        title = f"Gain of more context, hardest {float(r):.0%} of positions" + ("" if only else f", {group}")
        found[f"gains_r{r}" if only else f"gains_{group}_r{r}"] = (contexts[:-1], curves, "c", title)
    losses = {model["name"]: model[unit] for model in results["models"]}
    return {**found, unit: (contexts, losses, "context", f"{unit_name(results['corpus']['level'])} by context")}
