"""Damaged or wrong sources of `txl convert`: one line with the source and what is wrong."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf
from safetensors.torch import load_file, save_file

from tests.checkpoints.convert.test_convert_command import composed
from tests.training.small_run import trained
from txl_lightning.errors import OptionError
from txl_lightning.evaluation.convert import run

QKV = "layers.0.dec_attn.qkv_net.weight"


def convert(**options: Any) -> None:
    words = [f"{name}={value}" for name, value in options.items()]
    run(
        OmegaConf.to_object(OmegaConf.merge(composed(), OmegaConf.from_dotlist(words))),
        Path(),
    )


@pytest.fixture
def original(tmp_path: Path) -> Path:
    checkpoint = trained("trainer.max_steps=1") / "run/checkpoints/last.ckpt"
    convert(
        source=checkpoint, source_format="txl", target=tmp_path / "there", target_format="original"
    )
    return tmp_path / "there"


def refused(source: Path, **options: Any) -> str:
    target = source.parent / "back.ckpt"
    with pytest.raises(OptionError) as caught:
        convert(
            source=source, source_format="original", target=target, target_format="txl", **options
        )
    assert (target.exists(), "\n" in str(caught.value)) == (False, False)
    return str(caught.value)


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        (QKV, lambda x: x * torch.nan, rf"has weights that are not finite ({QKV})"),
        (QKV, lambda x: x.int(), "has numbers of type torch.int32"),
        (QKV, lambda x: torch.tensor(1.0), "has shape []"),
    ],
)
def test_weights(original, name, change, words):
    weights = load_file(original / "model.safetensors")
    save_file(
        {**weights, name: change(weights[name]).contiguous()},
        original / "model.safetensors",
    )
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
