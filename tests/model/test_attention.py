"""The attention against a naive one: plain loops over the paper's equation."""

import math
from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.model.tiny_model import SUBSETS, assert_close, assert_same_gradients
from txl_lightning import TransformerXLConfig
from txl_lightning.model.attention import Attention
from txl_lightning.model.encodings import LayerPositions
from txl_lightning.model.positions import VisibleKeys, attention_mask, sinusoids_of_distances


def R(distance: float, D: int) -> Tensor:
    """Sinusoid of a distance: half sines, half cosines of the same angles."""
    angles = [distance / 10000 ** (2 * k / D) for k in range(D // 2)]
    sines = [math.sin(angle) for angle in angles]
    cosines = [math.cos(angle) for angle in angles]
    return torch.tensor(sines + cosines, dtype=torch.float64)


def naive_score(w: Any, h: int, q: Tensor, k: Tensor, distance: int, problem: Any) -> Tensor:
    """A_ij of head h: the terms of section 3.3 that are on, one by one."""
    if problem["clamp_len"] > 0:
        distance = min(distance, problem["clamp_len"])
    r = w["W_kR"][h] @ R(distance, problem["D"])
    terms = {
        "a": q @ k,
        "b": q @ r,
        "c": w["u"][h] @ k,
        "d": w["v"][h] @ r,
    }
    score = torch.zeros((), dtype=q.dtype)
    for name in problem["terms"]:
        score = score + terms[name]
    return score / math.sqrt(len(q))


def naive_heads(states: Tensor, i: int, w: Any, problem: Any) -> Tensor:
    """The heads of query i of one stream, whose segment begins at key M."""
    M, filled = problem["memory"]
    attention_len = problem["attention_len"] or len(states)
    first = max(
        M - filled,
        i - attention_len + 1,
    )
    heads = []
    for h in range(problem["H"]):
        q = w["W_q"][h] @ states[i]
        scores = []
        values = []
        for j in range(first, i + 1):
            k = w["W_kE"][h] @ states[j]
            scores.append(naive_score(w, h, q, k, i - j, problem))
            values.append(w["W_v"][h] @ states[j])
        probabilities = torch.stack(scores).softmax(dim=0)
        heads.append(probabilities @ torch.stack(values))
    return torch.cat(heads)


def naive_attention(hidden: Tensor, memory: Tensor, w: Any, problem: Any) -> Tensor:
    outputs = []
    for states in torch.cat([memory, hidden], dim=1):
        for i in range(memory.shape[1], len(states)):
            outputs.append(w["W_o"] @ naive_heads(states, i, w, problem))
    return torch.stack(outputs).view_as(hidden)


PROBLEMS = st.fixed_dictionaries(
    {
        "B": st.integers(1, 2),
        "T": st.integers(1, 4),
        "H": st.integers(1, 3),
        "E": st.integers(1, 4),
        "D": st.sampled_from([2, 4, 6]),
        "memory": st.sampled_from([(0, 0), (3, 0), (3, 2), (4, 4)]),
        "clamp_len": st.sampled_from([-1, 0, 1, 2, 4]),
        "attention_len": st.none() | st.integers(1, 8),
        "terms": st.sampled_from(SUBSETS) | st.just("abcd"),
    }
)


@settings(max_examples=80)
@given(PROBLEMS, st.integers(0, 2**16))
def test_attention_is_the_naive_attention_in_outputs_and_gradients(problem, seed):
    B, T, H, E, D = (problem[letter] for letter in "BTHED")
    M, filled = problem["memory"]
    terms = problem["terms"]
    generator = torch.Generator().manual_seed(seed)

    def random(*shape):
        return torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_()

    w = {name: random(H, E, D) for name in ("W_q", "W_kE", "W_v", "W_kR")}
    w |= {
        "W_o": random(D, H * E),
        "u": random(H, E),
        "v": random(H, E),
    }
    hidden = random(B, T, D)
    memory = random(B, M, D)

    config = TransformerXLConfig(
        1,
        d_model=D,
        n_head=H,
        d_head=E,
        terms=terms,
    )
    attention = Attention(config).double()
    matrices = []
    if set("ab") & set(terms):
        matrices.append(w["W_q"])
    if set("ac") & set(terms):
        matrices.append(w["W_kE"])
    state = {"output.weight": w["W_o"]}
    state["qkv.weight"] = torch.cat([*matrices, w["W_v"]]).flatten(0, 1)
    if set("bd") & set(terms):
        state["position.weight"] = w["W_kR"].flatten(0, 1)
    names = {name for name, _ in attention.named_parameters()}
    assert names == set(state), "there are no weights that no term needs"

    sinusoids_SD = sinusoids_of_distances(
        M + T,
        D,
        problem["clamp_len"],
        hidden,
    )
    positions = LayerPositions(w["u"], w["v"], sinusoids_SD).of_terms(terms)
    attention_len = problem["attention_len"]
    mask_TK = attention_mask(T, M, filled, attention_len, hidden)
    visible = VisibleKeys(
        mask_TK,
        sees_memory=filled == M and attention_len is None,
    )
    inputs = (hidden, memory, positions, visible)
    fast = torch.func.functional_call(attention, state, inputs)
    naive = naive_attention(hidden, memory, w, problem)
    assert_same_gradients(
        fast,
        naive,
        [hidden, memory, *w.values()],
    )


def test_far_positions_are_precise_in_single_precision():
    positions = sinusoids_of_distances(
        5000,
        6,
        -1,
        torch.zeros(1),
    )
    assert positions.dtype == torch.float32
    assert_close(
        positions[0].double(),
        R(5000, 6),
        1e-07,
    )
