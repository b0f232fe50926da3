"""bf16-mixed: losses, norms and memory are in float32."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.devices.arms import cases, make, tokens
from txl_lightning import Memory


@pytest.mark.parametrize("arm", cases())
def test_losses_norms_and_memory_are_in_float32(arm):
    model = make(arm)
    seen = []
    for module in model.modules():
        if isinstance(module, nn.LayerNorm):
            module.register_forward_hook(
                lambda _, inputs, output: seen.extend((inputs[0].dtype, output.dtype))
            )
    window = tokens()
    with torch.autocast("cpu", torch.bfloat16):
        nll_BT, memory = model.score(
            window[:, :-1],
            window[:, 1:],
        )
        nll_BT, memory = model.score(
            window[:, :-1],
            window[:, 1:],
            memory,
        )
    states = memory.states if isinstance(memory, Memory) else memory.cells
    nll_BT.mean().backward()
    gradients = [p.grad.dtype for p in model.parameters() if p.grad is not None]
    assert {*seen, *gradients, nll_BT.dtype, states.dtype} == {torch.float32}
