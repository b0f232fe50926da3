"""`txl recl`: score a group of models at equal positions and contexts, and derive their RECL (appendix C)."""

from __future__ import annotations

import hashlib
import json
import re
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from txl_lightning.config.lengths import tokens_per_step
from txl_lightning.data.corpus import WHOLE
from txl_lightning.errors import OptionError, UserError, require
from txl_lightning.files import expand, write_atomically, write_json
from txl_lightning.measure.commands import check_at_least_one, check_common_options
from txl_lightning.measure.effective_context import (
    check_definition,
    even_contexts,
    relative_effective_context_lengths,
)
from txl_lightning.measure.group import GroupText, group_text, load_group, references
from txl_lightning.measure.loss_by_context import (
    context_gains,
    key_tokens,
    loss_differences,
    mean_and_error,
    position_blocks,
)
from txl_lightning.measure.losses import Array, Integers, WindowReader, device_of, read_windows, window_losses
from txl_lightning.measure.models import Member, TokenizedText, checked
from txl_lightning.measure.options import ReclOptions
from txl_lightning.measure.recl_report import write_report
from txl_lightning.runs.metrics import errors_by_unit, loss_metrics, loss_unit
from txl_lightning.runs.threads_and_precision import autocast, chosen_precision, set_threads
from txl_lightning.runs.trained import is_other_text

SCHEMA_VERSION = 8  # of docs/recl.schema.json
CITATION = "RECL: Dai et al. 2019, Transformer-XL, appendix C (arXiv:1901.02860); measured with txl_lightning"
DOUBLING = "doubling"
SCORING_VERSION = 3  # increase it when scoring changes: older files of the store are then no longer found
STORED_PARTS = 10  # of the blocks of a model
LARGEST = 700.0  # nats; a perplexity of a larger loss would overflow
ROUNDING = 1e-3


@dataclass(frozen=True)
class Positions:
    """Positions t, [P], at which all models of a group are scored, their blocks, [P], and the grid of contexts."""

    text: GroupText
    t: Integers
    blocks: Integers
    contexts: list[int]


def run(options: ReclOptions, directory: Path) -> list[str]:
    """Score the losses that are not stored yet; write `recl.json`, the table and the figures.

    `losses.npz` has `models` [I], `contexts` [C], `positions` [P], `blocks` [P] and `nll` [I, C, P], in nats.

    Returns:
        Lines to print: the table and its notes.

    Raises:
        UserError: an option, a checkpoint, or the group is not usable.
    """
    contexts = _check_options(options)
    options = replace(options, precision=chosen_precision(options.precision, options.accelerator))
    started = time.perf_counter()
    members = load_group(options)
    trained = [member.trained for member in members if member.trained]
    set_threads(options.num_threads, *trained)
    split = options.split or (WHOLE if is_other_text(options.data_path, trained) else "test")
    options = replace(options, split=split)
    text = group_text(members, options)
    limits = [member.reader.limit or contexts[-1] for member in members]
    if max(limits) < contexts[-1] and text.pieces is None and not all(member.trained for member in members):
        allowed = f"must be at most {max(limits)}, the tokens that {members[limits.index(max(limits))].path} can see"
        raise OptionError("max_context", contexts[-1], allowed)
    members = [checked(member, text.of_member[member.name]) for member in members]
    at = Positions(text, *position_blocks(text.length, options.n_positions, contexts, options.position_seed), contexts)
    losses, scored = {}, {}
    for member in members:
        losses[member.name], scored[member.name] = model_losses(member, at, options)
    results = _measure(options, members, losses, scored, at)
    results["seconds"] = round(time.perf_counter() - started, 2)
    write_json(directory / "recl.json", results, allow_nan=False)
    arrays = {"models": list(losses), "contexts": contexts, "positions": at.t, "blocks": at.blocks}
    nll_ICP = np.asarray(list(losses.values()), dtype=np.float32)
    write_atomically(directory / "losses.npz", partial(_save, np.savez_compressed, {**arrays, "nll": nll_ICP}))
    return write_report(results, directory, options)


