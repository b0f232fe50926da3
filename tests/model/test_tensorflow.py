"""Weights of the paper's TensorFlow code: its own outputs, and a naive version of it for other sizes and flags."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.covering import product_of
from tests.model.tensorflow_model import FLAGS, naive_losses, random_variables
from tests.model.tiny_model import random_stream, score_segments
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
LENGTHS = ("mem_len", "same_length", "clamp_len")
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
    model = from_tensorflow(weights, {name: flags[name] for name in LENGTHS} if only_lengths else flags)
    nll, memory = score_segments(model.eval(), outputs["tokens"], flags["tgt_len"])
    torch.testing.assert_close(nll, outputs["nll"], **SINGLE)
    torch.testing.assert_close(memory.states, outputs["memory"], **SINGLE)


@pytest.mark.parametrize("reference", REFERENCES, ids=lambda path: path.name)
def test_the_naive_version_is_the_tensorflow_code(reference):
    flags, weights, outputs = read(reference)
    weights = {name: weight.astype(np.float64) for name, weight in weights.items()}
    nll, memory = naive_losses(weights, flags, outputs["tokens"][:1], flags["tgt_len"])
    torch.testing.assert_close(nll, outputs["nll"][:1].double(), **SINGLE)
    torch.testing.assert_close(memory, outputs["memory"][:, :1].double(), **SINGLE)


CUT = {"cutoffs": [6, 14], "tie_projs": [False, True, True]}
NONE, ALL = {"tie_projs": [False] * 3}, {"tie_projs": [True] * 3}
VARIANTS = [
    {},
    {"untie_r": True, "n_layer": 3, "clamp_len": 4},
    {"same_length": False, "clamp_len": 3},
    {"mem_len": 0},
    {"d_embed": 6},
    CUT,
    {**CUT, **NONE, "d_embed": 6},
    {**CUT, **ALL, "d_embed": 6},
    {**CUT, "tie_projs": [True, False, True], "d_embed": 6},
    {**CUT, "div_val": 2},
    {**CUT, **NONE, "div_val": 2},
    {**CUT, **ALL, "div_val": 2},
    {**CUT, "tie_projs": [True, False, True], "div_val": 2, "untie_r": True},
    {**CUT, **NONE, "div_val": 2, "proj_same_dim": False, "untie_r": True},
    {**CUT, **ALL, "div_val": 2, "proj_same_dim": False},
    {"cutoffs": [10], "tie_projs": [False, False], "div_val": 4, "proj_same_dim": False},
]


@pytest.mark.parametrize(("options", "only_lengths"), product_of(VARIANTS, [False, True]))
def test_losses_and_memory_of_other_sizes_and_flags(options, only_lengths):
    flags = {**FLAGS, **options}
    variables, stream = random_variables(flags), random_stream(2, 12, flags["n_token"])
    model = from_tensorflow(variables, {name: flags[name] for name in LENGTHS} if only_lengths else flags).eval()
    expected, expected_memory = naive_losses(variables, flags, stream, 4)
    nll, memory = score_segments(model, stream, 4)
    torch.testing.assert_close(nll, expected, **CLOSE)
    torch.testing.assert_close(memory.states, expected_memory, **CLOSE)
    with torch.no_grad():
        cached, _ = score_segments(CachedTransformerXL(model), stream, 4)
    torch.testing.assert_close(cached, expected, **CLOSE)


def test_the_flags_of_the_scripts_and_of_corpus_info_are_understood():
    flags = {**FLAGS, **CUT, "d_embed": 6}
    script = {**flags, "cutoffs": [0, 6, 14, 30], "proj_share_all_but_first": True, "tie_weight": True}
    del script["tie_projs"]
    without_cutoffs = {name: value for name, value in script.items() if name != "cutoffs"}
    variables = random_variables(flags)
    model, other = from_tensorflow(variables, flags), from_tensorflow(variables, script)
    assert other.config == from_tensorflow(variables, without_cutoffs).config == model.config
    assert model.config.tie_projections == "all_but_first"
    flags = {**flags, **NONE}
    unshared = {**script, "proj_share_all_but_first": False}
    assert from_tensorflow(random_variables(flags), unshared).config.tie_projections == "none"


def test_names_with_an_output_number_and_variables_of_the_optimizer():
    variables = random_variables(FLAGS)
    slots = {f"{name}/{slot}": value for name, value in variables.items() for slot in ("Adam", "Adam_1")}
    others = {"global_step": np.array(7), "beta1_power": np.array(0.9), "beta2_power": np.array(0.999)}
    model = from_tensorflow({f"{name}:0": value for name, value in {**slots, **others, **variables}.items()}, FLAGS)
    expected = from_tensorflow(variables, FLAGS).state_dict()
    assert all(torch.equal(tensor, expected[name]) for name, tensor in model.state_dict().items())


def test_half_precision_becomes_single_precision_and_others_stay():
    variables = random_variables(FLAGS)
    for dtype, expected in (
        (torch.float16, torch.float32),
        (torch.bfloat16, torch.float32),
        (torch.float32, torch.float32),
        (torch.float64, torch.float64),
    ):
        weights = {name: torch.tensor(value, dtype=dtype) for name, value in variables.items()}
        model = from_tensorflow(weights, FLAGS)
        assert {parameter.dtype for parameter in model.parameters()} == {expected}
        assert torch.equal(model.embedding.tables[0], weights["transformer/adaptive_embed/lookup_table"].to(expected))


def test_what_is_missing_surplus_or_of_another_size_is_named():
    variables = random_variables(FLAGS)
    kernel = "transformer/layer_1/rel_attn/o/kernel"
    without = {name: value for name, value in variables.items() if name != kernel}
    cases = [
        (without, FLAGS, f"it has no '{kernel}'"),
        ({"word_emb.weight": np.zeros(3)}, FLAGS, "it has no 'transformer/r_w_bias'"),
        ({**variables, "transformer/r_w_bias": np.zeros(3)}, FLAGS, r"r_w_bias has shape \[3\]"),
        ({**variables, "transformer/layer_0/gate/kernel": np.zeros(3)}, FLAGS, "layer_0/gate/kernel"),
        (variables, {**FLAGS, "n_token": 31}, "n_token=31: the variables of the checkpoint say 30"),
        (variables, {**FLAGS, "n_layer": 1}, "n_layer=1: the variables of the checkpoint say 2"),
        (variables, {**FLAGS, "untie_r": True}, "untie_r=True: the variables of the checkpoint say False"),
        (random_variables({**FLAGS, **CUT}), {**FLAGS, "cutoffs": [7, 14]}, r"cutoffs=\[7, 14\]: .* say \[6, 14\]"),
        (
            random_variables({**FLAGS, **CUT, "div_val": 2, "d_embed": 16}),
            {**FLAGS, **CUT, "div_val": 4, "d_embed": 16},
            r"embedding.tables.1 has shape \[8, 8\], the config says \[8, 4\]",
        ),
        (variables, {**FLAGS, "mem_len": None}, "the config lacks mem_len"),
        (random_variables({**FLAGS, **CUT}), {**FLAGS, **CUT, "tie_projs": [False]}, "tie_projs.* must have 3 values"),
        (
            random_variables({**FLAGS, **CUT, "div_val": 2}),
            {**FLAGS, **CUT, **NONE, "div_val": 2},
            "it has no 'transformer/adaptive_softmax/cutoff_1/proj'",
        ),
        (
            random_variables({**FLAGS, **CUT, **NONE, "div_val": 2}),
            {**FLAGS, **CUT, "div_val": 2},
            "cutoff_1/proj is not tied in this checkpoint",
        ),
    ]
    for weights, flags, message in cases:
        with pytest.raises(CheckpointError, match=message) as caught:
            from_tensorflow(weights, flags)
        assert "\n" not in str(caught.value)


def test_other_formats_keep_the_mask_and_the_epsilon():
    model = from_tensorflow(random_variables(FLAGS), FLAGS)
    back = from_original(*to_original(model))
    assert back.config == model.config
    with pytest.raises(CheckpointError, match="extra_key=True"):
        to_huggingface(model)
    plain = model.with_lengths(same_length=False, extra_key=False)
    assert from_huggingface(*to_huggingface(plain)).config == plain.config
