"""Conversion to and from the other two formats loses nothing and refuses what it cannot hold."""

import pytest
import torch

from tests.model.tiny_model import random_stream, score_segments, tiny_model
from txl_lightning.errors import UserError
from txl_lightning.model.checkpoints import (
    CheckpointError,
    from_huggingface,
    from_original,
    to_huggingface,
    to_original,
)

CONVERSIONS = {"original": (to_original, from_original), "huggingface": (to_huggingface, from_huggingface)}
EMBEDDINGS = {"original": "word_emb.emb_layers.0.weight", "huggingface": "transformer.word_emb.emb_layers.0.weight"}
ARCHITECTURES = [
    {},
    {"untie_biases": True},
    {"pre_norm": True},
    {"untie_biases": True, "n_layer": 1},
    {"same_length": True, "clamp_len": 3, "dropout": 0.2, "attention_dropout": 0.1},
    {"mem_len": 0},
]


@pytest.fixture(params=CONVERSIONS)
def family(request: pytest.FixtureRequest) -> str:
    return request.param


def exported(family: str, **options):
    """Weights and config of a tiny model in the family's format, and the function that reads them."""
    export, load = CONVERSIONS[family]
    return *export(tiny_model(memory_start="zeros", **options)), load


@pytest.mark.parametrize("options", ARCHITECTURES, ids=str)
def test_round_trip_is_bit_equal(family, options):
    weights, config, load = exported(family, **options)
    model, again = tiny_model(memory_start="zeros", **options), load(weights, config)
    assert again.config == model.config
    assert again.state_dict().keys() == model.state_dict().keys()
    for name, weight in model.state_dict().items():
        assert again.state_dict()[name].dtype == weight.dtype
        assert torch.equal(again.state_dict()[name], weight), name
    stream = random_stream(2, 9)
    assert torch.equal(score_segments(model.eval(), stream, 4)[0], score_segments(again.eval(), stream, 4)[0])


@pytest.mark.parametrize("options", [{"ext_len": 2}, {"memory_start": "empty"}, {"memory_start": "zeros"}], ids=str)
def test_the_original_format_keeps_extended_context_and_memory_start(options):
    model = tiny_model(**options)
    assert from_original(*to_original(model)).config == model.config


def test_the_original_format_tells_untied_biases_by_their_shape():
    weights, config = to_original(tiny_model(untie_biases=True))
    del config["untie_r"]
    assert from_original(weights, config).config.untie_biases


def test_shared_biases_are_found_in_the_layers_of_huggingface():
    weights, config = to_huggingface(tiny_model(memory_start="zeros"))
    del weights["transformer.r_w_bias"], weights["transformer.r_r_bias"]
    assert torch.equal(from_huggingface(weights, config).u, tiny_model().u)


def test_single_precision_stays_single_precision(family):
    weights, config, load = exported(family)
    weights = {name: weight.float() for name, weight in weights.items()}
    assert {parameter.dtype for parameter in load(weights, config).parameters()} == {torch.float32}


@pytest.mark.parametrize(
    "name",
    ["word_emb.emb_layers.0.weight", "layers.1.dec_attn.qkv_net.weight", "layers.0.pos_ff.layer_norm.bias"],
)
def test_a_missing_weight_is_named(family, name):
    weights, config, load = exported(family)
    name = name if family == "original" else f"transformer.{name}"
    del weights[name]
    with pytest.raises(CheckpointError, match=name):
        load(weights, config)


def test_missing_biases_are_named(family):
    weights, config, load = exported(family)
    weights = {name: weight for name, weight in weights.items() if not name.endswith("r_w_bias")}
    with pytest.raises(CheckpointError, match="r_w_bias"):
        load(weights, config)


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("layers.1.dec_attn.r_net.weight", r"layers\.1\.attention\.position\.weight"),
        ("layers.0.pos_ff.CoreNet.0.bias", r"layers\.0\.feed_forward\.0\.bias"),
    ],
)
def test_a_wrong_shape_is_named_with_both_shapes(family, theirs, ours):
    weights, config, load = exported(family)
    name = theirs if family == "original" else f"transformer.{theirs}"
    right = list(weights[name].shape)
    weights[name] = weights[name][1:]
    wrong = [right[0] - 1, *right[1:]]
    with pytest.raises(CheckpointError, match=f"{ours}.*") as error:
        load(weights, config)
    assert str(wrong) in str(error.value)
    assert str(right) in str(error.value)


def test_a_softmax_that_is_not_tied_to_the_embedding_is_refused(family):
    weights, config, load = exported(family)
    weights["crit.out_layers.0.weight"] = weights["crit.out_layers.0.weight"] + 1
    with pytest.raises(CheckpointError, match="softmax is not tied"):
        load(weights, config)


def test_a_tied_softmax_may_be_left_out(family):
    weights, config, load = exported(family)
    del weights["crit.out_layers.0.weight"]
    assert torch.equal(load(weights, config).embedding.weight, weights[EMBEDDINGS[family]])


def test_a_weight_nobody_asked_for_is_named(family):
    weights, config, load = exported(family)
    weights["layers.7.unknown.weight"] = torch.zeros(1)
    with pytest.raises(CheckpointError, match=r"layers\.7\.unknown\.weight"):
        load(weights, config)


@pytest.mark.parametrize(
    ("option", "value"), [("cutoffs", [5, 8]), ("div_val", 2), ("d_embed", 4), ("attn_type", 1), ("attn_type", 3)]
)
def test_an_architecture_that_is_not_covered_is_named(option, value):
    weights, config = to_original(tiny_model())
    with pytest.raises(CheckpointError, match=option if option != "div_val" else "adaptive"):
        from_original(weights, {**config, option: value})


@pytest.mark.parametrize(("option", "value"), [("ext_len", 2), ("memory_start", "empty")])
def test_what_huggingface_cannot_do_is_named(option, value):
    model = tiny_model(**{"memory_start": "zeros", option: value})
    with pytest.raises(CheckpointError, match=f"{option}={value}"):
        to_huggingface(model)


def test_a_checkpoint_error_is_a_user_error_of_one_line():
    with pytest.raises(UserError) as error:
        from_original({}, to_original(tiny_model())[1])
    assert "\n" not in str(error.value)
