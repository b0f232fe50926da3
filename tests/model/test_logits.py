"""Logits, whole and term by term, are those that attention uses."""

import pytest
import torch
from torch import Tensor

from tests.model.tiny_model import assert_close, random_stream, tiny_model
from txl_lightning.evaluation.attention import AttentionInputs, attention_inputs
from txl_lightning.model.attention import Attention

MODELS = {
    "relative": {},
    "relative, every option": {
        "pre_norm": True, "untie_biases": True, "same_length": True, "clamp_len": 3, "memory_start": "zeros"
    },
    "relative without (b)": {"terms": "acd"},
    "relative without (a) and (c)": {"terms": "bd"},
    "shaw": {"encoding": "shaw", "table_len": 6},
    "shaw as its text says": {"encoding": "shaw", "table_len": 6, "terms": "ab"},
    "absolute": {"encoding": "absolute"},
    "alibi": {"encoding": "alibi"},
    "rope": {"encoding": "rope", "d_head": 4},
}  # fmt: skip


def caught(**options: object) -> list[tuple[Attention, AttentionInputs]]:
    """Inputs of the attentions in a second segment."""
    model = tiny_model(**options)
    stream = random_stream(2, 8)
    with torch.no_grad():
        _, memory = model(stream[:, :5])
        seen, _ = attention_inputs(
            model,
            stream[:, 5:],
            memory,
        )
    assert len(seen) == 2
    return seen


@pytest.mark.parametrize("name", MODELS)
def test_logits_of_the_terms_add_up_to_what_forward_takes_the_softmax_of(name, monkeypatch):
    """Up to rounding, where the key is visible."""
    seen = caught(**MODELS[name])
    used = []
    softmax = Tensor.softmax

    def kept(logits, dim):
        used.append(logits)
        return softmax(logits, dim)

    monkeypatch.setattr(Tensor, "softmax", kept)
    for attention, inputs in seen:
        whole = attention.logits(*inputs)
        hidden = torch.isinf(inputs.visible.mask_TK).expand_as(whole)
        singles = [attention.logits(*inputs, terms=term) for term in attention.terms]
        assert_close(sum(singles), whole, 1e-12)
        for logits in (whole, *singles):
            assert torch.equal(torch.isinf(logits), hidden)
        attention(*inputs)
        assert_close(whole, used.pop(), 1e-12)
