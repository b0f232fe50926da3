"""Attention from one block of queries after another: the same outputs and gradients, in less memory."""

import itertools

import pytest
import torch
from torch import Tensor
from torch.profiler import profile

from tests.model.kernels.attention_problem import DEVICE, Problem
from txl_lightning import TransformerXLConfig
from txl_lightning.model import attention as attention_module
from txl_lightning.model.attention import Attention
from txl_lightning.model.encodings import LayerPositions
from txl_lightning.model.kernels import cpu_parts
from txl_lightning.model.positions import attention_mask, sinusoids_of_distances

pytestmark = pytest.mark.skipif(DEVICE != "cpu", reason="blocks are for the CPU; these problems are on the GPU")
SUBSETS = ["".join(terms) for n in range(5) for terms in itertools.combinations("abcd", n)]
WHOLE: dict[torch.dtype, int] = {}


def both(monkeypatch: pytest.MonkeyPatch, problem: Problem, dtype: torch.dtype, size: int = 8) -> list[dict]:
    """The output and all gradients of the whole and in blocks."""
    found = []
    for blocks in (WHOLE, {dtype: size}):
        monkeypatch.setattr(cpu_parts, "BLOCK", blocks)
        found.append(problem.run("eager", dtype))
    assert found[0].keys() == found[1].keys()
    return found


@pytest.mark.parametrize(
    "problem",
    [
        *(Problem(terms=terms) for terms in SUBSETS),
        *(Problem(terms=terms, encoding="shaw") for terms in ("abcd", "abd", "cd", "d")),
        Problem(T=16, M=0, filled=0),
        Problem(T=9, M=60, filled=17, clamp_len=9),
        Problem(T=40, M=24, filled=3, attention_len=9),
        Problem(encoding="alibi"),
        Problem(encoding="rope", E=6, qk_norm=True),
    ],
    ids=str,
)
def test_blocks_give_what_the_whole_gives(monkeypatch: pytest.MonkeyPatch, problem: Problem) -> None:
    whole, blocks = both(monkeypatch, problem, torch.float64)
    for name, expected in whole.items():
        torch.testing.assert_close(blocks[name], expected, rtol=1e-11, atol=1e-11, msg=lambda text, n=name: n + text)


def test_blocks_in_bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    whole, blocks = both(monkeypatch, Problem(), torch.bfloat16)
    for name, expected in whole.items():
        torch.testing.assert_close(blocks[name], expected, rtol=0.05, atol=0.05 * expected.abs().max().item())


def test_masks_of_each_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    attention, inputs = layer(T=20, M=4, dropout=0.0)
    hidden, memory, positions = inputs
    mask = attention_mask(20, 4, 4, None, hidden)
    masks = torch.stack([mask, torch.where(torch.arange(24) < 6, float("-inf"), mask)])
    masks[1, :7, 6] = 0.0  # no query is without a key
    outputs = []
    for blocks in (WHOLE, {torch.float64: 7}):
        monkeypatch.setattr(cpu_parts, "BLOCK", blocks)
        q, kv = attention.project_with_memory(hidden, memory)
        outputs.append(attention.attend_eager(q, kv.unbind(), positions, masks))
    torch.testing.assert_close(outputs[1], outputs[0], rtol=1e-11, atol=1e-11)


def layer(
    T: int, M: int, dropout: float, dtype: torch.dtype = torch.float64, terms: str = "abcd"
) -> tuple[Attention, tuple]:
    """An attention of two heads with its input, memory and positions."""
    torch.manual_seed(1)
    config = TransformerXLConfig(1, d_model=8, n_head=2, d_head=4, attention_dropout=dropout, terms=terms)
    attention = Attention(config).to(dtype)
    hidden, memory = torch.randn(2, T, 8, dtype=dtype), torch.randn(2, M, 8, dtype=dtype)
    u, v = torch.randn(2, 2, 4, dtype=dtype)
    sinusoids = sinusoids_of_distances(T + M, 8, -1, hidden)
    return attention, (hidden.requires_grad_(), memory, LayerPositions(u_HE=u, v_HE=v, sinusoids_SD=sinusoids))


def heads_of(attention: Attention, inputs: tuple) -> Tensor:
    hidden, memory, positions = inputs
    q, kv = attention.project_with_memory(hidden, memory)
    mask = attention_mask(hidden.shape[1], memory.shape[1], memory.shape[1], None, hidden)
    return attention.attend_eager(q, kv.unbind(), positions, mask)