def _check_options(options: ReclOptions) -> list[int]:
    """Check the options and return the grid of contexts."""
    n_models, names, groups, keys = len(references(options)), options.names, options.groups, options.key_contexts
    check_common_options(options)
    check_at_least_one(options, "first_context", "step", "batch_tokens")
    contexts, seed = _grid(options), options.position_seed
    check_definition(contexts, options.fractions, options.threshold, options.bootstrap)
    named = names is None or (len(names) == len(set(names)) == n_models and all(names))
    labelled = groups is None or (len(groups) == n_models and all(re.fullmatch(r"[\w.+-]+", label) for label in groups))
    two_of_grid = keys is None or (len(keys) == 2 and keys[0] < keys[1] and set(keys) <= set(contexts))
    rules = [
        ("names", named, f"must be {n_models} different names, one per model"),
        ("groups", labelled, f"must be {n_models} labels of letters, digits and _.+-, one per model"),
        ("context_unit", options.context_unit in ("token", "byte"), "must be one of token, byte"),
        ("documents", options.documents in ("respect", "ignore"), "must be one of respect, ignore"),
        ("n_positions", options.n_positions >= 2, "must be an integer >= 2 (for a standard error)"),
        ("position_seed", seed is None or seed >= 0, "must be null or an integer >= 0"),
        ("key_gain", options.key_gain > 0, "must be above 0"),
        ("key_contexts", two_of_grid, "must be two contexts of the grid, ascending"),
    ]
    for name, right, allowed in rules:
        require(right, name, getattr(options, name), allowed)
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


