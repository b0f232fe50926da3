"""A naive attention in plain loops, as the paper writes it, is the judge of the fast one."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.model.tiny_model import random_stream, score_segments, tiny_model
from txl_lightning import TransformerXLConfig
from txl_lightning.model.layers import RelativeAttention, relative_scores
from txl_lightning.model.memory import Memory
from txl_lightning.model.positions import attention_mask, relative_positions, relative_shift, sinusoid


def R(distance: float, D: int) -> Tensor:
    """Half of the sinusoid is sines, the other half cosines of the same angles."""
    angles = [distance / 10000 ** (2 * k / D) for k in range(D // 2)]
    return torch.tensor([math.sin(a) for a in angles] + [math.cos(a) for a in angles], dtype=torch.float64)


def sees(i: int, j: int, M: int, filled: int, attention_len: int | None) -> bool:
    """Whether query i may attend to key j, where key M is the segment's first token."""
    distance = M + i - j
    return distance >= 0 and j >= M - filled and (attention_len is None or distance < attention_len)


def naive_score(q: Tensor, k: Tensor, u: Tensor, v: Tensor, W_kR: Tensor, distance: int, clamp_len: int) -> Tensor:
    """A_ij / sqrt(E), the four terms of §3.3 one by one."""
    r = W_kR @ R(min(distance, clamp_len) if clamp_len > 0 else distance, W_kR.shape[1])
    a = q @ k
    b = q @ r
    c = u @ k
    d = v @ r
    return (a + b + c + d) / math.sqrt(len(q))


def naive_attention(
    hidden: Tensor,
    memory: Tensor,
    W_qkv: Tensor,
    W_kR: Tensor,
    W_o: Tensor,
    u: Tensor,
    v: Tensor,
    clamp_len: int,
    filled: int,
    attention_len: int | None,
) -> Tensor:
    (B, T, _), M, (H, E) = hidden.shape, memory.shape[1], u.shape
    W_q, W_kE, W_v = (W.unflatten(0, (H, E)) for W in W_qkv.chunk(3))
    W_kR = W_kR.unflatten(0, (H, E))
    outputs = []
    for b in range(B):
        states = [*memory[b], *hidden[b]]
        for i in range(T):
            heads = []
            for h in range(H):
                q = W_q[h] @ states[M + i]
                keys = [j for j in range(M + T) if sees(i, j, M, filled, attention_len)]
                scores = [naive_score(q, W_kE[h] @ states[j], u[h], v[h], W_kR[h], M + i - j, clamp_len) for j in keys]
                probabilities = torch.softmax(torch.stack(scores), dim=0)
                heads.append(sum(p * (W_v[h] @ states[j]) for p, j in zip(probabilities, keys, strict=True)))
            outputs.append(W_o @ torch.cat(heads))
    return torch.stack(outputs).view(B, T, -1)


@st.composite
def problems(draw: st.DrawFn) -> dict[str, int | None]:
    """Sizes and options of one attention."""
    names = {"B": (1, 2), "T": (1, 4), "M": (0, 4), "H": (1, 3), "E": (1, 4)}
    sizes = {name: draw(st.integers(*bounds), label=name) for name, bounds in names.items()}
    K = sizes["M"] + sizes["T"]
    return {
        **sizes,
        "D": 2 * draw(st.integers(1, 3), label="D/2"),
        "filled": draw(st.integers(0, sizes["M"]), label="filled"),
        "clamp_len": draw(st.sampled_from([-1, 0, 1, 2, 4]), label="clamp_len"),
        "attention_len": draw(st.none() | st.integers(1, K), label="attention_len"),
        "seed": draw(st.integers(0, 2**16), label="seed"),
    }


