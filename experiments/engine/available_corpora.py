"""Corpora of the trainings: present or not, and their checksums."""

from __future__ import annotations

import os
from pathlib import Path

from txl_lightning.config.schemas import DataConfig
from txl_lightning.data.corpus import load_corpus
from txl_lightning.errors import UserError

_present: dict[str, bool] = {}


def at_hand(config: DataConfig) -> bool:
    """Return whether a corpus can be loaded without a download.

    The answer is kept, so that the plan and the report of one call agree.
    """
    key = f"{config} {os.environ.get('TXL_DATA')}"
    if key not in _present:
        _present[key] = _is_present(config)
    return _present[key]


def corpus_checksum(config: DataConfig, planning: bool) -> str:
    """Return the SHA-256 of a corpus; a plan downloads nothing and takes "" for a corpus that is missing.

    Raises:
        UserError: the corpus is missing or damaged.
    """
    return "" if planning and not at_hand(config) else load_corpus(config).checksum


def _is_present(config: DataConfig) -> bool:
    if config.name not in ("python-stdlib", "file"):
        root = config.root or os.environ.get("TXL_DATA") or Path(config.cache_dir) / "downloads"
        if not (Path(root).expanduser() / config.name).is_dir():
            return False
    try:
        load_corpus(config)
    except UserError:  # incomplete or damaged
        return False
    return True
