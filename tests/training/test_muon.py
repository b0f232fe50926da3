"""Muon for matrices and Adam for the rest, as one optimizer."""

from __future__ import annotations

import copy
from collections import defaultdict
from dataclasses import replace

import pytest
import torch

from txl_lightning import TransformerXL, TransformerXLConfig
from txl_lightning.config.schemas import OptimizerConfig
from txl_lightning.errors import OptionError
from txl_lightning.model.baselines import RecurrentConfig, RecurrentLanguageModel
from txl_lightning.training.muon import MuonWithAdam, matrices_of_layers, update_matrices
from txl_lightning.training.optimization import check_optimizer, make_optimizer

SIZES = TransformerXLConfig(
    vocab_size=11, n_layer=2, d_model=8, n_head=2, d_head=4, d_inner=12, dropout=0.0, mem_len=4, untie_biases=True
)
CONFIG = OptimizerConfig(name="muon", lr=0.02, weight_decay=0.1, clip_norm=0.0)
MODELS = {
    "txl": lambda: TransformerXL(SIZES),
    "modern": lambda: TransformerXL(
        replace(SIZES, pre_norm=True, norm="rms", final_norm=True, feed_forward="swiglu", qk_norm=True)
    ),
    "terms ac": lambda: TransformerXL(replace(SIZES, terms="c")),
    "lstm": lambda: RecurrentLanguageModel(RecurrentConfig(11, cell="lstm", n_layer=1, d_model=8)),
    "qrnn": lambda: RecurrentLanguageModel(RecurrentConfig(11, cell="qrnn", n_layer=2, d_model=8)),
}


def model_with_gradients(name: str, seed: int = 0) -> torch.nn.Module:
    torch.manual_seed(seed)
    model = MODELS[name]().eval()
    draw_gradients(model, seed + 1)
    return model


def draw_gradients(model: torch.nn.Module, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=generator)


@pytest.mark.parametrize("split_qkv", [True, False])
@pytest.mark.parametrize("name", MODELS)
def test_a_step_equals_torchs_on_each_matrix_and_adams_on_the_rest(name: str, split_qkv: bool) -> None:
    model = model_with_gradients(name)
    before = {n: (p.detach().clone(), p.grad.clone()) for n, p in model.named_parameters()}
    blocks = {id(parameter): n for parameter, n in matrices_of_layers(model, split_qkv)}
    MuonWithAdam(model, lr=0.02, weight_decay=0.1, split_qkv=split_qkv).step()
    assert blocks
    for n, parameter in model.named_parameters():
        weight, gradient = before[n]
        parts = [torch.nn.Parameter(part.clone()) for part in weight.chunk(blocks.get(id(parameter), 1))]
        for part, grad in zip(parts, gradient.chunk(len(parts)), strict=True):
            part.grad = grad.clone()
        if id(parameter) in blocks:
            torch.optim.Muon(parts, lr=0.02, weight_decay=0.1, adjust_lr_fn="match_rms_adamw").step()
        else:
            torch.optim.AdamW(parts, lr=0.02, weight_decay=0.1).step()
        assert torch.equal(parameter, torch.cat(parts)), n


@pytest.mark.parametrize("sides", [(12, 12), (12, 20), (12, 48), (48, 12)])
def test_its_iteration_in_float32_is_that_of_float64(sides: tuple[int, int]) -> None:
    """Newton and Schulz's iteration as published, in float64; bfloat16 is a hundred times as far from it."""
    torch.manual_seed(5)
    weight = torch.nn.Parameter(torch.zeros(sides))
    weight.grad = torch.randn(sides) * torch.logspace(-3, 0, sides[1])
    X = (weight.grad.T if sides[0] > sides[1] else weight.grad).double()
    X = X / X.norm()
    for _ in range(5):
        gram = X @ X.T
        X = 3.4445 * X + (-4.7750 * gram + 2.0315 * gram @ gram) @ X
    expected = X.T if sides[0] > sides[1] else X
    away = {}
    for dtype in (torch.float32, torch.bfloat16):
        group = torch.optim.Muon([weight], momentum=0.0, nesterov=False, weight_decay=0.0).param_groups[0]
        weight.data.zero_()
        with torch.no_grad():
            update_matrices(group, defaultdict(dict), dtype)
        away[dtype] = (weight / (-group["lr"] * 0.2 * max(sides) ** 0.5) - expected).abs().max().item()
    assert away[torch.float32] < 2e-5
    assert away[torch.bfloat16] > 100 * away[torch.float32]


