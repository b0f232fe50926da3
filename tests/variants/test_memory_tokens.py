"""Memory tokens: the authors' outputs and gradients, loops over all pairs."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.covering import product_of
from tests.model.test_reference import (
    Reference,
    assert_gradients,
    learned_alone,
    with_gradients_as_weights,
)
from tests.model.tiny_model import (
    ENCODINGS,
    assert_close,
    hidden_states,
    random_stream,
    score_segments,
    tiny_model,
)
from txl_lightning.model import attention
from txl_lightning.model.checkpoints.names import named_views
from txl_lightning.model.positions import sinusoid
from txl_lightning.variants.memory_tokens import (
    MemoryTokensConfig,
    MemoryTokensTransformerXL,
    TokenMemory,
    from_original,
)

FILES = sorted((Path(__file__).parent.parent / "reference/rmt").glob("*.safetensors"))


tokens_model = partial(tiny_model, MemoryTokensTransformerXL)


@pytest.fixture(
    params=FILES,
    ids=lambda path: path.stem,
)
def reference(request: pytest.FixtureRequest) -> Reference:
    return Reference.load(request.param)


Close = dict[str, float]


@pytest.fixture(params=["rounded", "float64"])
def close(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Close:
    """Tolerances of a comparison with the authors' code, which rounds all logits to float32: here too, or not."""
    if request.param == "float64":
        return {"rtol": 0, "atol": 5e-8}
    exact = attention.scores
    monkeypatch.setattr(
        attention,
        "scores",
        lambda *args: exact(*args).float().double(),
    )
    return {"rtol": 0, "atol": 1e-12}


def scored(
    reference: Reference, model: Any, keeps_gradient: bool = False
) -> list[tuple[Tensor, TokenMemory]]:
    """Losses of every segment and the memory after it."""
    memory = replace(
        model.start_memory(2),
        keeps_gradient=keeps_gradient,
    )
    results = []
    for tokens, targets in reference.segments():
        nll, memory = model.score(
            tokens,
            targets,
            memory,
        )
        results.append((nll, memory))
        # In their code states never carry a gradient.
        memory = replace(
            memory,
            states=memory.states.detach(),
        )
    return results


def test_losses_memory_tokens_and_states_are_those_of_the_authors(reference, close):
    model = from_original(reference.weights, reference.config)
    for i, (nll, memory) in enumerate(scored(reference, model)):
        found = [
            nll,
            memory.tokens_nBD.transpose(0, 1),
        ]
        expected = [reference.tensors[f"{name}/{i}"] for name in ("nll", "memory_tokens")]
        torch.testing.assert_close(found, expected, **close)
        reference.assert_states(i, memory, close)


@pytest.mark.parametrize(
    "through",
    [False, True],
    ids=["last segment", "all segments"],
)
def test_gradients_of_parameters_are_those_of_the_authors(reference, close, through):
    model = from_original(reference.weights, reference.config)
    nll, memory = scored(reference, model, keeps_gradient=through)[-1]
    assert memory.tokens_nBD.requires_grad is through
    nll.mean().backward()
    gradients = with_gradients_as_weights(model).state_dict()
    ours = {"mem_tokens": gradients["memory_tokens.initial"][:, None]}
    for names, view in named_views(gradients, model.config, "original"):
        for name in names:
            ours[name] = view
    expected = reference.under("grad_through/" if through else "grad_last/")
    assert ("mem_tokens" in expected) is through
    learned = {"mem_tokens", *learned_alone(reference.weights)}
    assert_gradients(ours, expected, learned, close)


def sees(i: int, j: int, M: int, T: int, config: MemoryTokensConfig) -> bool:
    """Whether place i of a row [z ∘ T tokens ∘ z] attends to key j, of M states and the row."""
    n = config.n_tokens
    if n <= i < n + T:
        return j <= M + i
    if j < M:
        return config.tokens_see_states
    return i >= n or j < M + n


