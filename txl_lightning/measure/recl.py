"""`txl recl`: score a group of models at equal positions and contexts, and derive their RECL (appendix C)."""

from __future__ import annotations

import re
import signal
import time
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import trange

from txl_lightning.config.lengths import tokens_per_step
from txl_lightning.data.corpus import WHOLE
from txl_lightning.distributed.ranks import all_gather, process_group, rank_and_world_size
from txl_lightning.errors import Stopped, UserError, notice, require
from txl_lightning.files import write_atomically, write_json, write_text
from txl_lightning.measure.commands import check_at_least_one, check_common_options, log_results
from txl_lightning.measure.comparison import group_results
from txl_lightning.measure.effective_context import check_definition, even_contexts
from txl_lightning.measure.group import GroupText, group_text, load_group, references
from txl_lightning.measure.loss_by_context import position_blocks
from txl_lightning.measure.losses import Array, Integers, WindowReader, device_of, read_windows, window_losses
from txl_lightning.measure.models import Member, TokenizedText, checked
from txl_lightning.measure.options import ReclOptions
from txl_lightning.measure.recl_page import page
from txl_lightning.measure.recl_report import line_series, write_report
from txl_lightning.runs.metrics import loss_unit
from txl_lightning.runs.threads_and_precision import autocast, chosen_precision, set_threads
from txl_lightning.runs.trained import is_other_text

SCHEMA_VERSION = 10  # of docs/recl.schema.json
PART_TOKENS, LONG = 200_000, 30  # seconds
LARGEST = 700.0  # nats; a perplexity of a larger loss would overflow
ROUNDING = 1e-3


@dataclass(frozen=True)
class Positions:
    """Positions t, [P], at which all models of a group are scored, their blocks, [P], and the grid of contexts."""

    text: GroupText
    t: Integers
    blocks: Integers
    contexts: list[int]

    def where(self, chosen_P: np.ndarray) -> Positions:
        """Return some of the positions."""
        return replace(self, t=self.t[chosen_P], blocks=self.blocks[chosen_P])

    def in_tokens(self, name: str) -> list[int]:
        """Return the contexts in tokens of a model: of contexts in bytes, the most tokens at any position."""
        if self.text.pieces is None:
            return self.contexts
        starts = self.text.of_member[name].known_starts
        ends_P = np.searchsorted(starts, self.t)
        return [max(1, int((ends_P - np.searchsorted(starts, self.t - c)).max())) for c in self.contexts]


