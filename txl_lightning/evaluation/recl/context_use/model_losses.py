"""All losses of one model of a group: by context, with the far context altered, and by position in a window."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from txl_lightning.errors import require
from txl_lightning.evaluation.language_models.byte_losses import byte_losses
from txl_lightning.evaluation.recl.context_use.far_context import (
    DROP,
    doubling_contexts,
    far_context_losses,
    loss_increases,
)
from txl_lightning.evaluation.recl.context_use.loss_by_position import binned_by_position, position_losses
from txl_lightning.evaluation.recl.effective_context import Array
from txl_lightning.evaluation.recl.group import Member
from txl_lightning.evaluation.recl.group_text import GroupText
from txl_lightning.evaluation.recl.loss_store import LossStore, StoredScoring, array_checksum
from txl_lightning.evaluation.recl.options import ReclOptions
from txl_lightning.evaluation.scoring.device import device_of
from txl_lightning.evaluation.scoring.loss_grid import loss_grid
from txl_lightning.runs.bfloat16 import autocast

Integers = NDArray[np.int64]

LARGEST = 700.0  # nats; a perplexity of a larger loss would overflow
ROUNDING = 1e-3
FLOAT32_POSITIONS = 50  # scored in float32 too, to state what bfloat16 changes


@dataclass(frozen=True)
class ScoredPositions:
    """Positions and contexts at which all models of a group are scored.

    Args:
        text: text of the group.
        positions: t.
        blocks: block of each position.
        contexts: the grid of c.
        altered: contexts beyond which tokens are altered.
        windows: indices of the positions that end the windows for the loss by position.
    """

    text: GroupText
    positions: Integers
    blocks: Integers
    contexts: list[int]
    altered: list[int]
    windows: list[int]


@dataclass(frozen=True)
class ModelLosses:
    """Losses of one model, in nats.

    Args:
        losses_CP: l(c, t).
        scored: positions scored now; the store had the others.
        increases_KP: increase of the loss by an ablation beyond each altered context, by ablation.
        by_position_TW: loss by position in a window; None if it is not measured.
        float32_CP: l(c, t) in float32 at the first positions; None if all losses are in float32.
    """

    losses_CP: Array
    scored: int
    increases_KP: dict[str, Array]
    by_position_TW: Array | None
    float32_CP: Array | None


def scored_positions(
    text: GroupText, positions: Integers, blocks: Integers, contexts: list[int], options: ReclOptions
) -> ScoredPositions:
    """Choose the contexts of ablations, and the windows for the loss by position: none in bytes."""
    altered = doubling_contexts(contexts) if options.ablation_contexts is None else options.ablation_contexts
    number = min(options.position_windows, len(positions)) if text.pieces is None else 0
    windows = [i * len(positions) // number for i in range(number)]
    return ScoredPositions(text, positions, blocks, contexts, altered, windows)


def model_losses(member: Member, at: ScoredPositions, options: ReclOptions) -> ModelLosses:
    """Score all losses of one model that are not stored.

    Raises:
        OptionError: losses are nan, infinite or negative.
    """
    scoring = StoredScoring(member.name, LossStore(Path(options.store).expanduser()), _key(member, at.text, options))
    reader, text, pieces = member.reader, at.text.of_member[member.name], at.text.pieces
    batch_tokens, device = options.batch_tokens, device_of(member.reader.model)
    precision = partial(autocast, options.precision, device)

    def grid(here: Integers, chosen: str = options.precision) -> Array:
        with autocast(chosen, device):
            if pieces is None:
                return loss_grid(reader, text.tokens, here, at.contexts, batch_tokens)
            return byte_losses(reader, text, pieces, here, at.contexts, batch_tokens)

    losses_CP, scored = scoring.losses(grid, at.contexts, at.positions, at.blocks)
    in_range = bool(((losses_CP > -ROUNDING) & (losses_CP < LARGEST)).all())
    allowed = f"has losses that are not -log P in 0 … {LARGEST:g} nats"
    allowed += ": try dtype=float32" if options.dtype == "float16" and member.outside else ""
    require(in_range, member.option, member.path, allowed)
    longest = at.contexts[-1]  # a part of the keys: grids with the same positions can have windows of other lengths
    rows = [*at.altered, longest]

    def altered(ablation: str, here: Integers) -> Array:
        with precision():
            return far_context_losses(reader, text, here, rows, ablation, options.seed, pieces, batch_tokens)

    increases = {}
    for ablation in options.ablations:
        if ablation == DROP:
            losses_RP = losses_CP[np.searchsorted(at.contexts, rows)]
        else:
            key = {"ablation": ablation, "seed": options.seed, "longest": longest}
            losses_RP, _ = scoring.losses(partial(altered, ablation), rows, at.positions, at.blocks, **key)
        increases[ablation] = losses_RP[:-1] - losses_RP[-1]

    def by_position(ends: Integers) -> Array:
        with precision():
            return position_losses(reader, text.tokens, ends, longest, batch_tokens)

    by_position_TW = None
    if at.windows:
        ends, blocks, places = at.positions[at.windows], at.blocks[at.windows], range(1, 1 + reader.visible(longest))
        by_position_TW, _ = scoring.losses(by_position, places, ends, blocks, by="position", longest=longest)
    float32_CP = None
    if options.precision != "32-true":
        exact = partial(grid, chosen="32-true")
        positions, blocks = at.positions[:FLOAT32_POSITIONS], at.blocks[:FLOAT32_POSITIONS]
        float32_CP, _ = scoring.losses(exact, at.contexts, positions, blocks, precision="32-true")
    return ModelLosses(losses_CP, scored, increases, by_position_TW, float32_CP)


def _key(member: Member, text: GroupText, options: ReclOptions) -> dict[str, Any] | None:
    """Return everything that the losses of a model depend on; None if they are not stored."""
    if member.checksum is None:
        return None
    key = {
        "checkpoint": member.checksum,
        "split": options.split,
        "tokens": array_checksum(text.of_member[member.name].tokens),
        "clamp_len": member.clamp_len,
        "segment_len": member.reader.segment_len,
        "precision": options.precision,
    }
    if member.outside:
        key["limit"] = member.reader.limit
    if text.pieces is None:
        return key
    starts = text.of_member[member.name].starts
    assert starts is not None
    return {**key, "pieces": array_checksum(text.pieces), "starts": array_checksum(starts)}


def context_use(losses: ModelLosses, at: ScoredPositions) -> dict[str, Any]:
    """Return the entries of a model in `recl.json` for the precision, the ablations and the loss by position."""
    far = {ablation: loss_increases(of_KP, at.blocks) for ablation, of_KP in losses.increases_KP.items()}
    losses_TW = losses.by_position_TW
    return {
        "positions_scored": losses.scored,
        "float32_difference": _float32_difference(losses),
        "far_context": {"contexts": at.altered, "ablations": far} if far else None,
        "loss_by_position": None if losses_TW is None else binned_by_position(losses_TW, at.blocks[at.windows]),
    }


def _float32_difference(losses: ModelLosses) -> dict[str, Any] | None:
    """Return the mean loss minus that in float32, over all contexts and the first positions."""
    if losses.float32_CP is None:
        return None
    n_positions = losses.float32_CP.shape[1]
    difference_CP = losses.losses_CP[:, :n_positions] - losses.float32_CP
    return {"nll": float(difference_CP.mean()), "positions": n_positions}


def further_arrays(losses: Mapping[str, ModelLosses], at: ScoredPositions) -> dict[str, np.ndarray]:
    """Return further arrays of `losses.npz`, in nats: of the ablations and by position; empty without either.

    Arrays: `ablations` [A], `ablation_contexts` [K], `ablation_increase` [I, A, K, P], and `nll_by_position` [I, T, W],
    with nan beyond the tokens that a model sees.
    """
    further: dict[str, np.ndarray] = {}
    ablations = list(next(iter(losses.values())).increases_KP)
    if ablations:
        further["ablations"], further["ablation_contexts"] = np.asarray(ablations), np.asarray(at.altered)
        increases = [list(of_model.increases_KP.values()) for of_model in losses.values()]
        further["ablation_increase"] = np.asarray(increases, dtype=np.float32)
    by_position = [m.by_position_TW for m in losses.values() if m.by_position_TW is not None]
    if by_position:
        T = max(map(len, by_position))
        padded = [np.pad(x_TW, ((0, T - len(x_TW)), (0, 0)), constant_values=np.nan) for x_TW in by_position]
        further["nll_by_position"] = np.asarray(padded, dtype=np.float32)
    return further
