"""Measured losses in files: a store with one for each model, split and set of positions; one for a group."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from txl_lightning.distributed.ranks import all_gather, rank_and_world_size
from txl_lightning.errors import UserError
from txl_lightning.evaluation.recl.effective_context import Array
from txl_lightning.files import write_atomically

SCORING_VERSION = 2  # increase it when scoring changes: older files are then no longer found
STORED_PARTS = 10  # of the blocks of a model


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
        score: Callable[[NDArray[np.int64]], Array],
        rows: Sequence[int],
        positions: NDArray[np.int64],
        blocks: NDArray[np.int64],
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
