"""Conversion to and from the other two formats loses nothing and refuses what it cannot hold."""

import pytest
import torch

from tests.model.tiny_model import tiny_model
from txl_lightning.model.checkpoints import (
    CheckpointError,
    from_huggingface,
    from_original,
    to_huggingface,
    to_original,
)

CONVERSIONS = {
    "original": (to_original, from_original),
    "huggingface": (to_huggingface, from_huggingface),
}
SHARED = [
    {"pre_norm": True, "untie_biases": True, "n_layer": 1},
    {"same_length": True, "clamp_len": 3, "dropout": 0.2, "attention_dropout": 0.1},
    {"cutoffs": (3, 7), "d_embed": 4, "mem_len": 0},
    {"cutoffs": (3, 7), "div_val": 2, "tie_projections": "none"},
]
OTHER_ENCODINGS = [
    {"encoding": "shaw", "table_len": 9},
    {"encoding": "al_rfou", "table_len": 5, "d_head": 4},
    {"encoding": "absolute"},
]
OF_ORIGINAL = [
    *OTHER_ENCODINGS,
    {"cutoffs": (3, 7), "d_embed": 6, "tie_projections": "all"},
    {"ext_len": 2},
    {"memory_start": "empty"},
]
OF_ORIGINAL += [{"ext_len": 2}, {"memory_start": "empty"}]
ROUND_TRIPS = [(family, options) for family in CONVERSIONS for options in SHARED]
ROUND_TRIPS += [("original", options) for options in OF_ORIGINAL]


@pytest.mark.parametrize(("family", "options"), ROUND_TRIPS, ids=str)
def test_round_trip_is_bit_equal(family, options):
    export, load = CONVERSIONS[family]
    model = tiny_model(**{"memory_start": "zeros", **options})
    again = load(*export(model))
    assert again.config == model.config
    torch.testing.assert_close(
        again.state_dict(),
        model.state_dict(),
        rtol=0,
        atol=0,
    )


def test_shared_biases_are_found_in_the_layers_of_huggingface():
    weights, config = to_huggingface(tiny_model(memory_start="zeros"))
    del weights["transformer.r_w_bias"], weights["transformer.r_r_bias"]
    assert torch.equal(from_huggingface(weights, config).encoding.u, tiny_model().encoding.u)


QKV = "layers.1.dec_attn.qkv_net.weight"
SOFTMAX = "crit.out_layers.0.weight"


def missing(name, weight):
    return {}


CHANGED = [
    (QKV, missing, QKV),
    ("r_w_bias", missing, "r_w_bias"),
    (SOFTMAX, lambda name, weight: {name: weight + 1}, rf"{SOFTMAX} is not tied"),
]


@pytest.mark.parametrize("family", CONVERSIONS)
@pytest.mark.parametrize(("ending", "change", "message"), CHANGED)
def test_what_does_not_fit_is_named(family, ending, change, message):
    export, load = CONVERSIONS[family]
    weights, config = export(tiny_model(memory_start="zeros"))
    for name in list(weights):
        if name.endswith(ending):
            weights |= change(name, weights.pop(name))
    with pytest.raises(CheckpointError, match=message):
        load(weights, config)


@pytest.mark.parametrize("family", CONVERSIONS)
def test_a_surplus_weight_is_named_and_a_tied_one_may_be_left_out(family):
    export, load = CONVERSIONS[family]
    weights, config = export(tiny_model(memory_start="zeros"))
    del weights[SOFTMAX]
    assert torch.equal(load(weights, config).embedding.tables[0], tiny_model().embedding.tables[0])
    with pytest.raises(CheckpointError, match=r"layers\.7\.unknown\.weight"):
        load({**weights, "layers.7.unknown.weight": torch.zeros(1)}, config)


@pytest.mark.parametrize(
    ("option", "value"), [("attn_type", 4), ("tie_projs", [True, False, True])]
)
def test_an_architecture_that_is_not_covered_is_named(option, value):
    weights, config = to_original(tiny_model())
    with pytest.raises(CheckpointError, match=f"{option}="):
        from_original(weights, {**config, option: value})


NOWHERE = [  # options that neither family has, and the beginning of the message
    ({"terms": "abd"}, "terms=abd: "),
    (
        {"memory_reset": "document", "mem_len": 0, "memory_start": "empty"},
        "memory_reset=document: ",
    ),
]
NOT_IN_HUGGINGFACE = [
    *((options, f"encoding={options['encoding']}: ") for options in OTHER_ENCODINGS),
    ({"cutoffs": (3, 7), "tie_projections": "all"}, "tie_projections=all: "),
    ({"ext_len": 2}, "ext_len=2: "),
    ({"memory_start": "empty"}, "memory_start=empty: "),
]


CANNOT = [(convert, *case) for convert in (to_original, to_huggingface) for case in NOWHERE]
CANNOT += [(to_huggingface, *case) for case in NOT_IN_HUGGINGFACE]


@pytest.mark.parametrize(("convert", "options", "message"), CANNOT)
def test_what_a_format_cannot_hold_is_named(convert, options, message):
    with pytest.raises(CheckpointError, match=f"^{message}"):
        convert(tiny_model(**{"memory_start": "zeros", **options}))
