"""The attention against a naive one: plain loops over the paper's equation."""

import math
from types import SimpleNamespace
from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.model.tiny_model import SUBSETS
from txl_lightning import TransformerXLConfig
from txl_lightning.model.attention import Attention
from txl_lightning.model.encodings import LayerPositions
from txl_lightning.model.positions import VisibleKeys, attention_mask, sinusoids_of_distances


def R(distance: float, D: int) -> Tensor:
    """Sinusoid of a distance: half sines, half cosines of the same angles."""
    angles = [distance / 10000 ** (2 * k / D) for k in range(D // 2)]
    return torch.tensor(
        [math.sin(a) for a in angles] + [math.cos(a) for a in angles], dtype=torch.float64
    )


def sees(i: int, j: int, M: int, filled: int, attention_len: int | None) -> bool:
    """Return whether query i may attend to key j, where key M is the segment's first token."""
    distance = M + i - j
    return distance >= 0 and j >= M - filled and (attention_len is None or distance < attention_len)


def naive_score(w: Any, h: int, q: Tensor, k: Tensor, distance: int, problem: dict) -> Tensor:
    """A_ij / sqrt(E): the terms of §3.3 that are on, one by one."""
    if problem["encoding"] == "shaw":
        farthest = min(distance, problem["table_len"] - 1)
        r, d = w.table[h][farthest], w.bias[h][farthest]
    else:
        clamped = min(distance, problem["clamp_len"]) if problem["clamp_len"] > 0 else distance
        r = w.W_kR[h] @ R(clamped, w.W_kR.shape[2])
        d = w.v[h] @ r
    terms = {"a": q @ k, "b": q @ r, "c": w.u[h] @ k, "d": d}
    zero = torch.zeros((), dtype=q.dtype)
    return sum((terms[name] for name in problem["terms"]), start=zero) / math.sqrt(len(q))


def naive_attention(hidden: Tensor, memory: Tensor, w: Any, problem: dict) -> Tensor:
    (B, T, _), M, H = hidden.shape, memory.shape[1], len(w.W_q)
    outputs = []
    for b in range(B):
        states = [*memory[b], *hidden[b]]
        for i in range(T):
            heads = []
            for h in range(H):
                q = w.W_q[h] @ states[M + i]
                keys = [
                    j
                    for j in range(M + T)
                    if sees(i, j, M, problem["filled"], problem["attention_len"])
                ]
                scores = [
                    naive_score(w, h, q, w.W_kE[h] @ states[j], M + i - j, problem) for j in keys
                ]
                probabilities = torch.softmax(torch.stack(scores), dim=0)
                values = [w.W_v[h] @ states[j] for j in keys]
                heads.append(sum(p * value for p, value in zip(probabilities, values, strict=True)))
            outputs.append(w.W_o @ torch.cat(heads))
    return torch.stack(outputs).view(B, T, -1)


PROBLEMS = st.fixed_dictionaries(
    {
        "B": st.integers(1, 2),
        "T": st.integers(1, 4),
        "H": st.integers(1, 3),
        "E": st.integers(1, 4),
        "D": st.sampled_from([2, 4, 6]),
        "memory": st.sampled_from([(M, filled) for M in range(5) for filled in range(M + 1)]),
        "clamp_len": st.sampled_from([-1, 0, 1, 2, 4]),
        "attention_len": st.none() | st.integers(1, 8),
        "encoding": st.sampled_from(["relative", "relative", "shaw"]),
        "terms": st.sampled_from(SUBSETS) | st.just("abcd"),
        "table_len": st.integers(1, 9),
        "seed": st.integers(0, 2**16),
    }
)


@settings(max_examples=80)
@given(PROBLEMS)
def test_attention_is_the_naive_attention_in_outputs_and_gradients(problem):
    (B, T, H, E, D), (M, problem["filled"]) = (
        (problem[letter] for letter in "BTHED"),
        problem["memory"],
    )
    generator = torch.Generator().manual_seed(problem["seed"])

    def random(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_()

    shapes = {
        "W_q": (H, E, D),
        "W_kE": (H, E, D),
        "W_v": (H, E, D),
        "W_o": (D, H * E),
        "u": (H, E),
        "v": (H, E),
    }
    shapes |= {
        "W_kR": (H, E, D),
        "table": (H, problem["table_len"], E),
        "bias": (H, problem["table_len"]),
    }
    w = SimpleNamespace(**{name: random(*shape) for name, shape in shapes.items()})
    terms, shaw = problem["terms"], problem["encoding"] == "shaw"
    options = {name: problem[name] for name in ("encoding", "terms", "table_len")}
    attention = Attention(TransformerXLConfig(1, d_model=D, n_head=H, d_head=E, **options)).double()
    used = [W for W, needed in ((w.W_q, "ab"), (w.W_kE, "ac")) if set(needed) & set(terms)]
    state = {"qkv.weight": torch.cat([*used, w.W_v]).flatten(0, 1), "output.weight": w.W_o}
    if not shaw and set("bd") & set(terms):
        state["position.weight"] = w.W_kR.flatten(0, 1)
    assert {name for name, _ in attention.named_parameters()} == set(state), (
        "there are no weights that no term needs"
    )

    hidden, memory = random(B, T, D), random(B, M, D)
    distances = torch.arange(M + T, -1, -1).clamp(max=problem["table_len"] - 1)
    positions = LayerPositions(
        u_HE=w.u if "c" in terms else None,
        v_HE=w.v if "d" in terms and not shaw else None,
        sinusoids_SD=None
        if shaw
        else sinusoids_of_distances(M + T, D, problem["clamp_len"], hidden),
        table_HSE=w.table[:, distances] if shaw and "b" in terms else None,
        bias_HS=w.bias[:, distances] if shaw and "d" in terms else None,
    )
    filled, attention_len = problem["filled"], problem["attention_len"]
    visible = VisibleKeys(
        attention_mask(T, M, filled, attention_len, hidden), filled == M and attention_len is None
    )
    fast = torch.func.functional_call(attention, state, (hidden, memory, positions, visible))
    naive = naive_attention(hidden, memory, w, problem)
    torch.testing.assert_close(fast, naive, rtol=1e-10, atol=1e-10)

    cotangent, inputs = random(B, T, D).detach(), [hidden, memory, *vars(w).values()]
    ours, theirs = (
        torch.autograd.grad(y, inputs, cotangent, materialize_grads=True) for y in (fast, naive)
    )
    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)


def test_far_positions_are_precise_in_single_precision():
    positions = sinusoids_of_distances(5000, 6, -1, torch.zeros(1))
    assert positions.dtype == torch.float32
    torch.testing.assert_close(positions[0].double(), R(5000, 6), rtol=0, atol=1e-7)
