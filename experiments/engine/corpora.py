"""Which corpora are there without fetching anything."""

from __future__ import annotations

import os
from pathlib import Path

from txl_lightning.config.schemas import DataConfig
from txl_lightning.data.corpora.corpus import load_corpus
from txl_lightning.errors import UserError

_decided: dict[str, bool] = {}


def at_hand(config: DataConfig) -> bool:
    """Whether a corpus is on this machine, whole or as far as it was asked for; decided once, for plan and report."""
    key = f"{config} {os.environ.get('TXL_DATA')}"
    if key not in _decided:
        _decided[key] = _is_there(config)
    return _decided[key]


def _is_there(config: DataConfig) -> bool:
    if config.name not in ("python-stdlib", "file"):
        root = config.root or os.environ.get("TXL_DATA") or Path(config.cache_dir) / "downloads"
        if not (Path(root).expanduser() / config.name).is_dir():
            return False
    try:
        load_corpus(config)
    except UserError:  # a part of it, or a damaged file
        return False
    return True
