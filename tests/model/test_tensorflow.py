"""Weights of the paper's TensorFlow code: its own outputs, and other sizes and flags under its names."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.model.tensorflow_model import FLAGS, tensorflow_like, variables_of
from tests.model.tiny_model import random_stream, score_segments
from txl_lightning import TransformerXL
from txl_lightning.model.checkpoints import (
    from_huggingface,
    from_original,
    from_tensorflow,
    to_huggingface,
    to_original,
)
from txl_lightning.model.checkpoints.formats import CheckpointError
from txl_lightning.model.inference.cached import CachedTransformerXL

REFERENCES = sorted((Path(__file__).parents[1] / "reference/tensorflow").iterdir())
CLOSE = {"rtol": 0, "atol": 1e-9}
SINGLE = {"rtol": 1e-5, "atol": 1e-5}  # their numbers have float32


def read(reference: Path) -> tuple[dict, dict[str, np.ndarray], dict[str, torch.Tensor]]:
    """Flags, variables and outputs."""
    outputs = {name: torch.from_numpy(array) for name, array in np.load(reference / "outputs.npz").items()}
    return json.loads((reference / "config.json").read_text()), dict(np.load(reference / "weights.npz")), outputs


@pytest.mark.parametrize("only_lengths", [False, True], ids=["all flags", "lengths only"])
@pytest.mark.parametrize("reference", REFERENCES, ids=lambda path: path.name)
def test_losses_and_last_memory_are_those_of_tensorflow(reference, only_lengths):
    flags, weights, outputs = read(reference)
    model = from_tensorflow(weights, {name: flags[name] for name in FLAGS} if only_lengths else flags)
    nll, memory = score_segments(model.eval(), outputs["tokens"], flags["tgt_len"])
    torch.testing.assert_close(nll, outputs["nll"], **SINGLE)
    torch.testing.assert_close(memory.states, outputs["memory"], **SINGLE)


CUT, D = {"cutoffs": (6, 14)}, {"d_embed": 6}
NONE, ALL, DIVIDED = {"tie_projections": "none"}, {"tie_projections": "all"}, {**CUT, "div_val": 2}
VARIANTS: list[dict] = [
    {"untie_biases": True, "n_layer": 3, "clamp_len": 4},
    {"same_length": False, "clamp_len": 3},
    {"mem_len": 0},
    {**D, **ALL},
    CUT,
    *({**CUT, **D, **tied} for tied in (NONE, ALL)),
    *({**DIVIDED, **tied} for tied in ({}, NONE, ALL)),
]


def assert_read(variables: dict[str, np.ndarray], model: TransformerXL) -> None:
    """The variables make a model that computes what this one does, cached or not."""
    read_model = from_tensorflow(variables, {name: getattr(model.config, name) for name in FLAGS}).eval()
    stream = random_stream(2, 12, model.config.vocab_size)
    with torch.no_grad():
        expected, expected_memory = score_segments(model, stream, 4)
        nll, memory = score_segments(read_model, stream, 4)
        cached, _ = score_segments(CachedTransformerXL(read_model), stream, 4)
    torch.testing.assert_close(nll, expected, **CLOSE)
    torch.testing.assert_close(memory.states, expected_memory.states, **CLOSE)
    torch.testing.assert_close(cached, expected, **CLOSE)


@pytest.mark.parametrize("options", VARIANTS, ids=str)
def test_other_sizes_and_flags(options):
    model = tensorflow_like(**options)
    assert_read(variables_of(model), model)


@torch.no_grad()
@pytest.mark.parametrize("options", [{**CUT, **D}, DIVIDED], ids=str)
def test_clusters_may_be_tied_in_any_pattern(options):
    model = tensorflow_like(**options, **NONE)
    variables = variables_of(model)
    for i in (0, 2):
        model.softmax.projections[str(i)].copy_(model.embedding.projection(i))
        del variables[f"transformer/adaptive_softmax/cutoff_{i}/proj"]
    assert_read(variables, model)


@torch.no_grad()
@pytest.mark.parametrize("tied", [NONE, ALL], ids=str)
def test_a_projection_of_equal_widths_may_be_left_out_and_is_the_identity(tied):
    model = tensorflow_like(**DIVIDED, **tied, untie_biases=True)
    for projection in (model.embedding.projections[0], *(p for i, p in model.softmax.projections.items() if i == "0")):
        projection.copy_(torch.eye(8))
    left_out = "transformer/adaptive_embed/cutoff_0/proj_W", "transformer/adaptive_softmax/cutoff_0/proj"
    assert_read({name: value for name, value in variables_of(model).items() if name not in left_out}, model)


def test_cutoffs_of_corpus_info_have_both_ends():
    variables = variables_of(tensorflow_like(**CUT, **D))
    config = from_tensorflow(variables, {**FLAGS, "cutoffs": [0, 6, 14, 30], "n_token": 30, "tie_weight": True}).config
    assert config == from_tensorflow(variables, {**FLAGS, "cutoffs": [6, 14]}).config
    assert config == from_tensorflow(variables, FLAGS).config
    assert (config.cutoffs, config.tie_projections) == ((6, 14), "all_but_first")


def test_names_with_an_output_number_and_variables_of_the_optimizer():
    model = tensorflow_like()
    variables = variables_of(model)
    slots = {f"{name}/{slot}": value for name, value in variables.items() for slot in ("Adam", "Adam_1")}
    others = {"global_step": np.array(7), "beta1_power": np.array(0.9)}
    assert_read({f"{name}:0": value for name, value in {**slots, **others, **variables}.items()}, model)


@pytest.mark.parametrize(("dtype", "expected"), [("float16", "float32"), ("bfloat16", "float32"), ("float32",) * 2])
def test_half_precision_becomes_single_precision(dtype, expected):
    variables = variables_of(tensorflow_like())
    weights = {name: torch.tensor(value, dtype=getattr(torch, dtype)) for name, value in variables.items()}
    table = from_tensorflow(weights, FLAGS).embedding.tables[0]
    assert table.dtype == getattr(torch, expected)
    assert torch.equal(table, weights["transformer/adaptive_embed/lookup_table"].to(table.dtype))


def test_what_is_missing_surplus_or_of_another_size_is_named():
    variables, cut = variables_of(tensorflow_like()), variables_of(tensorflow_like(**CUT))
    kernel = "transformer/layer_1/rel_attn/o/kernel"
    without = {name: value for name, value in variables.items() if name != kernel}
    for weights, flags, message in (
        (without, {}, f"it has no '{kernel}'"),
        ({"word_emb.weight": np.zeros(3)}, {}, "it has no 'transformer/r_w_bias'"),
        ({**variables, "transformer/r_w_bias": np.zeros(3)}, {}, r"r_w_bias has shape \[3\]"),
        ({**variables, "transformer/layer_0/gate/kernel": np.zeros(3)}, {}, "layer_0/gate/kernel"),
        (variables, {"n_token": 31}, "n_token=31: the variables of the checkpoint say 30"),
        (variables, {"untie_r": True}, "untie_r=True: the variables of the checkpoint say False"),
        (cut, {"cutoffs": [7, 14]}, r"cutoffs=\[7, 14\]: .* say \[6, 14\]"),
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
