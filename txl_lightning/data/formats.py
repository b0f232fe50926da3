"""Formats of files: the suffix, or `data.format`, names one. Contents are looked at only to refuse a file.

`tests/docs/test_data_page.py` runs every line of the table in docs/data.md.
"""

from __future__ import annotations

import re
from pathlib import Path

from txl_lightning.config.schemas import FileData
from txl_lightning.data.sources import BOM, UNPACK, first_bytes
from txl_lightning.errors import require

TEXT_SUFFIXES = """
    txt text md rst org tex bib tokens raw log srt vtt html htm xml svg css js ts jsx tsx java c h cc cpp hpp
    cu cs go rs rb php pl sh lua r jl m swift kt scala hs ml clj lisp el sql py pyi yaml yml toml ini cfg abc fasta fa
"""
FORMAT_OF = {f".{suffix}": "text" for suffix in TEXT_SUFFIXES.split()} | {
    "": "text",
    ".ndjson": "jsonl",
}
FORMATS_OF_TEXT = ("text", "jsonl", "json", "csv", "tsv", "parquet", "arrow")
FORMATS_OF_IDS = ("npy", "bin", "raw", "jsonl", "json", "parquet", "arrow")
# First bytes of a file that is no text, and what to do.
NO_TEXT = {
    rb"version https://git-lfs\.github\.com/spec/": "a pointer of Git LFS: git lfs pull",
    rb"\xff\xfe|\xfe\xff": "UTF-16: iconv -f UTF-16 -t UTF-8 FILE",
    rb"\x1f\x8b|BZh\d1AY|\xfd7zXZ|\x28\xb5\x2f\xfd": "compressed: name it FILE.gz, .bz2, .xz or .zst",
    rb"(?s:.*\0)": "binary; data.level=byte data.format=text reads any bytes, data.level=ids token ids",
}
LIKE_JSON = re.compile(rb'\s*(\[\s*)?\{\s*"')


def formats_of(level: str) -> tuple[str, ...]:
    """Return the names that `data.format` may have at a level."""
    return FORMATS_OF_IDS if level == "ids" else FORMATS_OF_TEXT


def format_of(path: Path, config: FileData) -> str:
    """Return the format of a file: `data.format`, else its suffix's; nothing if neither is one of the level."""
    formats = formats_of(config.level)
    if config.format is not None:
        allowed = f"must be one of {', '.join(formats)}"
        require(config.format in formats, "data.format", config.format, allowed)
        return config.format
    if path.suffix.lower() in UNPACK:
        path = path.with_suffix("")
    suffix = path.suffix.lower()
    name = FORMAT_OF.get(suffix, suffix.removeprefix("."))
    return name if name in formats and name != "raw" else ""


def check_text(path: Path, config: FileData) -> bytes:
    """Refuse a file that is no text, or has records; `data.format=text` says that it is text.

    Returns:
        its first bytes.

    Raises:
        OptionError: it is no text, or `data.column` is given.
    """
    head = first_bytes(path)
    is_sure = config.format == "text"
    if not (is_sure and config.level == "byte"):
        for pattern, what in NO_TEXT.items():
            is_text = re.match(pattern, head) is None
            require(is_text, "data.path", path, f"must be a text, not {what}")
    others = "data.format=jsonl or json reads its records, data.format=text its characters"
    is_text = is_sure or LIKE_JSON.match(head.removeprefix(BOM)) is None
    require(is_text, "data.path", path, f"begins like JSON; {others}")
    allowed = f"must be null for {path}: it is text"
    require(config.column is None, "data.column", config.column, allowed)
    return head
