"""bf16-mixed: losses, norms and memory are in float32."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.devices.arms import cases, make, tokens
from tests.model.tiny_model import score_segments
from txl_lightning import Memory


@pytest.mark.parametrize("arm", cases())
def test_losses_norms_and_memory_are_in_float32(arm):
    model = make(arm)
    seen = []
    for module in model.modules():
        if isinstance(module, nn.LayerNorm):
            module.register_forward_hook(lambda _, inputs, output: seen.extend((*inputs, output)))
    with torch.autocast("cpu", torch.bfloat16):
        nll_BT, memory = score_segments(
            model,
            torch.cat([tokens(), tokens()], dim=1),
            6,
        )
    states = memory.states if isinstance(memory, Memory) else memory.cells
    nll_BT.mean().backward()
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    assert {x.dtype for x in (*seen, *gradients, nll_BT, states)} == {torch.float32}
