"""Attention as a GPU runs it, counted on meta: aligned products, one fused kernel, few launches and bytes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from tests.devices.arms import ARMS, make, tokens, unread_clusters
from tests.gpu_path.counting import Launches
from tests.model.attention_problems import Problem
from txl_lightning import TransformerXL, TransformerXLConfig
from txl_lightning.model import gpu
from txl_lightning.model.attention import AttentionInputs, attend_with_kernel, masked_scores
from txl_lightning.model.layers import Dropout
from txl_lightning.model.positions import VisibleKeys
from txl_lightning.training.scoring import compiled

SIZES = {
    "enwik8 base": (8, 22, 512, 1024, 64),
    "wt103 base": (10, 60, 150, 300, 41),
}  # H, B, T, K, E


class LeadingDimensions(TorchDispatchMode):
    """Context that notes the larger stride of every matrix of a product."""

    def __init__(self) -> None:
        super().__init__()
        self.found: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func.overloadpacket.__name__ in ("bmm", "baddbmm", "mm", "addmm"):
            matrices = [x for x in (*args, result) if isinstance(x, Tensor) and x.ndim > 1]
            self.found |= {max(x.stride()[-2:]) for x in matrices if min(x.shape) > 1}
        return result


@pytest.fixture(autouse=True)
def _the_kernel_of_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Meta tensors take the efficient kernel, as CUDA ones do; it refuses what is not aligned."""

    def efficient(q, k, v, attn_mask, dropout_p, scale):
        assert {x.shape[-1] % 8 for x in (q, k, v)} == {0}
        kernel = torch.ops.aten._scaled_dot_product_efficient_attention
        return kernel(
            q, k, v, attn_mask, compute_log_sumexp=True, dropout_p=dropout_p, scale=scale
        )[0]

    monkeypatch.setattr(F, "scaled_dot_product_attention", efficient)


def attend(sizes: str, dropout: float = 0.0, documents: bool = False) -> None:
    """Forward and backward pass of one layer's attention in bfloat16."""
    H, B, T, K, E = SIZES[sizes]
    shapes = [
        (H, B, T, E),
        (H, B, K, E),
        (H, B, K, E),
        (H, K + 1, E),
        (H, E),
        (H, E),
    ]
    options = {"device": "meta", "dtype": torch.bfloat16}
    inputs = [torch.empty(shape, requires_grad=True, **options) for shape in shapes]
    mask = torch.empty(
        (B, T, K) if documents else (T, K),
        **options,
    )
    visible = VisibleKeys(mask, sees_memory=True)
    operands = AttentionInputs(*inputs, None, "abcd", visible)
    heads_HBTE = attend_with_kernel(operands, Dropout(dropout))
    assert heads_HBTE.shape == (H, B, T, E)
    heads_HBTE.backward(torch.empty_like(heads_HBTE))


ODD = {
    "n_layer": 1,
    "d_model": 10,
    "n_head": 2,
    "d_head": 5,
    "d_inner": 21,
    "vocab_size": 31,
    "table_len": 14,
}


@pytest.mark.parametrize(
    "options", [{}, {"cutoffs": (5, 12)}, {"pre_norm": True, "encoding": "shaw"}], ids=str
)
def test_rows_of_all_products_of_a_step_begin_at_16_bytes(options):
    with torch.device("meta"):
        model = TransformerXL(TransformerXLConfig(mem_len=6, **(ODD | options))).bfloat16()
        tokens_BT = torch.zeros(2, 7, dtype=torch.int64)
    with LeadingDimensions() as products, unread_clusters():
        model.score(tokens_BT, tokens_BT)[0].mean().backward()
    assert products.found
    assert not {n for n in products.found if n % 8}


PADDED = [arm for arm in ARMS if "lstm" not in arm and arm != "qrnn"]
NARROW = TransformerXLConfig(cutoffs=(5, 12), div_val=2, **ODD)


@pytest.mark.parametrize("arm", [*PADDED, "narrow tables"])
def test_padded_products_change_no_loss_and_no_gradient(arm, monkeypatch):
    model = TransformerXL(NARROW) if arm == "narrow tables" else make(arm)
    model.double().eval()
    window = tokens()
    results = []
    for multiple in (1, 8):
        monkeypatch.setattr(
            gpu,
            "n_padding",
            lambda n, x, multiple=multiple: -n % multiple,
        )
        model.zero_grad()
        first, memory = model.score(
            window[:, :-1],
            window[:, 1:],
        )
        second, _ = model.score(
            window[:, :-1],
            window[:, 1:],
            memory,
        )
        (first + second).mean().backward()
        gradients = [p.grad for p in model.parameters() if p.grad is not None]
        results.append([first, second, model.log_probabilities(model(window)[0]), *gradients])
    torch.testing.assert_close(*results, rtol=1e-10, atol=1e-12)


def test_padded_distances_change_no_score_under_a_mask_that_is_not_causal(monkeypatch):
    problem = Problem(T=3, M=7, H=2, E=4)
    inputs = problem.inputs(problem.tensors(torch.float64))
    seen = VisibleKeys(torch.zeros_like(inputs.visible.mask_TK), causal=False)
    inputs = inputs._replace(visible=seen)
    expected = masked_scores(inputs)
    monkeypatch.setattr(gpu, "n_padding", lambda n, x: -n % 8)
    torch.testing.assert_close(masked_scores(inputs), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    "options",
    [{}, {"dropout": 0.1}, {"documents": True}],
    ids=str,
)
@pytest.mark.parametrize(
    ("sizes", "launches", "scores"), [("enwik8 base", 26, 4.0), ("wt103 base", 34, 6.5)]
)
def test_launches_and_bytes_of_a_layer(sizes, launches, scores, options):
    """Bytes in units of all scores of the layer, without what the fused kernel writes."""
    H, B, T, K, _ = SIZES[sizes]
    with Launches() as counted:
        attend(sizes, **options)
    assert counted.n <= launches, counted.by_name
    assert counted.written <= scores * 2 * H * B * T * K


@pytest.mark.slow
def test_a_compiled_backward_pass_is_without_autocast():
    """As the training step runs it, by the private `torch._functorch.config.backward_pass_autocast`."""

    class Product(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> Tensor:
            return gradient @ torch.full((8, 8), 1.001)

    x = torch.ones(8, 8, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        y = compiled(Product.apply, backend="aot_eager")(x)
    y.sum().backward()
    assert x.grad is not None
    torch.testing.assert_close(
        x.grad,
        torch.full((8, 8), 8.008),
        rtol=1e-6,
        atol=0,
    )