@settings(max_examples=40)
@given(problems())
def test_attention_is_the_naive_attention_in_outputs_and_gradients(problem):
    B, T, M, H, E, D = (problem[letter] for letter in "BTMHED")
    clamp_len, filled, attention_len = problem["clamp_len"], problem["filled"], problem["attention_len"]
    generator = torch.Generator().manual_seed(problem["seed"])

    def random(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_()

    attention = RelativeAttention(TransformerXLConfig(1, d_model=D, n_head=H, d_head=E)).double()
    W_qkv, W_kR, W_o = weights = random(3 * H * E, D), random(H * E, D), random(D, H * E)
    attention.load_state_dict({"qkv.weight": W_qkv, "position.weight": W_kR, "output.weight": W_o})
    hidden, memory, u, v = inputs = random(B, T, D), random(B, M, D), random(H, E), random(H, E)
    positions = relative_positions(M + T, D, clamp_len, hidden)
    mask = attention_mask(T, M, filled, attention_len, hidden)
    cotangent = random(B, T, D).detach()

    fast = attention(hidden, memory, positions, u, v, mask)
    naive = naive_attention(hidden, memory, W_qkv, W_kR, W_o, u, v, clamp_len, filled, attention_len)
    torch.testing.assert_close(fast, naive, rtol=1e-10, atol=1e-10)

    fast_gradients = torch.autograd.grad(fast, [*inputs, *attention.parameters()], cotangent, materialize_grads=True)
    naive_gradients = torch.autograd.grad(naive, [*inputs, *weights], cotangent, materialize_grads=True)
    for fast_gradient, naive_gradient in zip(fast_gradients, naive_gradients, strict=True):
        torch.testing.assert_close(fast_gradient, naive_gradient, rtol=1e-9, atol=1e-9)


@settings(max_examples=40)
@given(problems())
def test_relative_scores_are_the_four_terms(problem):
    B, T, M, H, E, D = (problem[letter] for letter in "BTMHED")
    generator = torch.Generator().manual_seed(problem["seed"])
    q, k, u, v, W_kR = (
        torch.randn(shape, generator=generator, dtype=torch.float64)
        for shape in [(H, B, T, E), (H, B, M + T, E), (H, E), (H, E), (H, E, D)]
    )
    positions = relative_positions(M + T, D, problem["clamp_len"], q)
    mask = attention_mask(T, M, problem["filled"], problem["attention_len"], q)
    fast = relative_scores(q, k, positions @ W_kR.transpose(1, 2), u, v, mask).view(H, B, T, M + T)
    for h, b, i, j in torch.cartesian_prod(*map(torch.arange, fast.shape)).tolist():
        if sees(i, j, M, problem["filled"], problem["attention_len"]):
            naive = naive_score(q[h, b, i], k[h, b, j], u[h], v[h], W_kR[h], M + i - j, problem["clamp_len"])
            torch.testing.assert_close(fast[h, b, i, j], naive, rtol=1e-10, atol=1e-10)
        else:
            assert fast[h, b, i, j] == -math.inf


@given(X=st.integers(1, 3), T=st.integers(1, 5), M=st.integers(0, 5))
def test_relative_shift_puts_every_distance_under_its_key(X, T, M):
    K = M + T
    by_distance = torch.arange(X * T * (K + 1), dtype=torch.float64).view(X, T, K + 1)
    by_key = relative_shift(by_distance)
    assert by_key.shape == (X, T, K)
    for x in range(X):
        for i in range(T):
            for j in range(M + i + 1):
                assert by_key[x, i, j] == by_distance[x, i, K - (M + i - j)]


@given(
    T=st.integers(1, 5), M=st.integers(0, 5), unfilled=st.integers(0, 5), attention_len=st.none() | st.integers(1, 10)
)
def test_mask_is_zero_exactly_where_a_query_sees_a_key(T, M, unfilled, attention_len):
    filled = max(0, M - unfilled)
    mask = attention_mask(T, M, filled, attention_len, torch.zeros(1, dtype=torch.float64))
    assert mask.dtype == torch.float64
    assert mask.shape == (T, M + T)
    for i in range(T):
        for j in range(M + T):
            assert mask[i, j] == (0 if sees(i, j, M, filled, attention_len) else -math.inf)


def test_sinusoid_is_sines_then_cosines():
    distances = torch.tensor([0.0, 1.0, 7.0, 3000.0], dtype=torch.float64)
    expected = torch.stack([R(distance, 6) for distance in distances.tolist()])
    torch.testing.assert_close(sinusoid(distances, 6), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("clamp_len", "distances"), [(-1, [4, 3, 2, 1, 0]), (0, [4, 3, 2, 1, 0]), (2, [2, 2, 2, 1, 0])]
)
def test_positions_count_down_to_zero_and_are_clamped_from_above(clamp_len, distances):
    positions = relative_positions(4, 6, clamp_len, torch.zeros(1, dtype=torch.float64))
    torch.testing.assert_close(positions, torch.stack([R(d, 6) for d in distances]), rtol=0, atol=1e-12)


def test_far_positions_are_precise_in_single_precision():
    positions = relative_positions(5000, 6, -1, torch.zeros(1))
    assert positions.dtype == torch.float32
    torch.testing.assert_close(positions[0].double(), R(5000, 6), rtol=0, atol=1e-7)


@pytest.mark.parametrize("pre_norm", [False, True])
def test_a_token_never_sees_the_future(pre_norm):
    model, stream = tiny_model(pre_norm=pre_norm), random_stream(1, 6)
    hidden, _ = model(stream)
    for position in range(6):
        changed = stream.clone()
        changed[0, position] = (changed[0, position] + 1) % model.config.vocab_size
        differs = (model(changed)[0] - hidden).abs().amax(-1)[0] > 0
        assert differs.tolist() == [t >= position for t in range(6)]


def test_no_gradient_reaches_earlier_segments():
    model = tiny_model(mem_len=4)
    first, second = torch.tensor([[0, 1, 2, 3]]), torch.tensor([[4, 5, 6, 7]])
    _, memory = model(first)
    assert not memory.states.requires_grad
    hidden, _ = model(second, memory)
    hidden.square().sum().backward()
    reached = model.embedding.weight.grad.abs().amax(-1) > 0
    assert reached.nonzero().flatten().tolist() == [4, 5, 6, 7]


def test_gradient_reaches_key_and_value_weights_through_the_memory():
    model, width = tiny_model(n_layer=1), 6
    stream = random_stream(2, 9)
    _, memory = score_segments(model, stream[:, :5], [4])
    inputs = torch.randn(2, 1, 8, dtype=torch.float64)
    layer = model.layers[0].attention

    def gradient_of_keys_and_values(states: Tensor) -> Tensor:
        """Only memory is visible, so nothing but its states can carry a gradient into W_k and W_v."""
        mask = torch.tensor([[0.0] * 4 + [-math.inf]], dtype=torch.float64)
        positions = relative_positions(5, 8, -1, inputs)
        output = layer(inputs, states, positions, model.u[0], model.v[0], mask)
        (gradient,) = torch.autograd.grad(output.square().sum(), layer.qkv.weight)
        return gradient[width:]

    through_memory = gradient_of_keys_and_values(memory.states[0])
    assert (through_memory.abs().amax(-1) > 0).all()
    assert not gradient_of_keys_and_values(torch.zeros_like(memory.states[0])).any()


def test_gradient_of_a_later_segment_depends_on_its_memory():
    model, stream = tiny_model(), random_stream(2, 9)
    _, memory = score_segments(model, stream[:, :5], [4])

    def gradient(memory: Memory) -> Tensor:
        nll, _ = model.score(stream[:, 4:8], stream[:, 5:9], memory)
        return torch.autograd.grad(nll.mean(), model.layers[0].attention.qkv.weight)[0]

    zeroed = Memory(torch.zeros_like(memory.states), filled=memory.filled)
    assert ((gradient(memory) - gradient(zeroed)).abs().amax(-1) > 1e-9)[6:].all()
