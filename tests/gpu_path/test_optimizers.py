"""Optimizers as a GPU needs them: with the gradient scaler of 16-mixed, and in few calls."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from tests.devices.arms import make, tokens
from tests.gpu_path.counting import Launches
from txl_lightning import TransformerXL, TransformerXLConfig
from txl_lightning.config.schemas import OptimizerConfig
from txl_lightning.training.optimizers import make_optimizer


def scaled_step(
    name: str, scale: float, poisoned: bool = False
) -> tuple[Tensor, list[Tensor], float]:
    """Return the norm of the gradients after unscaling, the weights after the step, and the next scale."""
    torch.manual_seed(1)
    model = make("relative, memory").eval()
    config = OptimizerConfig(name=name, lr=0.01, warmup_steps=0)
    optimizer, _ = make_optimizer(model, config, 10, fused=False)
    scaler = torch.amp.GradScaler("cpu", init_scale=scale)
    window = tokens()
    nll_BT, _ = model.score(
        window[:, :-1],
        window[:, 1:],
    )
    scaler.scale(nll_BT.mean()).backward()
    if poisoned:
        model.layers[0].attention.qkv.weight.grad[0, 0] = torch.inf
    scaler.unscale_(optimizer)
    norm = nn.utils.clip_grad_norm_(model.parameters(), 0.25)
    scaler.step(optimizer)
    scaler.update()
    weights = [parameter.detach() for parameter in model.parameters()]
    return norm, weights, scaler.get_scale()


@pytest.mark.parametrize("name", ["adam", "adamw", "muon"])
def test_a_gradient_scaler_changes_no_gradient_and_skips_an_infinite_one(name):
    norm, weights, _ = scaled_step(name, 1.0)
    scaled_norm, scaled_weights, _ = scaled_step(name, 65536.0)
    torch.testing.assert_close(scaled_norm, norm)
    torch.testing.assert_close(scaled_weights, weights)
    torch.manual_seed(1)
    before = [parameter.detach() for parameter in make("relative, memory").parameters()]
    _, skipped, scale = scaled_step(name, 65536.0, poisoned=True)
    torch.testing.assert_close(skipped, before, rtol=0, atol=0)
    assert scale == 32768


def test_a_step_of_muon_at_base_size_has_few_launches():
    """One list operation is counted as one launch: a GPU has a kernel for many tensors."""
    with torch.device("meta"):
        config = TransformerXLConfig(
            vocab_size=205, n_layer=12, d_model=512, n_head=8, d_head=64, d_inner=2048
        )
        model = TransformerXL(config)
    for parameter in model.parameters():
        parameter.grad = torch.empty_like(parameter)
    optimizer, _ = make_optimizer(
        model,
        OptimizerConfig(name="muon", lr=0.01),
        10,
        fused=False,
    )
    optimizer._adam.step = lambda: None  # one launch on a GPU, where it is fused
    optimizer.step()
    with Launches() as launches:
        optimizer.step()
    assert launches.n <= 80, launches.by_name
    private = {"_foreach_lerp_", "_foreach_lerp", "_foreach_mul_", "_foreach_norm", "_foreach_add_"}
    assert private <= launches.by_name.keys()