def naive_heads(attention: Any, bias: Any, keys_KD: Tensor, T: int, Q: int, config: Any) -> Tensor:
    """Heads of the last Q keys of one stream, pair by pair."""
    K = len(keys_KD)
    q, k, v = attention.qkv(keys_KD).unflatten(-1, (3, 2, 3)).unbind(1)
    q = q[K - Q :]
    r = attention.position(sinusoid(torch.arange(K).double(), 8)).unflatten(-1, (2, 3))
    heads = []
    for i in range(Q):
        logits_HK = torch.full((2, K), -torch.inf).double()
        for j in range(K):
            distance = K - Q + i - j
            position_H = torch.zeros(2)  # of the next key
            if distance >= 0:
                position_H = ((q[i] + bias.v[0]) * r[distance]).sum(-1)
            elif distance <= -2 and i + 1 < Q:
                position_H = ((q[i + 1] + bias.v[0]) * r[K + distance + 1]).sum(-1)
            content_H = ((q[i] + bias.u[0]) * k[j]).sum(-1)
            if sees(i, j, K - Q, T, config):
                logits_HK[:, j] = (content_H + position_H) / 3**0.5
        heads.append(torch.einsum("hk,khe->he", logits_HK.softmax(-1), v))
    return torch.stack(heads).flatten(1)


def naive(model: Any, tokens_T: Tensor, memory: TokenMemory, b: int) -> list[Tensor]:
    """Hidden states of one stream and the memory tokens that it writes."""
    config = model.config
    n = config.n_tokens
    T = len(tokens_T)
    z_nD = memory.tokens_nBD[:, b]
    row = [z_nD, model.embedding(tokens_T)]
    if config.write_tokens:
        row.append(z_nD)
    hidden = torch.cat(row)
    Q = len(hidden)
    for N, layer in enumerate(model.layers):
        keys_KD = torch.cat([memory.states[N, b], hidden])
        heads = naive_heads(
            layer.attention,
            model.encoding,
            keys_KD,
            T,
            Q,
            config,
        )
        hidden = layer.after_attention(
            hidden,
            layer.attention.output(heads),
        )
    written = hidden[n + T :] if config.write_tokens else hidden[:n]
    return [
        hidden[n : n + T],
        written,
    ]


@torch.no_grad()
@pytest.mark.parametrize(
    ("n", "mem_len", "writes", "see_states"),
    product_of(
        [1, 4],
        [0, 7],
        [True, False],
        [True, False],
    ),
)
def test_segments_equal_loops_over_all_pairs(n, mem_len, writes, see_states):
    options = {"write_tokens": writes, "tokens_see_states": see_states}
    model = tokens_model(
        n_tokens=n,
        mem_len=mem_len,
        **options,
    )
    memory = model.start_memory(2)
    for tokens in random_stream(2, 9).split([4, 3, 2], dim=1):
        hidden, after = model(tokens, memory)
        for b in range(2):
            found = [
                hidden[b],
                after.tokens_nBD[:, b],
            ]
            assert_close(
                found,
                naive(model, tokens[b], memory, b),
            )
        last, same = model(
            tokens,
            memory,
            n_last=2,
        )
        some, _ = model(
            tokens,
            memory,
            places_Q=torch.tensor([1, 0]),
        )
        assert_close(
            (last, some),
            (hidden[:, -2:], hidden[:, [1, 0]]),
        )
        assert_close(same.tokens_nBD, after.tokens_nBD)
        memory = after


@torch.no_grad()
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_every_encoding_hands_on_what_was_written_and_nothing_after_a_token(encoding):
    model = tokens_model(
        **ENCODINGS[encoding],
        n_tokens=3,
        mem_len=0,
    )
    streams = random_stream(1, 12).repeat(3, 1)
    for row, place in ((1, 0), (2, 10)):  # in the first segment, and in the last
        streams[row, place] = (streams[row, place] + 1) % 11
    hidden = hidden_states(model, streams, 4)[:, -4:]
    is_changed = (hidden - hidden[:1]).abs().amax(-1) > 1e-9
    assert is_changed[1].all()
    assert is_changed[2].tolist() == [False, False, True, True]


LONG = [
    {},
    {"write_tokens": False, "encoding": "rope", "d_head": 4},
]


@pytest.mark.parametrize("options", LONG, ids=str)
def test_long_segments_on_the_cpu_equal_the_fused_kernel(options, monkeypatch):
    """Blocks of queries would hide the later keys that memory tokens see."""
    stream = random_stream(2, 301)
    results = []
    for on_cpu in (True, False):
        monkeypatch.setattr(
            attention,
            "is_eager_on_cpu",
            lambda tensor, on_cpu=on_cpu: on_cpu,
        )
        model = tokens_model(
            n_tokens=70,
            mem_len=5,
            **options,
        )
        losses, _ = score_segments(model, stream, 150)
        losses.mean().backward()
        with torch.no_grad():
            without_gradient, _ = score_segments(model, stream, 150)
        gradients = [parameter.grad for parameter in model.parameters()]
        results.append([losses, without_gradient, *gradients])
    assert_close(*results)
