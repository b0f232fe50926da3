"""Losses by context of one model of a group, kept in a store."""

from __future__ import annotations

import hashlib
import io
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from txl_lightning.distributed.ranks import all_gather, rank_and_world_size
from txl_lightning.errors import UserError, require
from txl_lightning.files import expand, write_atomically
from txl_lightning.measure.recl.effective_context import Array
from txl_lightning.measure.recl.options import ReclOptions
from txl_lightning.measure.scoring.group import GroupText
from txl_lightning.measure.scoring.models import Member
from txl_lightning.measure.scoring.token_losses import device_of
from txl_lightning.measure.scoring.tokenized_text import byte_losses, byte_spans
from txl_lightning.measure.scoring.windows import Integers, expected_seconds, loss_grid, shared_windows
from txl_lightning.runs.bfloat16 import autocast

SCORING_VERSION = 2  # increase it when scoring changes: older files are then no longer found
STORED_PARTS = 10  # of the blocks of a model
LARGEST = 700.0  # nats; a perplexity of a larger loss would overflow
ROUNDING = 1e-3
LEAST_TOKENS, LEAST_SECONDS = 1 << 16, 5  # of a cost that is stated
FLOAT32_POSITIONS = 50  # scored in float32 too, to state what bfloat16 changes


@dataclass(frozen=True)
class LossStore:
    """Losses of one model on disk; the name of a file is a hash of everything its losses depend on.

    Args:
        directory: folder of the files, made when the first is written.
        model: name of the model, shown while it is scored.
        key: plain values that all losses of the model depend on; None if they are not to be stored.
    """

    directory: Path
    model: str
    key: Mapping[str, Any] | None

    def losses(
        self,
        score: Callable[[Integers], Array],
        rows: Sequence[int],
        positions: Integers,
        blocks: Integers,
        before: Callable[[Integers], None] | None = None,
        **further: Any,
    ) -> tuple[Array, int]:
        """Return losses, [R, P], and the number of positions scored now; the store has the others.

        A tenth of the blocks is scored and stored at a time, so an interrupted command resumes after the last tenth.

        Args:
            score: returns the losses, [R, p], at some of the positions.
            rows: number of each row, such as its context.
            positions: t, of P targets.
            blocks: block of each position, ascending from 0.
            before: called by the first rank with the positions that are to be scored, if there are any.
            further: values that these losses depend on, beside the key of the model.

        Raises:
            UserError: a file is damaged, or the directory cannot be written.
        """
        key = {**(self.key or {}), "positions": array_checksum(positions), **further}
        rank, _ = rank_and_world_size()
        # Only the first rank reads the store: another rank could read it after the first has written to it.
        keeps = rank == 0 and self.key is not None
        stored = all_gather(self.read(key) if keeps else {})[0]
        unknown = np.full(len(positions), np.nan)
        losses_RP = np.stack([stored.get(row, unknown) for row in rows])
        missing_P = np.isnan(losses_RP).any(axis=0)
        missing = np.unique(blocks[missing_P])
        if before and rank == 0 and len(missing):
            before(positions[missing_P])
        at_once = -(-int(blocks[-1] + 1) // STORED_PARTS)
        starts = range(0, len(missing), at_once)
        for start in tqdm(starts, desc=self.model, unit="part", disable=True if rank else None, leave=False):
            here = np.isin(blocks, missing[start : start + at_once])
            losses_RP[:, here] = score(positions[here])
            if keeps:
                self.write(key, rows, losses_RP)
        return losses_RP, int(missing_P.sum())

    def path(self, key: Mapping[str, Any]) -> Path:
        """Return the file of a key."""
        text = json.dumps({**key, "version": SCORING_VERSION}, sort_keys=True)
        return self.directory / f"{hashlib.sha256(text.encode()).hexdigest()[:32]}.npz"

    def read(self, key: Mapping[str, Any]) -> dict[int, Array]:
        """Return the stored losses, [P], by row, nan where not scored yet; an empty dictionary if there are none."""
        path = self.path(key)
        if not path.is_file():
            return {}
        try:
            with path.open("rb") as opened, np.load(opened, allow_pickle=False) as file:
                return dict(zip(file["contexts"].tolist(), file["losses"], strict=True))
        except Exception as error:  # zip, zlib and numpy have no common error for a damaged file
            raise UserError(f"store={self.directory}: {path.name} is damaged; delete it") from error

    def write(self, key: Mapping[str, Any], rows: Sequence[int], losses_RP: Array) -> None:
        """Store losses, atomically."""
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            written = {"contexts": np.asarray(rows), "losses": losses_RP, "key": np.asarray(json.dumps(key))}
            write_arrays(self.path(key), np.savez, written)
        except OSError as error:
            raise UserError(f"store={self.directory}: losses cannot be stored: {error}") from error


def write_arrays(path: Path, save: Callable[..., None], arrays: Mapping[str, np.ndarray]) -> None:
    """Write an .npz file atomically with `np.savez` or `np.savez_compressed`."""
    content = io.BytesIO()
    save(content, **arrays)
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
        n_cut: number of positions whose document has fewer tokens before them than the longest context.
    """

    text: GroupText
    positions: Integers
    blocks: Integers
    contexts: list[int]
    n_cut: int = 0


def scored_positions(text: GroupText, positions: Integers, blocks: Integers, contexts: list[int]) -> ScoredPositions:
    """Count the positions whose document begins within the longest context."""
    begins = np.max([of.document_begins(positions) for of in text.of_member.values()], axis=0)
    return ScoredPositions(text, positions, blocks, contexts, int((positions - contexts[-1] < begins).sum()))


def model_losses(member: Member, at: ScoredPositions, options: ReclOptions) -> tuple[Array, dict[str, Any]]:
    """Score all losses of one model that are not stored.

    Returns:
        l(c, t), [C, P], in nats, and entries of `recl.json`: positions that were scored now, and precision.

    Raises:
        OptionError: losses are nan, infinite or negative.
    """
    store = LossStore(expand(options.store), member.name, _key(member, at.text, options))
    reader, text, pieces = member.reader, at.text.of_member[member.name], at.text.pieces
    device = device_of(member.reader.model)

    def grid(here: Integers, precision: str = options.precision) -> Array:
        with autocast(precision, device):
            if pieces is None:
                return loss_grid(reader, text.tokens, here, at.contexts, text.document_begins(here))
            return byte_losses(reader, text, pieces, here, at.contexts)

    def state_cost(here: Integers) -> None:
        with autocast(options.precision, device):
            _state_cost(member, at, here)

    losses_CP, scored = store.losses(grid, at.contexts, at.positions, at.blocks, state_cost)
    in_range = bool(((losses_CP > -ROUNDING) & (losses_CP < LARGEST)).all())
    allowed = f"has losses that are not -log P in 0 … {LARGEST:g} nats"
    allowed += ": try dtype=float32" if options.dtype == "float16" and not member.trained else ""
    require(in_range, member.option, member.path, allowed)
    entry: dict[str, Any] = {"positions_scored": scored, "float32_difference": None}
    if options.precision != "32-true":
        n, exact = FLOAT32_POSITIONS, partial(grid, precision="32-true")
        exact_CP, _ = store.losses(exact, at.contexts, at.positions[:n], at.blocks[:n], precision="32-true")
        difference = float((losses_CP[:, :n] - exact_CP).mean())
        entry["float32_difference"] = {"nll": difference, "positions": exact_CP.shape[1]}
    return losses_CP, entry


def _state_cost(member: Member, at: ScoredPositions, positions: Integers) -> None:
    """Print what will be read to score some positions, and how long it takes, if that is more than a few seconds."""
    reader, text = member.reader, at.text.of_member[member.name]
    if at.text.pieces is None:
        visible = np.unique([reader.visible(c) for c in at.contexts])
        ends, begins = positions, np.maximum(positions - visible[:, None], text.document_begins(positions))
    else:
        begins, firsts, stops, _ = byte_spans(text, at.text.pieces, positions, at.contexts)
        ends, begins = stops - 1, reader.visible_begins(begins, firsts, stops)
    ends = np.broadcast_to(ends, begins.shape)
    lengths = shared_windows(begins.ravel(), ends.ravel())[1] if reader.one_pass else (ends - begins).ravel()
    if lengths.sum() >= LEAST_TOKENS:
        seconds = expected_seconds(reader, text.tokens, lengths) / rank_and_world_size()[1]
        if seconds >= LEAST_SECONDS:
            time = f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:,.0f} min"
            read = f"{len(lengths):,} windows, {lengths.sum():,} tokens"
            print(f"{member.name}: {read} to read, about {time}", file=sys.stderr, flush=True)


def _key(member: Member, text: GroupText, options: ReclOptions) -> dict[str, Any] | None:
    """Return everything that the losses of a model depend on; None if they are not stored."""
    if member.checksum is None:
        return None
    tokens = text.of_member[member.name]
    key = {
        "checkpoint": member.checksum,
        "split": options.split,
        "tokens": array_checksum(tokens.tokens),
        "clamp_len": member.clamp_len,
        "segment_len": member.reader.segment_len,
        "precision": options.precision,
        **({} if member.trained else {name: getattr(member.reader, name) for name in ("limit", "one_pass")}),
    }
    if tokens.documents is not None:
        key["documents"] = array_checksum(tokens.documents)
    if text.pieces is not None:
        key |= {"pieces": array_checksum(text.pieces), "starts": array_checksum(tokens.known_starts)}
    return key


def loss_arrays(losses: Mapping[str, Array], at: ScoredPositions) -> dict[str, np.ndarray]:
    """Return the arrays of `losses.npz`: `models` [I], `contexts` [C], `positions` [P], `blocks` [P], `nll` [I, C, P].

    Losses are in nats, in float32.
    """
    arrays = {"models": list(losses), "contexts": at.contexts, "positions": at.positions, "blocks": at.blocks}
    nll = np.asarray(list(losses.values()), dtype=np.float32)
    return {name: np.asarray(values) for name, values in {**arrays, "nll": nll}.items()}
