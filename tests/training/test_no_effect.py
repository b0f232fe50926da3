"""Options that another option makes irrelevant are named."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.training.small_run import tiny_config
from txl_lightning.training.checks import options_without_effect


@pytest.mark.parametrize(
    ("overrides", "sentences"),
    [
        ("", []),
        ("memory=off", []),
        ("memory.start=zeros", []),
        ("memory=off memory.start=zeros", ["memory.start=zeros has no effect: there is no memory"]),
        ("memory=compressive memory.rate=2", []),
        ("memory.rate=2", ["memory.rate=2 has no effect: only memory=compressive compresses states"]),
        ("encoding=shaw encoding.table_len=9", []),
        ("encoding.table_len=9", ["encoding.table_len=9 has no effect: encoding=relative has no table"]),
        ("model=lstm encoding=rope", ["encoding=rope has no effect: model=lstm has no attention"]),
        ("model=lstm memory.start=zeros", ["memory.start=zeros has no effect: model=lstm has no attention"]),
        ("data=enwik8 data.newlines=kept", []),
        ("data.newlines=kept", ["data.newlines=kept has no effect: it is for data=enwik8"]),
        ("data=file data.path=a data.document_start=b memory.reset=document", []),
        (
            "data=file data.path=a data.document_start=b",
            ["data.document_start=b has no effect: only memory.reset=document reads it"],
        ),
        ("resume=auto initial_weights=a", []),
        ("resume=b initial_weights=a", ["initial_weights=a has no effect: resume has weights too"]),
    ],
)
def test_options_without_effect_are_named(tmp_path: Path, overrides: str, sentences: list[str]) -> None:
    assert options_without_effect(tiny_config(tmp_path, *overrides.split())) == sentences