def run(options: ReclOptions, directory: Path) -> list[str]:
    """Score the models; write `recl.json`, the table, the figures and the page.

    Under a launcher (torchrun) the windows are divided over the processes. Only the first one writes and returns lines.

    `losses.npz` has `models` [I], `contexts` [C], `positions` [P], `blocks` [P] and `nll` [I, C, P], in nats.

    Returns:
        Lines to print: the table and its notes.

    Raises:
        UserError: an option, a checkpoint, or the group is not usable.
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
        text = group_text(members, options, split)
        places = position_blocks(text.length, options.n_positions, contexts, options.position_seed)
        at = Positions(text, *places, contexts)
        members = [
            checked(one, text.of_member[one.name], at.in_tokens(one.name), options.n_positions) for one in members
        ]
        n_parts, parts, found = parts_of(members, at), list[Positions](), list[list[Array]]()
        try:
            for k in trange(n_parts, unit="part", leave=False, disable=None if n_parts > 1 else True):
                part = at.where(at.blocks % n_parts == k)
                found.append([model_losses(member, part, options) for member in members])
                parts.append(part)
        except KeyboardInterrupt:
            if not parts or rank_and_world_size()[1] > 1:
                raise
        if rank_and_world_size()[0] > 0:
            return []
    order, asked = np.argsort(np.concatenate([part.t for part in parts])), len(at.t)
    losses = {one.name: np.hstack(of)[:, order] for one, of in zip(members, zip(*found, strict=True), strict=True)}
    at = at.where(at.blocks % n_parts < len(parts))
    results = _measure(options, members, losses, at)
    results["seconds"] = round(time.perf_counter() - started, 2)
    arrays: dict[str, Any] = {"models": list(losses), "contexts": contexts, "positions": at.t, "blocks": at.blocks}
    nll_ICP = np.asarray(list(losses.values()), dtype=np.float32)
    write_atomically(directory / "losses.npz", lambda path: np.savez_compressed(path, **arrays, nll=nll_ICP))
    write_json(directory / "recl.json", results, allow_nan=False)
    lines = write_report(results, directory)
    write_text(directory / "recl.html", page(results, losses, at.t, at.blocks, at.text.spell))
    log_results("recl", results, options, directory, line_series(results))
    if len(at.t) < asked:
        raise Stopped(f"stopped by SIGINT: {directory}/recl.md has {len(at.t):,} of {asked:,} positions", signal.SIGINT)
    return lines


def parts_of(members: list[Member], at: Positions) -> int:
    """Return the number of parts, each of at least two blocks spread over the text, in which positions are read.

    What is complete when a run is interrupted is its parts. How long they take is said if it is long.
    """
    tokens, seconds = [], 0.0
    for member in members:
        text, reader = at.text.of_member[member.name], member.reader
        seen = np.array([reader.visible(context) for context in at.in_tokens(member.name)])
        longest = min(int(seen.max()), len(text.tokens) - 1)
        tokens.append(len(at.t) * int(longest if reader.one_pass else seen.sum()))
        if tokens[-1] > PART_TOKENS:
            targets = np.arange(longest, len(text.tokens))[: reader.windows_at_once(longest)]
            started = time.perf_counter()
            window_losses(reader, text.tokens, targets, [longest])
            seconds += (time.perf_counter() - started) * tokens[-1] / (longest * len(targets))
    if seconds > LONG:
        notice(
            f"{sum(tokens):,} tokens to read: about {timedelta(seconds=round(seconds))}; Ctrl-C keeps what is complete"
        )
    return max(1, min(sum(tokens) // PART_TOKENS, (int(at.blocks[-1]) + 1) // 2))


def checked_contexts(options: ReclOptions) -> list[int]:
    """Check the options and return the grid of contexts."""
    n_models, names, groups = len(references(options)), options.names, options.groups
    check_common_options(options)
    check_at_least_one(options, "first_context", "step")
    contexts, seed = options.contexts, options.position_seed
    if contexts is None:
        contexts = even_contexts(options.first_context, options.max_context, options.step)
        least = options.first_context + options.step
        require(
            len(contexts) >= 2, "max_context", options.max_context, f"must be at least {least}: first_context + step"
        )
        if contexts[-1] < options.max_context:
            notice(f"max_context={options.max_context}: the grid ends at {contexts[-1]}, first_context + n·step")
    check_definition(contexts, options.fractions, options.threshold, options.bootstrap)
    named = names is None or (len(names) == len(set(names)) == n_models and all(names))
    labelled = groups is None or (len(groups) == n_models and all(re.fullmatch(r"[\w.+-]+", label) for label in groups))
    rules = [
        ("names", named, f"must be {n_models} different names, one per model"),
        ("groups", labelled, f"must be {n_models} labels of letters, digits and _.+-, one per model"),
        ("context_unit", options.context_unit in ("token", "byte"), "must be one of token, byte"),
        ("tokenizer", options.tokenizer in ("auto", "json"), "must be one of auto, json"),
        ("documents", options.documents in ("respect", "ignore"), "must be one of respect, ignore"),
        ("n_positions", options.n_positions >= 2, "must be an integer >= 2 (for a standard error)"),
        ("position_seed", seed is None or seed >= 0, "must be null or an integer >= 0"),
    ]
    for name, right, allowed in rules:
        require(right, name, getattr(options, name), allowed)
    return list(contexts)


def model_losses(member: Member, at: Positions, options: ReclOptions) -> Array:
    """Return l(c, t), [C, P], in nats, of one model.

    Raises:
        OptionError: losses are nan, infinite or negative.
    """
    text = at.text.of_member[member.name]
    with autocast(options.precision, device_of(member.reader.model)):
        if at.text.pieces is None:
            begins = text.document_begins(at.t)
            losses_CP = window_losses(member.reader, text.tokens, at.t, at.contexts, begins, progress=True)
        else:
            losses_CP = byte_losses(member.reader, text, at.text.pieces, at.t, at.contexts)
    allowed = f"has losses that are not -log P in 0 … {LARGEST:g} nats"
    member.require(bool(((losses_CP > -ROUNDING) & (losses_CP < LARGEST)).all()), allowed)
    return losses_CP


def byte_losses(
    reader: WindowReader, text: TokenizedText, pieces: Integers, positions: Integers, contexts: list[int]
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


def _measure(options: ReclOptions, members: list[Member], losses: dict[str, Array], at: Positions) -> dict[str, Any]:
    """Return the entries of `recl.json`, apart from the seconds."""
    # In bytes a limit of tokens caps the windows, not RECL.
    limits = {one.name: one.reader.limit if at.text.pieces is None else None for one in members}
    begins = np.max([of.document_begins(at.t) for of in at.text.of_member.values()], axis=0)
    given = {name: getattr(options, name) for name in ("context_unit", "fractions", "threshold", "bootstrap", "seed")}
    unit = loss_unit(at.text.corpus["level"])
    results = group_results(
        losses, at.contexts, at.t, at.blocks, unit, labels=options.groups, limits=limits, begins=begins, **given
    )
    for model, member in zip(results["models"], members, strict=True):
        trained = member.trained
        model |= {
            "checkpoint": member.path,
            "sha256": member.checksum,
            "step": trained.step if trained else None,
            "tokens_trained": trained.step * tokens_per_step(trained.config) if trained else None,
            "kind": member.kind,
            "begin_of_text": member.begin_of_text,
            "scoring": "one pass" if member.reader.one_pass else "direct",
            "one_pass_difference": member.one_pass_difference,
            "limit": member.reader.limit,
            "clamp_len": member.clamp_len,
            "trained_len": member.trained_len,
        }
    results["positions"]["seed"] = options.position_seed
    given = {name: getattr(options, name) for name in ("split", "precision", "documents")}
    return {"schema_version": SCHEMA_VERSION, **results, **given, "corpus": at.text.corpus}
