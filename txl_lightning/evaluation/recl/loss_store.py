"""Measured losses in files: a store with one for each model, split and set of positions; one for a group."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from txl_lightning.errors import UserError
from txl_lightning.evaluation.recl.effective_context import Array
from txl_lightning.files import write_atomically

SCORING_VERSION = 2  # increase it when scoring changes: older files are then no longer found


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


def write_losses(
    path: Path, losses: Mapping[str, Array], contexts: Sequence[int], positions: np.ndarray, blocks: np.ndarray
) -> None:
    """Write the losses of a group to an .npz file.

    Arrays: `models` [I], `contexts` [C], `positions` [P], `blocks` [P], and `nll` [I, C, P] in nats, in float32.
    """
    content = io.BytesIO()
    np.savez_compressed(
        content,
        models=np.asarray(list(losses)),
        contexts=np.asarray(contexts),
        positions=positions,
        blocks=blocks,
        nll=np.stack(list(losses.values())).astype(np.float32),
    )
    write_atomically(path, lambda temporary: temporary.write_bytes(content.getvalue()))


def array_checksum(array: np.ndarray) -> str:
    """Return the SHA-256 of an array's dtype and numbers."""
    digest = hashlib.sha256(array.dtype.str.encode())
    digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()
