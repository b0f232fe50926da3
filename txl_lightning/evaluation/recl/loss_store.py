"""Losses that were measured once: a file for each model, split and set of positions."""

from __future__ import annotations

import hashlib
import io
import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from txl_lightning.errors import UserError
from txl_lightning.evaluation.recl.effective_context import Array

SCORING_VERSION = 1


@dataclass(frozen=True)
class LossStore:
    """l(c, t) on disk, in files named after everything that the losses depend on.

    Args:
        directory: where the files are; made when the first is written.
        option: what the directory is called in errors.
    """

    directory: Path
    option: str = "store"

    def path(self, key: Mapping[str, Any]) -> Path:
        """The file for what `key` describes (plain values: checkpoint, corpus, split, positions, lengths).

        A change of the scoring itself changes `SCORING_VERSION`, and with it every name.
        """
        text = json.dumps({**key, "version": SCORING_VERSION}, sort_keys=True)
        return self.directory / f"{hashlib.sha256(text.encode()).hexdigest()[:32]}.npz"

    def read(self, key: Mapping[str, Any]) -> dict[int, Array]:
        """Losses [P] by context; nothing if none were stored.

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
        """Store losses by context, whole or not at all: the file has another name until it is complete.

        Raises:
            UserError: the directory cannot be written.
        """
        contexts = sorted(losses)
        content = io.BytesIO()
        stacked = np.stack([losses[context] for context in contexts])
        np.savez(content, contexts=np.asarray(contexts), losses=stacked, key=np.asarray(json.dumps(dict(key))))
        path = self.path(key)
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=self.directory, prefix=f".{path.name}.", delete=False) as file:
                try:
                    file.write(content.getvalue())
                    file.flush()
                    os.fsync(file.fileno())
                    os.replace(file.name, path)
                except BaseException:
                    os.unlink(file.name)
                    raise
        except OSError as error:
            raise UserError(f"{self.option}={self.directory}: losses cannot be stored: {error}") from error


def file_checksum(path: str | Path) -> str:
    """SHA-256 of a file's content."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


def array_checksum(array: np.ndarray) -> str:
    """SHA-256 of an array's numbers and their type."""
    digest = hashlib.sha256(array.dtype.str.encode())
    digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()
