"""All losses of one model of a group: by context, with the far context altered, and by position; kept in a store."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from txl_lightning.distributed.ranks import all_gather, rank_and_world_size
from txl_lightning.errors import UserError, require
from txl_lightning.evaluation.language_models.tokenized_text import byte_losses
from txl_lightning.evaluation.recl.effective_context import Array
from txl_lightning.evaluation.recl.far_context import (
    DROP,
    doubling_contexts,
    far_context_losses,
    loss_increases,
)
from txl_lightning.evaluation.recl.group import GroupText, Member
from txl_lightning.evaluation.recl.loss_by_context import binned_by_position, position_losses
from txl_lightning.evaluation.recl.options import ReclOptions
from txl_lightning.evaluation.scoring.token_losses import device_of
from txl_lightning.evaluation.scoring.windows import Integers, loss_grid
from txl_lightning.files import write_atomically
from txl_lightning.runs.bfloat16 import autocast

SCORING_VERSION = 2  # increase it when scoring changes: older files are then no longer found
STORED_PARTS = 10  # of the blocks of a model
LARGEST = 700.0  # nats; a perplexity of a larger loss would overflow
ROUNDING = 1e-3
FLOAT32_POSITIONS = 50  # scored in float32 too, to state what bfloat16 changes


@dataclass(frozen=True)
class LossStore:
    """Losses l(c, t) on disk; the name of a file is a hash of everything its losses depend on.

    Args:
        directory: folder of the files, made when the first is written.
        option: option that names the folder, for errors.
    """

    directory: Path
    option: str = "store"

    def path(self, key: Mapping[str, Any]) -> Path:
        """Return the file of a key: plain values such as checkpoint, corpus, split, positions and lengths."""
        text = json.dumps({**key, "version": SCORING_VERSION}, sort_keys=True)
        return self.directory / f"{hashlib.sha256(text.encode()).hexdigest()[:32]}.npz"

    def read(self, key: Mapping[str, Any]) -> dict[int, Array]:
        """Return the stored losses, [P], by context, nan where not scored yet; an empty dictionary if there are none.

        Raises:
            UserError: the file is damaged.
        """
        path = self.path(key)
        if not path.is_file():
            return {}
        try:
            with np.load(io.BytesIO(path.read_bytes()), allow_pickle=False) as file:
                return dict(zip(file["contexts"].tolist(), file["losses"], strict=True))
        except Exception as error:  # zip, zlib and numpy have no common error for a damaged file
            raise UserError(f"{self.option}={self.directory}: {path.name} is damaged; delete it") from error

    def write(self, key: Mapping[str, Any], losses: Mapping[int, Array]) -> None:
        """Store losses by context, atomically.

        Raises:
            UserError: the directory cannot be written.
        """
        contexts = sorted(losses)
        content = io.BytesIO()
        stacked = np.stack([losses[context] for context in contexts])
        np.savez(content, contexts=np.asarray(contexts), losses=stacked, key=np.asarray(json.dumps(dict(key))))
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            write_atomically(self.path(key), lambda temporary: temporary.write_bytes(content.getvalue()))
        except OSError as error:
            raise UserError(f"{self.option}={self.directory}: losses cannot be stored: {error}") from error


@dataclass(frozen=True)
class StoredScoring:
    """Scoring of one model, which leaves out what the store has.

    Args:
        name: name of the model.
        store: store of losses.
        key: everything that all losses of the model depend on; None if they are not to be stored.
    """

    name: str
    store: LossStore
    key: Mapping[str, Any] | None

    def losses(
        self,
        score: Callable[[Integers], Array],
        rows: Sequence[int],
        positions: Integers,
        blocks: Integers,
        **key: Any,
    ) -> tuple[Array, int]:
        """Return losses, [R, P], and the number of positions scored now; the store has the others.

        A tenth of the blocks is scored and stored at a time, so an interrupted command resumes after the last tenth.

        Args:
            score: returns the losses, [R, p], at some of the positions.
            rows: number of each row, such as its context.
            positions: t, of P targets.
            blocks: block of each position, ascending from 0.
            key: further values that these losses depend on.
        """
        rank, _ = rank_and_world_size()
        key = {**(self.key or {}), "positions": array_checksum(positions), **key}
        # Only the first rank reads the store: another rank could read it after the first has written to it.
        keeps = rank == 0 and self.key is not None
        stored = all_gather(self.store.read(key) if keeps else {})[0]
        unknown = np.full(len(positions), np.nan)
        losses_RP = np.stack([stored.get(row, unknown) for row in rows])
        missing_P = np.isnan(losses_RP).any(axis=0)
        missing = np.unique(blocks[missing_P])
        at_once = -(-int(blocks[-1] + 1) // STORED_PARTS)
        starts = range(0, len(missing), at_once)
        for start in tqdm(starts, desc=self.name, unit="part", disable=True if rank else None, leave=False):
            here = np.isin(blocks, missing[start : start + at_once])
            losses_RP[:, here] = score(positions[here])
            if keeps:
                self.store.write(key, dict(zip(rows, losses_RP, strict=True)))
        return losses_RP, int(missing_P.sum())


def write_losses(
    path: Path,
    losses: Mapping[str, Array],
    contexts: Sequence[int],
    positions: np.ndarray,
    blocks: np.ndarray,
    further: Mapping[str, np.ndarray],
) -> None:
    """Write the losses of a group to an .npz file.

    Arrays: `models` [I], `contexts` [C], `positions` [P], `blocks` [P], and `nll` [I, C, P] in nats, in float32;
    `further` ones by name.
    """
    content = io.BytesIO()
    arrays: dict[str, Any] = {
        "models": np.asarray(list(losses)),
        "contexts": np.asarray(contexts),
        "positions": positions,
        "blocks": blocks,
        "nll": np.stack(list(losses.values())).astype(np.float32),
    }
    arrays |= further
    np.savez_compressed(content, **arrays)
    write_atomically(path, lambda temporary: temporary.write_bytes(content.getvalue()))


def array_checksum(array: np.ndarray) -> str:
    """Return the SHA-256 of an array's dtype and numbers."""
    digest = hashlib.sha256(array.dtype.str.encode())
    digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


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