def test_probabilities_that_are_computed_again_are_dropped_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_parts, "BLOCK", {torch.float64: 7})
    gradients = []
    for checkpoint in (attention_module.checkpoint, lambda f, *args, **_: f(*args)):  # the second one stores them
        monkeypatch.setattr(attention_module, "checkpoint", checkpoint)
        attention, inputs = layer(T=20, M=4, dropout=0.4)
        torch.manual_seed(2)
        output = heads_of(attention, inputs)
        torch.rand(3)  # the generator has moved on when the backward pass begins
        output.square().sum().backward()
        gradients.append((output.detach(), inputs[0].grad, attention.qkv.weight.grad))
    assert all(torch.equal(one, other) for one, other in zip(*gradients, strict=True))


def test_no_probabilities_are_stored() -> None:
    saved: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        saved[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    T, M = 512, 512
    attention, inputs = layer(T, M, dropout=0.1, dtype=torch.float32)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        heads_of(attention, inputs)
    probabilities = 2 * 2 * T * (M + T) * 4
    mask = T * (M + T) * 4  # one for all layers
    assert sum(saved.values()) < mask + probabilities / 32


def test_first_keys_have_the_gradients_of_slices() -> None:
    keys = torch.randn(2, 3, 7, 4, dtype=torch.float64, requires_grad=True)
    lengths, weights = [2, 5, 7], torch.randn(3, 2, 3, 7, 4, dtype=torch.float64)

    def loss(parts: list[Tensor]) -> Tensor:
        return sum((p.pow(3) * w[:, :, : p.shape[2]]).sum() for p, w in zip(parts, weights, strict=True))  # type: ignore[return-value]

    def parts() -> list[Tensor]:
        return cpu_parts.first_keys(keys, lengths)

    assert [part.shape[2] for part in parts()] == lengths
    (expected,) = torch.autograd.grad(loss([keys[:, :, :n] for n in lengths]), keys, create_graph=True)
    (found,) = torch.autograd.grad(loss(parts()), keys, create_graph=True)
    torch.testing.assert_close(found, expected)
    (second,) = torch.autograd.grad(found.square().sum(), keys)
    torch.testing.assert_close(second, torch.autograd.grad(expected.square().sum(), keys)[0])
    with torch.no_grad():
        assert all(torch.equal(part, keys[:, :, :n]) for part, n in zip(parts(), lengths, strict=True))


def test_no_gradient_of_keys_is_extended_with_zeros(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_parts, "BLOCK", {torch.float64: 7})
    attention, inputs = layer(T=20, M=4, dropout=0.0)
    loss = heads_of(attention, inputs).sum()
    with profile() as profiled:
        loss.backward()
    extended = [event.name for event in profiled.events()].count("aten::slice_backward")
    assert extended == 4  # of the table of distances for three blocks, of the weights for the memory


@pytest.mark.parametrize("by_stream", [False, True])
@pytest.mark.parametrize("terms", SUBSETS)
def test_products_give_what_fused_attention_gives(monkeypatch: pytest.MonkeyPatch, terms: str, by_stream: bool) -> None:
    attention, (hidden, memory, positions) = layer(T=6, M=20, dropout=0.0, terms=terms)
    mask = attention_mask(6, 20, 20, None, hidden)
    if by_stream:
        mask = torch.stack([mask, torch.where(torch.arange(26) < 9, float("-inf"), mask)])
    outputs = []
    for chosen in (False, True):
        choices: list[bool] = []
        monkeypatch.setattr(attention_module, "products_are_faster", lambda _, c=chosen, n=choices: n.append(c) or c)
        with torch.no_grad():
            q, kv = attention.project_with_memory(hidden, memory)
            outputs.append(attention.attend_eager(q, kv.unbind(), positions.of_terms(terms), mask))
        assert choices == ([chosen] if {"a", "c"} & set(terms) else [])  # without keys there is nothing to fuse
    torch.testing.assert_close(outputs[0], outputs[1], rtol=0, atol=1e-12)


def test_products_are_for_many_queries_in_a_precise_type() -> None:
    def chosen(T: int, dtype: torch.dtype, device: str = "cpu") -> bool:
        return cpu_parts.products_are_faster(torch.empty(1, 1, T, 300, dtype=dtype, device=device))

    assert [chosen(T, torch.float32) for T in (1, 64, 65, 128)] == [False, False, True, True]
    assert [chosen(128, dtype) for dtype in (torch.float64, torch.bfloat16, torch.float16)] == [True, False, False]
    assert not chosen(128, torch.float32, "meta")
