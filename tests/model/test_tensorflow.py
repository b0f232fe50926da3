"""Checkpoints of the paper's TensorFlow code: its files and outputs, and other sizes and flags under its names."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.model.tiny_model import assert_close, random_stream, score_segments, tiny_model
from txl_lightning import TransformerXL
from txl_lightning.errors import CheckpointError, UserError
from txl_lightning.model.checkpoints import (
    from_huggingface,
    from_original,
    from_tensorflow,
    to_huggingface,
    to_original,
)
from txl_lightning.model.checkpoints.names import named_views
from txl_lightning.model.checkpoints.tensorflow import read_variables
from txl_lightning.model.inference.cached import CachedTransformerXL

REFERENCES = sorted((Path(__file__).parents[1] / "reference/tensorflow").iterdir())
SINGLE = {"rtol": 1e-5, "atol": 1e-5}  # their numbers have float32
FLAGS = {"mem_len": 5, "same_length": True, "clamp_len": -1}
SAME = {"extra_key": True, "memory_start": "zeros", "layer_norm_epsilon": 1e-12}


def tensorflow_like(**options: Any) -> TransformerXL:
    """A tiny model with the mask, start and epsilon of that code."""
    return tiny_model(vocab_size=30, **{**FLAGS, **SAME, **options})


def variables_of(model: TransformerXL) -> dict[str, np.ndarray]:
    """Variables of the TensorFlow graph by name."""
    variables = {}
    for names, view in named_views(model.state_dict(), model.config, "TensorFlow"):
        for name in names:
            variables[name] = view.numpy()
    return variables


@pytest.mark.parametrize(
    "only_lengths",
    [False, True],
    ids=["all flags", "lengths only"],
)
@pytest.mark.parametrize("reference", REFERENCES, ids=lambda path: path.name)
def test_files_losses_and_last_memory_are_those_of_tensorflow(reference, only_lengths):
    weights = dict(np.load(reference / "weights.npz"))
    found = read_variables(reference / "model.ckpt-0")
    assert found.keys() == weights.keys()
    for name, array in weights.items():
        np.testing.assert_array_equal(found[name], array, strict=True)
    outputs = {}
    for name, array in np.load(reference / "outputs.npz").items():
        outputs[name] = torch.from_numpy(array)
    flags = json.loads((reference / "config.json").read_text())
    segment_len = flags["tgt_len"]
    if only_lengths:
        flags = {name: flags[name] for name in FLAGS}
    model = from_tensorflow(found, flags).eval()
    nll, memory = score_segments(model, outputs["tokens"], segment_len)
    torch.testing.assert_close(nll, outputs["nll"], **SINGLE)
    torch.testing.assert_close(
        memory.states,
        outputs["memory"],
        **SINGLE,
    )


CUT = {"cutoffs": (6, 14)}
D = {"d_embed": 6}
NONE = {"tie_projections": "none"}
ALL = {"tie_projections": "all"}
DIVIDED = {**CUT, "div_val": 2}
VARIANTS = [
    {"untie_biases": True, "n_layer": 3, "clamp_len": 4},
    {"same_length": False, "clamp_len": 3},
    {"mem_len": 0},
    {**D, **ALL},
    CUT,
    {**CUT, **D, **NONE},
    {**CUT, **D, **ALL},
    DIVIDED,
    {**DIVIDED, **NONE},
    {**DIVIDED, **ALL},
]


def assert_read(variables: dict[str, np.ndarray], model: TransformerXL) -> None:
    """The variables make a model that computes what this one does, cached or not."""
    flags = {name: getattr(model.config, name) for name in FLAGS}
    read_model = from_tensorflow(variables, flags).eval()
    stream = random_stream(2, 12, model.config.vocab_size)
    with torch.no_grad():
        expected, expected_memory = score_segments(model, stream, 4)
        nll, memory = score_segments(read_model, stream, 4)
        cached, _ = score_segments(CachedTransformerXL(read_model), stream, 4)
    assert_close(
        [nll, memory.states, cached],
        [expected, expected_memory.states, expected],
    )


@pytest.mark.parametrize("options", VARIANTS, ids=str)
def test_other_sizes_and_flags(options):
    model = tensorflow_like(**options)
    assert_read(variables_of(model), model)


@torch.no_grad()
@pytest.mark.parametrize("tied", [NONE, ALL], ids=str)
def test_a_projection_of_equal_widths_may_be_left_out_and_is_the_identity(tied):
    model = tensorflow_like(**DIVIDED, **tied, untie_biases=True)
    model.embedding.projections[0].copy_(torch.eye(8))
    if "0" in model.softmax.projections:
        model.softmax.projections["0"].copy_(torch.eye(8))
    variables = variables_of(model)
    for name in ("adaptive_embed/cutoff_0/proj_W", "adaptive_softmax/cutoff_0/proj"):
        variables.pop(f"transformer/{name}", None)
    assert_read(variables, model)


def test_variables_of_the_optimizer_are_ignored():
    model = tensorflow_like()
    variables = variables_of(model)
    slots = {"global_step": np.array(7)}
    for name, value in variables.items():
        slots |= {
            f"{name}/Adam": value,
            f"{name}/Adam_1": value,
        }
    assert_read(slots | variables, model)


def test_what_is_missing_surplus_or_of_another_size_is_named():
    variables = variables_of(tensorflow_like())
    kernel = "transformer/layer_1/rel_attn/o/kernel"
    without = {name: value for name, value in variables.items() if name != kernel}
    for weights, flags, message in (
        (without, {}, f"it has no '{kernel}'"),
        ({"word_emb.weight": np.zeros(3)}, {}, "it has no 'transformer/r_w_bias'"),
        ({**variables, "transformer/r_w_bias": np.zeros(3)}, {}, r"r_w_bias has shape \[3\]"),
        ({**variables, "transformer/layer_0/gate/kernel": np.zeros(3)}, {}, "layer_0/gate/kernel"),
        (variables, {"mem_len": None}, "the config lacks mem_len"),
    ):
        with pytest.raises(CheckpointError, match=message) as caught:
            from_tensorflow(weights, {**FLAGS, **flags})
        assert "\n" not in str(caught.value)


def test_other_formats_keep_the_mask_and_the_epsilon():
    model = tensorflow_like()
    assert from_original(*to_original(model)).config == model.config
    with pytest.raises(CheckpointError, match="extra_key=True"):
        to_huggingface(model)
    plain = model.with_lengths(same_length=False, extra_key=False)
    assert from_huggingface(*to_huggingface(plain)).config == plain.config


def test_files_that_were_cut_short_or_are_missing_are_named(tmp_path):
    for path in REFERENCES[0].glob("model.ckpt-0.*"):
        shutil.copyfile(path, tmp_path / path.name)
    index = tmp_path / "model.ckpt-0.index"
    data = tmp_path / "model.ckpt-0.data-00000-of-00001"

    def refused(message):
        with pytest.raises(UserError, match=message):
            read_variables(tmp_path / "model.ckpt-0")

    content = index.read_bytes()
    for n in range(0, len(content), 13):
        index.write_bytes(content[:n])
        refused(r"ckpt-0.index: does not belong to a TensorFlow checkpoint, or was cut short$")
    index.write_bytes(content)
    data.write_bytes(data.read_bytes()[:-1])
    refused(r"was cut off: the file is too short")
    data.unlink()
    refused(r"data-00000-of-00001: cannot be read")
    index.unlink()
    refused(r"ckpt-0.index: cannot be read")