def model_losses(member: Member, at: Positions, options: ReclOptions) -> tuple[Array, int]:
    """Return l(c, t), [C, P], in nats, of one model, and the number of positions scored now: the store has the others.

    A tenth of the blocks is scored and stored at a time, so an interrupted command resumes after the last tenth.

    Raises:
        UserError: losses are nan, infinite or negative, a file of the store is damaged, or it cannot be written.
    """
    text, n_parts = at.text.of_member[member.name], STORED_PARTS
    path = _stored_path(member, at, options)
    stored = None if path is None else _read(path)
    losses_CP = np.full((len(at.contexts), len(at.t)), np.nan) if stored is None else stored
    missing_P = np.isnan(losses_CP).any(axis=0)
    missing, at_once = np.unique(at.blocks[missing_P]), -(-int(at.blocks[-1] + 1) // n_parts)
    if len(missing):
        begins = (at.t[missing_P] - np.asarray(at.contexts)[:, None]).ravel()
        n = len(np.unique(begins)) if member.reader.one_pass else len(begins)
        print(
            f"{member.name}: {n:,} windows of up to {at.contexts[-1]} {options.context_unit}s",
            file=sys.stderr,
            flush=True,
        )
    for start in range(0, len(missing), at_once):
        here = np.isin(at.blocks, missing[start : start + at_once])
        with autocast(options.precision, device_of(member.reader.model)):
            if at.text.pieces is None:
                begins = text.document_begins(at.t[here])
                part_CP = window_losses(member.reader, text.tokens, at.t[here], at.contexts, begins)
            else:
                part_CP = byte_losses(member.reader, text, at.text.pieces, at.t[here], at.contexts)
        losses_CP[:, here] = part_CP
        if path is not None:
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                write_atomically(path, partial(_save, np.savez, {"losses": losses_CP}))
            except OSError as error:
                raise UserError(f"store={path.parent}: losses cannot be stored: {error}") from error
    allowed = f"has losses that are not -log P in 0 … {LARGEST:g} nats"
    allowed += ": try dtype=float32" if options.dtype == "float16" and not member.trained else ""
    member.require(bool(((losses_CP > -ROUNDING) & (losses_CP < LARGEST)).all()), allowed)
    return losses_CP, int(missing_P.sum())


def _stored_path(member: Member, at: Positions, options: ReclOptions) -> Path | None:
    """Return the file of a model's losses, named by all that they depend on; None if they are not stored."""
    if member.checksum is None:
        return None
    text, reader = at.text.of_member[member.name], member.reader
    arrays = (text.tokens, text.starts, text.documents, at.text.pieces, at.t, np.asarray(at.contexts))
    checksums = [None if array is None else f"{array.dtype.str} {_sha256(array)}" for array in arrays]
    lengths = [member.clamp_len, reader.segment_len, reader.limit, reader.one_pass]
    key = [SCORING_VERSION, member.checksum, options.split, options.precision, *lengths, *checksums]
    return expand(options.store) / f"{hashlib.sha256(json.dumps(key).encode()).hexdigest()[:32]}.npz"


def _sha256(array: np.ndarray) -> str:
    return hashlib.sha256(np.ascontiguousarray(array).data).hexdigest()


def _read(path: Path) -> Array | None:
    if not path.is_file():
        return None
    try:
        with path.open("rb") as opened, np.load(opened, allow_pickle=False) as file:
            losses_CP: Array = file["losses"]
            return losses_CP
    except Exception as error:  # zip, zlib and numpy have no common error for a damaged file
        raise UserError(f"store={path.parent}: {path.name} is damaged; delete it") from error


def _save(save: Callable[..., None], arrays: Mapping[str, Any], path: Path) -> None:
    with path.open("wb") as file:  # numpy would change the suffix of a path
        save(file, **arrays)


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
    losses = read_windows(reader, text.tokens, np.repeat(begins, n), targets, np.repeat(stops - 1, n))
    sums_CP: Array = np.add.reduceat(losses, ends - n).reshape(shape)
    return sums_CP / (pieces[piece_P + 1] - pieces[piece_P])


def _measure(
    options: ReclOptions, members: list[Member], losses: dict[str, Array], scored: dict[str, int], at: Positions
) -> dict[str, Any]:
    """Return the entries of `recl.json`, apart from the seconds."""
    level, unit = at.text.corpus["level"], loss_unit(at.text.corpus["level"])
    # In bytes a limit of tokens caps the windows, not RECL.
    in_tokens = at.text.pieces is None
    labels = dict(zip(losses, options.groups or ["all"] * len(losses), strict=True))
    groups = {label: [name for name in labels if labels[name] == label] for label in dict.fromkeys(labels.values())}
    definition: dict[str, Any] = {
        name: getattr(options, name) for name in ("fractions", "threshold", "bootstrap", "seed")
    }
    given: dict[str, Any] = {
        "limits": {one.name: one.reader.limit if in_tokens else None for one in members},
        "blocks": at.blocks,
    }
    lengths = {}
    for names in groups.values():
        own = {name: losses[name] for name in names}
        for name, found in relative_effective_context_lengths(own, at.contexts, **given, **definition).items():
            lengths[name] = {str(float(r)): dict(vars(length)) for r, length in found.items()}
    key: dict[str, Any] = {
        "key_contexts": options.key_contexts or [at.contexts[0], at.contexts[-1]],
        "key_gain": options.key_gain,
    }
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
                "positions_scored": scored[member.name],
                "nll": nll,
                "nll_standard_error": error,
                unit: [loss_metrics(value, level)[unit] for value in nll],
                f"{unit}_standard_error": [errors_by_unit(*pair, level)[unit] for pair in zip(error, nll, strict=True)],
                **context_gains(losses_CP, at.contexts, at.blocks),
                "key_tokens": key_tokens(losses_CP, at.contexts, at.t, **key) if in_tokens else None,
                "group": labels[member.name],
                "recl": lengths[member.name],
            }
        )
    steps = set(np.diff(at.contexts).tolist())
    begins = np.max([of.document_begins(at.t) for of in at.text.of_member.values()], axis=0)
    return {
        "schema_version": SCHEMA_VERSION,
        "citation": CITATION,
        "unit": unit,
        "contexts": at.contexts,
        "first_context": at.contexts[0],
        "step": steps.pop() if len(steps) == 1 else None,
        **{name: getattr(options, name) for name in ("split", "context_unit", "precision", "documents")},
        **definition,
        **key,
        "models": models,
        "differences": loss_differences(losses, at.blocks),
        "groups": [{"name": label, "models": names} for label, names in groups.items()],
        "corpus": at.text.corpus,
        "positions": {
            "seed": options.position_seed,
            "number": len(at.t),
            "blocks": int(at.blocks[-1]) + 1,
            "first": int(at.t[0]),
            "last": int(at.t[-1]),
            "cut": int((at.t - at.contexts[-1] < begins).sum()),
        },
    }