def test_make_optimizer_hands_the_number_type_on() -> None:
    weights = {}
    for ns_precision in ("bf16-true", "32-true"):
        model = model_with_gradients("txl")
        optimizer, _ = make_optimizer(model, replace(CONFIG, ns_precision=ns_precision, schedule="constant"), 10, True)
        optimizer.step()
        weights[ns_precision] = dict(model.named_parameters())["layers.0.attention.qkv.weight"].detach()
    assert not torch.equal(*weights.values())
    torch.testing.assert_close(*weights.values(), atol=5e-4, rtol=0)


def test_every_parameter_has_one_place() -> None:
    model = MODELS["txl"]()
    matrices = dict(matrices_of_layers(model))
    names = {n: matrices.get(p) for n, p in model.named_parameters()}
    assert names["layers.0.attention.qkv.weight"] == 3
    together = dict(matrices_of_layers(model, split_qkv=False))
    assert together == dict.fromkeys(matrices, 1)
    assert {names[f"layers.1.attention.{n}.weight"] for n in ("position", "output")} == {1}
    assert all(n is None for name, n in names.items() if "norm" in name or "bias" in name or "embedding" in name)
    assert names["encoding.u"] is None
    optimizer = MuonWithAdam(model, lr=0.1)
    n_numbers = sum(p.numel() for group in optimizer.param_groups for p in group["params"])
    assert n_numbers == sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize("split_qkv", [True, False])
def test_its_state_survives_a_checkpoint_bit_for_bit(split_qkv: bool) -> None:
    model, config = model_with_gradients("modern"), replace(CONFIG, split_qkv=split_qkv)
    optimizer, schedule = make_optimizer(model, config, max_steps=10, fused=True)
    for seed in (1, 2):
        draw_gradients(model, seed)
        optimizer.step()
        schedule.step()
    momenta = [state["momentum_buffer"] for state in optimizer.state.values() if "momentum_buffer" in state]
    assert ((24, 8) in {tuple(momentum.shape) for momentum in momenta}) == (not split_qkv)
    other = copy.deepcopy(model)
    resumed, its_schedule = make_optimizer(other, config, max_steps=10, fused=True)
    resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    its_schedule.load_state_dict(schedule.state_dict())
    for seed in (3, 4):
        for trained, run, rate in ((model, optimizer, schedule), (other, resumed, its_schedule)):
            draw_gradients(trained, seed)
            run.step()
            rate.step()
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))
    assert len({group["lr"] for group in resumed.param_groups}) == 1


@pytest.mark.parametrize("set_to_none", [True, False])
def test_gradients_are_cleared(set_to_none: bool) -> None:
    model = model_with_gradients("txl")
    optimizer = MuonWithAdam(model, lr=0.1)
    optimizer.step()
    optimizer.zero_grad(set_to_none)
    assert all(p.grad is None if set_to_none else not p.grad.any() for p in model.parameters())
    weights = [p.clone() for p in model.parameters()]
    if set_to_none:
        optimizer.step()
        assert all(torch.equal(a, b) for a, b in zip(weights, model.parameters(), strict=True))


def test_a_torch_without_it_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch.optim, "Muon")
    with pytest.raises(OptionError, match=r"optimizer=muon: needs torch >= 2\.9"):
        check_optimizer(CONFIG)
    with pytest.raises(OptionError, match=r"needs torch >= 2\.9"):
        MuonWithAdam(MODELS["txl"](), lr=0.1)


def test_the_private_list_operations_do_what_the_step_relies_on() -> None:
    weights, gradients = [torch.ones(2), torch.ones(3)], [torch.zeros(2), torch.zeros(3)]
    assert [w.tolist() for w in torch._foreach_lerp(weights, gradients, 0.5)] == [[0.5] * 2, [0.5] * 3]
    torch._foreach_lerp_(weights, gradients, 0.25)
    torch._foreach_mul_(weights, 2.0)
    torch._foreach_add_(weights, [torch.ones(2, dtype=torch.bfloat16), torch.ones(3)], alpha=-1.0)
    assert [w.tolist() for w in weights] == [[0.5] * 2, [0.5] * 3]
