"""Attention as a GPU runs it, counted on meta: aligned products, one fused kernel, few launches and bytes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from tests.gpu_path.counting import Launches
from tests.model.tiny_model import random_stream, tiny_model
from txl_lightning.model.kernels import fused
from txl_lightning.model.layers import Dropout
from txl_lightning.model.positions import VisibleKeys
from txl_lightning.training.module import compiled

SIZES = {"enwik8 base": (8, 22, 512, 1024, 64), "wt103 base": (10, 60, 150, 300, 41)}  # H, B, T, K, E


class LeadingDimensions(TorchDispatchMode):
    """Context that notes the larger stride of every matrix of a batched product."""

    def __init__(self) -> None:
        super().__init__()
        self.found: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func.overloadpacket in (torch.ops.aten.bmm, torch.ops.aten.baddbmm):
            self.found |= {max(x.stride()[-2:]) for x in (*args, result) if isinstance(x, Tensor) and min(x.shape) > 1}
        return result


@pytest.fixture(autouse=True)
def _the_kernel_of_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Meta tensors take the efficient kernel, as CUDA ones do; it refuses what is not aligned."""

    def efficient(q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor, dropout_p: float, scale: float) -> Tensor:
        assert {x.shape[-1] % 8 for x in (q, k, v)} == {0}
        kernel = torch.ops.aten._scaled_dot_product_efficient_attention
        return kernel(q, k, v, attn_mask, compute_log_sumexp=True, dropout_p=dropout_p, scale=scale)[0]

    monkeypatch.setattr(F, "scaled_dot_product_attention", efficient)


def attend(sizes: str, dropout: float = 0.0, documents: bool = False) -> None:
    """Forward and backward pass of one layer's attention in bfloat16."""
    H, B, T, K, E = SIZES[sizes]
    shapes = [(H, B, T, E), (H, B, K, E), (H, K + 1, E), (H, E), (H, E), (H, B, K, E)]
    inputs = [torch.empty(shape, device="meta", dtype=torch.bfloat16, requires_grad=True) for shape in shapes]
    mask = torch.empty((B, T, K) if documents else (T, K), device="meta", dtype=torch.bfloat16)
    heads_HBTE = fused.attend(*inputs, VisibleKeys(mask, sees_memory=True), Dropout(dropout))
    assert heads_HBTE.shape == (H, B, T, E)
    heads_HBTE.backward(torch.empty_like(heads_HBTE))


@pytest.mark.parametrize("sizes", SIZES)
def test_rows_of_all_products_begin_at_16_bytes(sizes: str) -> None:
    with LeadingDimensions() as products:
        attend(sizes)
    E = SIZES[sizes][-1]
    assert products.found
    assert {n for n in products.found if n % 8} <= {E}, "heads of 41 are padded for the fused kernel alone"


@pytest.mark.parametrize("options", [{}, {"dropout": 0.1}, {"documents": True}], ids=str)
@pytest.mark.parametrize(("sizes", "launches", "scores"), [("enwik8 base", 26, 4.0), ("wt103 base", 33, 6.5)])
def test_launches_and_bytes_of_a_layer(sizes: str, launches: int, scores: float, options: dict[str, Any]) -> None:
    """Bytes in units of all scores of the layer, without what the fused kernel writes."""
    H, B, T, K, _ = SIZES[sizes]
    with Launches() as counted:
        attend(sizes, **options)
    assert counted.n <= launches, counted.by_name
    assert counted.written <= scores * 2 * H * B * T * K


@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_no_view_is_written_in_place_in_a_layer(dropout: float) -> None:
    """Its gradient would be copied: CopySlices."""
    nodes, seen = [tiny_model(dropout=dropout).train().score(*random_stream(2, 6).split(3, dim=1))[0].grad_fn], set()
    while nodes:
        node = nodes.pop()
        if node is not None and node not in seen:
            seen.add(node)
            nodes += [other for other, _ in node.next_functions]
    assert "CopySlices" not in {node.name().rpartition("::")[2] for node in seen}


def test_a_compiled_backward_pass_is_without_autocast() -> None:
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
    torch.testing.assert_close(x.grad, torch.full((8, 8), 8.008), rtol=1e-6, atol=0)
