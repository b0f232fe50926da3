"""Tokenizer of `data.level=bpe`: trained on the training split, or read from a file."""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from txl_lightning.config.schemas import DataConfig
from txl_lightning.data.corpora.cache import cache_key, cached
from txl_lightning.data.corpora.sources import Source
from txl_lightning.data.reading import Part, read, unpacked
from txl_lightning.data.vocabulary.byte_pairs import N_BYTES, train_byte_pairs
from txl_lightning.data.vocabulary.symbols import Vocabulary
from txl_lightning.errors import OptionError, UserError, require

VOCAB_SIZE = 8192


def check_tokenizer_options(config: DataConfig) -> None:
    """Check `data.vocab_size` and `data.tokenizer`.

    Raises:
        OptionError: one is given at another level than bpe, both are given, or the vocabulary is smaller than 256.
    """
    size, file = config.vocab_size, config.tokenizer
    if config.level != "bpe":
        require(size is None, "data.vocab_size", size, f"is for data.level=bpe, not {config.level}")
        require(file is None, "data.tokenizer", file, f"is for data.level=bpe, not {config.level}")
    require(size is None or file is None, "data.vocab_size", size, "must not be given together with data.tokenizer")
    require(size is None or size >= N_BYTES, "data.vocab_size", size, f"must be an integer >= {N_BYTES}, the bytes")


def tokenizer_vocabulary(config: DataConfig, source: Source, checksum: str) -> Vocabulary:
    """Read `data.tokenizer`, or train `data.vocab_size` tokens on the training split and cache the tokenizer.

    Raises:
        OptionError: the file is not a byte-level tokenizer, or the training split is too short for so many tokens.
    """
    if config.tokenizer is not None:
        try:
            return Vocabulary.of_tokenizer(Path(config.tokenizer).expanduser().read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            raise OptionError("data.tokenizer", config.tokenizer, f"cannot be read ({error})") from error
        except UserError as error:
            raise OptionError("data.tokenizer", config.tokenizer, str(error)) from error
    size = VOCAB_SIZE if config.vocab_size is None else config.vocab_size
    key = cache_key(checksum, "byte pairs", size)
    train = partial(_train, source.parts["train"], size)
    return Vocabulary.of_tokenizer(cached(Path(config.cache_dir).expanduser(), key, train)[1]["tokenizer"])


def _train(parts: list[Part], size: int, folder: Path) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        try:
            return {"tokenizer": train_byte_pairs(read(unpacked(parts, Path(scratch))), size)}
        except UserError as error:
            raise OptionError("data.vocab_size", size, str(error)) from error
