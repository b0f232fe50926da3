"""Values of an architecture that are not allowed are named, with what is."""

from typing import Any

import pytest

from txl_lightning import TransformerXLConfig
from txl_lightning.config.architecture import RecurrentConfig
from txl_lightning.errors import OptionError

ROPE, DOCUMENTS = {"encoding": "rope", "d_head": 4}, {"memory_reset": "document"}
REFUSED: list[
    tuple[str, Any, dict[str, Any], str]
] = [  # option, value, other options, what is allowed
    *(
        (name, 0, {}, "must be an integer >= 1")
        for name in ("vocab_size", "n_layer", "n_head", "d_head", "div_val")
    ),
    ("d_inner", -1, {}, "must be an integer >= 1"),
    ("d_model", 5, {}, "must be an even integer"),
    *(
        (name, -0.1, {}, "must be a probability")
        for name in ("attention_dropout", "hidden_dropout", "weight_dropout")
    ),
    ("dropout", 1.0, {}, "must be a probability"),
    *((name, -1, {}, "must be an integer >= 0") for name in ("mem_len", "ext_len")),
    ("clamp_len", -2, {}, "must be -1 "),
    ("init_std", 0.0, {}, "must be a number > 0"),
    *(
        ("terms", terms, {}, "must be letters of abcd, each at most once")
        for terms in ("abce", "aa", "A")
    ),
    ("tie_projections", "x", {}, "must be one of "),
    *((name, "x", {}, "must be one of ") for name in ("encoding", "memory_start", "memory_reset")),
    ("cell", "gru", {}, "must be one of lstm, qrnn"),
    *(("cutoffs", cutoffs, {}, "must be ascending integers >= 1") for cutoffs in ((5, 5), (0, 5))),
    ("cutoffs", (5, 10), {}, "must be below the 10 tokens"),
    ("div_val", 4, {"d_embed": 8, "cutoffs": (3, 5)}, "must leave the last cluster"),
    ("clamp_len", 5, ROPE, "must be -1: encoding=rope rotates"),
    ("d_head", 3, ROPE, "must be even: encoding=rope rotates pairs"),
    ("memory_start", "zeros", DOCUMENTS, "must be empty with memory_reset=document"),
    *(("table_len", None, {"encoding": name}, "must be given for") for name in ("shaw", "al_rfou")),
]


@pytest.mark.parametrize(("option", "value", "others", "allowed"), REFUSED)
def test_a_refusal_names_the_option(
    option: str, value: Any, others: dict[str, Any], allowed: str
) -> None:
    options: dict[str, Any] = {"vocab_size": 10, **others, option: value}
    architecture = (
        RecurrentConfig
        if option in ("cell", "hidden_dropout", "weight_dropout")
        else TransformerXLConfig
    )
    with pytest.raises(OptionError) as error:
        architecture(**options)
    assert str(error.value).startswith(f"{option}={value}: {allowed}")
