"""Conversion to and from the other two formats loses nothing and refuses what it cannot hold."""

import pytest
import torch

from tests.model.tiny_model import tiny_model
from txl_lightning.model.checkpoints.formats import (
    CheckpointError,
    from_huggingface,
    from_original,
    to_huggingface,
    to_original,
)

CONVERSIONS = {"original": (to_original, from_original), "huggingface": (to_huggingface, from_huggingface)}
EMBEDDINGS = {"original": "word_emb.emb_layers.0.weight", "huggingface": "transformer.word_emb.emb_layers.0.weight"}
SHARED = [
    {},
    {"untie_biases": True, "n_layer": 1},
    {"pre_norm": True, "untie_biases": True},
    {"same_length": True, "clamp_len": 3, "dropout": 0.2, "attention_dropout": 0.1},
    {"mem_len": 0},
    {"d_embed": 6},
    {"cutoffs": (3, 7), "d_embed": 4},
    {"cutoffs": (3, 7), "div_val": 2},
    {"cutoffs": (3, 7), "div_val": 2, "tie_projections": "none"},
]
OF_ORIGINAL = [
    {"encoding": "shaw", "table_len": 9},
    {"encoding": "absolute"},
    {"encoding": "al_rfou", "table_len": 5, "d_head": 4},
    {"cutoffs": (3, 7), "d_embed": 6, "tie_projections": "all"},
    {"ext_len": 2},
    {"memory_start": "empty"},
]
ROUND_TRIPS = [(family, options) for family in CONVERSIONS for options in SHARED]
ROUND_TRIPS += [("original", options) for options in OF_ORIGINAL]


@pytest.fixture(params=CONVERSIONS)
def family(request: pytest.FixtureRequest) -> str:
    return request.param


def exported(family: str, **options):
    """Weights and config of a tiny model in the family's format, and the function that reads them."""
    export, load = CONVERSIONS[family]
    return *export(tiny_model(memory_start="zeros", **options)), load


@pytest.mark.parametrize(("family", "options"), ROUND_TRIPS, ids=str)
def test_round_trip_is_bit_equal(family, options):
    options = {"memory_start": "zeros", **options}
    export, load = CONVERSIONS[family]
    model = tiny_model(**options)
    again = load(*export(model))
    assert again.config == model.config
    assert again.state_dict().keys() == model.state_dict().keys()
    for name, weight in model.state_dict().items():
        assert again.state_dict()[name].dtype == weight.dtype
        assert torch.equal(again.state_dict()[name], weight), name


def test_the_original_format_tells_untied_biases_by_their_shape():
    weights, config = to_original(tiny_model(untie_biases=True))
    del config["untie_r"]
    assert from_original(weights, config).config.untie_biases


def test_shared_biases_are_found_in_the_layers_of_huggingface():
    weights, config = to_huggingface(tiny_model(memory_start="zeros"))
    del weights["transformer.r_w_bias"], weights["transformer.r_r_bias"]
    assert torch.equal(from_huggingface(weights, config).encoding.u, tiny_model().encoding.u)


@pytest.mark.parametrize("ending", ["layers.1.dec_attn.qkv_net.weight", "r_w_bias"])
def test_a_missing_weight_is_named(family, ending):
    weights, config, load = exported(family)
    with pytest.raises(CheckpointError, match=ending):
        load({name: weight for name, weight in weights.items() if not name.endswith(ending)}, config)


def test_a_wrong_shape_is_named_with_both_shapes(family):
    weights, config, load = exported(family)
    (name,) = [name for name in weights if name.endswith("layers.1.dec_attn.r_net.weight")]
    weights[name] = weights[name][1:]
    with pytest.raises(CheckpointError, match=r"layers\.1\.attention\.position\.weight has shape \[5, 8\].* \[6, 8\]"):
        load(weights, config)


def test_a_softmax_that_is_not_tied_to_the_embedding_is_refused(family):
    weights, config, load = exported(family)
    weights["crit.out_layers.0.weight"] = weights["crit.out_layers.0.weight"] + 1
    with pytest.raises(CheckpointError, match=r"crit\.out_layers\.0\.weight is not tied"):
        load(weights, config)


def test_a_tied_softmax_may_be_left_out(family):
    weights, config, load = exported(family)
    del weights["crit.out_layers.0.weight"]
    assert torch.equal(load(weights, config).embedding.tables[0], weights[EMBEDDINGS[family]])


def test_a_surplus_weight_is_named(family):
    weights, config, load = exported(family)
    weights["layers.7.unknown.weight"] = torch.zeros(1)
    with pytest.raises(CheckpointError, match=r"layers\.7\.unknown\.weight"):
        load(weights, config)


@pytest.mark.parametrize(("option", "value"), [("attn_type", 4), ("tie_projs", [True, False, True])])
def test_an_architecture_that_is_not_covered_is_named(option, value):
    weights, config = to_original(tiny_model())
    with pytest.raises(CheckpointError, match=f"{option}="):
        from_original(weights, {**config, option: value})


@pytest.mark.parametrize("option", ["vocab_size", "n_layer", "mem_len"])
def test_an_option_that_the_config_lacks_is_named(family, option):
    weights, config, load = exported(family)
    del config[option]
    with pytest.raises(CheckpointError, match=f"the config lacks {option}"):
        load(weights, config)


def test_the_families_order_the_columns_of_the_clusters_in_opposite_ways():
    model = tiny_model(memory_start="zeros", cutoffs=(3, 7))
    original, huggingface = to_original(model)[0], to_huggingface(model)[0]
    for name in ("crit.cluster_weight", "crit.cluster_bias"):
        assert torch.equal(original[name], huggingface[name].flip(0))
        assert not torch.equal(original[name], huggingface[name])


NOWHERE = [  # options that neither family has, and the beginning of the message
    ({"terms": "abd"}, "terms=abd: "),
    ({"memory_reset": "document", "mem_len": 0, "memory_start": "empty"}, "memory_reset=document: "),
    ({"qk_norm": True}, "qk_norm=True: "),
    ({"norm": "rms"}, "norm=rms: .* has only norm=layer"),
    ({"feed_forward": "swiglu"}, "feed_forward=swiglu: .* has only feed_forward=relu"),
    ({"final_norm": True}, "final_norm=True: .* has only final_norm=False"),
]
NOT_IN_HUGGINGFACE = [
    *((options, f"encoding={options['encoding']}: ") for options in OF_ORIGINAL if "encoding" in options),
    ({"cutoffs": (3, 7), "tie_projections": "all"}, "tie_projections=all: "),
    ({"ext_len": 2}, "ext_len=2: "),
    ({"memory_start": "empty"}, "memory_start=empty: "),
]


@pytest.mark.parametrize(
    ("convert", "options", "message"),
    [
        *((convert, *case) for convert in (to_original, to_huggingface) for case in NOWHERE),
        *((to_huggingface, *case) for case in NOT_IN_HUGGINGFACE),
    ],
)
def test_what_a_format_cannot_hold_is_named(convert, options, message):
    with pytest.raises(CheckpointError, match=f"^{message}"):
        convert(tiny_model(**{"memory_start": "zeros", **options}))
