"""Values of an architecture that are not allowed are named, with what is."""

from typing import Any

import pytest

from txl_lightning import TransformerXLConfig
from txl_lightning.config.architecture import RecurrentConfig
from txl_lightning.errors import OptionError

COMPRESSIVE = {"mem_len": 4, "compressed_len": 2, "compression": "conv", "compression_rate": 2}
ROPE, DOCUMENTS = {"encoding": "rope", "d_head": 4}, {"memory_reset": "document"}
REFUSED: list[tuple[str, Any, dict[str, Any], str]] = [  # option, value, other options, what is allowed
    *((name, 0, {}, "must be an integer >= 1") for name in ("vocab_size", "n_layer", "n_head", "d_head", "div_val")),
    ("d_inner", -1, {}, "must be an integer >= 1"),
    ("d_model", 5, {}, "must be an even integer"),
    *((name, -0.1, {}, "must be a probability") for name in ("attention_dropout", "hidden_dropout", "weight_dropout")),
    ("dropout", 1.0, {}, "must be a probability"),
    *((name, -1, {}, "must be an integer >= 0") for name in ("mem_len", "ext_len", "compressed_len")),
    ("clamp_len", -2, {}, "must be -1 "),
    ("init_std", 0.0, {}, "must be a number > 0"),
    *(("terms", terms, {}, "must be letters of abcd, each at most once") for terms in ("abce", "aa", "A")),
    *((name, "x", {}, "must be one of ") for name in ("tie_projections", "norm", "feed_forward")),
    *((name, "x", {}, "must be one of ") for name in ("encoding", "memory_start", "memory_reset", "compression")),
    ("compression_loss", "mse", COMPRESSIVE, "must be one of reconstruction, autoencoding, none"),
    ("cell", "gru", {}, "must be one of lstm, qrnn"),
    *(("cutoffs", cutoffs, {}, "must be ascending integers >= 1") for cutoffs in ((5, 5), (0, 5))),
    ("cutoffs", (5, 10), {}, "must be below the 10 tokens"),
    ("div_val", 4, {"d_embed": 8, "cutoffs": (3, 5)}, "must leave the last cluster"),
    ("clamp_len", 5, ROPE, "must be -1: encoding=rope rotates"),
    ("d_head", 3, ROPE, "must be even: encoding=rope rotates pairs"),
    ("interpolation", 0.5, ROPE, "must be a number >= 1"),
    ("interpolation", 2.0, {"encoding": "alibi"}, "must be 1: encoding=alibi rotates no"),
    ("memory_start", "zeros", DOCUMENTS, "must be empty with memory_reset=document"),
    ("compressed_len", 2, {**COMPRESSIVE, **DOCUMENTS}, "must be 0 with memory_reset=document"),
    ("compressed_len", 2, {}, "must be 0 without a compression"),
    ("compression", "conv", {**COMPRESSIVE, "encoding": "absolute"}, "needs an encoding of distances"),
    ("compression_rate", 0, COMPRESSIVE, "must be an integer >= 1"),
    ("compression_loss", "none", COMPRESSIVE, "would leave compression=conv untrained"),
    ("compression_loss", "autoencoding", {**COMPRESSIVE, "compression": "max"}, "is for compression=conv or dilated"),
    ("compression_loss", "reconstruction", {**COMPRESSIVE, "terms": "bcd"}, "compares attention by content, term (a)"),
    ("mem_len", 1, COMPRESSIVE, "must be 0 or at least compression_rate=2"),
    ("n_tokens", -1, {}, "must be an integer >= 0"),
    ("ext_len", 2, {"n_tokens": 3}, "must be 0 with n_tokens: memory tokens are written once, at a segment's end"),
    ("memory_reset", "document", {"n_tokens": 3}, "must be never with n_tokens: memory tokens are written once"),
    ("compression", "conv", {**COMPRESSIVE, "n_tokens": 3}, "must be null with n_tokens"),
    *(("table_len", None, {"encoding": name}, "must be given for") for name in ("shaw", "al_rfou")),
]


@pytest.mark.parametrize(("option", "value", "others", "allowed"), REFUSED)
def test_a_value_that_is_not_allowed_is_named_with_its_option(
    option: str, value: Any, others: dict[str, Any], allowed: str
) -> None:
    options: dict[str, Any] = {"vocab_size": 10, **others, option: value}
    architecture = RecurrentConfig if option in ("cell", "hidden_dropout", "weight_dropout") else TransformerXLConfig
    with pytest.raises(OptionError) as error:
        architecture(**options)
    given = list(value) if isinstance(value, tuple) else value
    assert str(error.value).startswith(f"{option}={given}: {allowed}")
