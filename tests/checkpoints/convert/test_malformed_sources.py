"""Damaged or wrong sources of `txl convert`: one line with the source and what is wrong."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.checkpoints.convert.test_convert_command import convert_with
from tests.training.small_run import trained
from txl_lightning.errors import OptionError

QKV = "layers.0.dec_attn.qkv_net.weight"


def convert(**options: Any) -> None:
    convert_with(*(f"{name}={value}" for name, value in options.items()))


@pytest.fixture
def original(tmp_path: Path) -> Path:
    checkpoint = trained("trainer.max_steps=1") / "run/checkpoints/last.ckpt"
    formats = {"source_format": "txl", "target_format": "original"}
    convert(source=checkpoint, target=tmp_path / "there", **formats)
    return tmp_path / "there"


def refused(source: Path, **options: Any) -> str:
    """Return the line that ends a conversion; it writes nothing."""
    target = source.parent / "back.ckpt"
    formats = {"source_format": "original", "target_format": "txl"}
    with pytest.raises(OptionError) as caught:
        convert(source=source, target=target, **formats, **options)
    assert not target.exists()
    assert "\n" not in str(caught.value)
    return str(caught.value)


WEIGHTS = [
    (lambda x: x * torch.nan, rf"has weights that are not finite ({QKV})"),
    (lambda x: x.int(), "has numbers of type torch.int32"),
    (lambda x: torch.tensor(1.0), "has shape []"),
]


@pytest.mark.parametrize(("change", "words"), WEIGHTS)
def test_weights(original, change, words):
    path = original / "model.safetensors"
    weights = load_file(path)
    weights[QKV] = change(weights[QKV]).contiguous()
    save_file(weights, path)
    assert re.match(rf"source={original}: .*{re.escape(words)}", refused(original))


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"n_layer": "two"}, "n_layer=two: must be of type int"),
        ({"d_inner": 10**18}, "fits into no memory"),
        ({"cutoffs": 3}, "cutoffs=3: must be a list"),
        ({"vocab_size": None}, "the config lacks vocab_size"),
    ],
)
def test_config(original, changed, words):
    path = original / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changed}))
    assert re.match(rf"source={original}: .*{re.escape(words)}", refused(original))


@pytest.mark.parametrize("size", [0, -1])
def test_a_safetensors_file_that_was_cut(original, size):
    path = original / "model.safetensors"
    path.write_bytes(path.read_bytes()[:size])
    assert refused(original).startswith(f"source={path}: cannot be read: it is cut short")


def test_an_empty_vocabulary(original):
    path = original / "vocab"
    path.write_text("\n\n")
    words = refused(original, vocabulary=path, **{"data.level": "byte"})
    assert words == f"vocabulary={path}: has no symbols"
