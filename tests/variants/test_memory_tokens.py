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
from tests.model.test_reference import Reference, assert_gradients, learned_alone
from tests.model.tiny_model import (
    ENCODINGS,
    EXACT,
    assert_close,
    random_stream,
    score_segments,
    tiny_model,
)
from txl_lightning.model import attention
from txl_lightning.model.checkpoints.names import named_views
from txl_lightning.model.positions import sinusoid
from txl_lightning.variants.memory_tokens import (
    MemoryTokensTransformerXL,
    TokenMemory,
    from_original,
)

FILES = sorted((Path(__file__).parent.parent / "reference/rmt").glob("*.safetensors"))


tokens_model = partial(tiny_model, MemoryTokensTransformerXL)


@pytest.fixture(params=FILES, ids=lambda path: path.stem)
def reference(request: pytest.FixtureRequest) -> Reference:
    return Reference.load(request.param)


Close = dict[str, float]


@pytest.fixture(params=["rounded", "float64"])
def close(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Close:
    """Tolerances of a comparison with the authors' code, which rounds all logits to float32: here too, or not."""
    if request.param == "float64":
        return {"rtol": 0, "atol": 5e-8}
    exact = attention.scores
    monkeypatch.setattr(attention, "scores", lambda *args: exact(*args).float().double())
    return {"rtol": 0, "atol": 1e-12}


def scored(
    reference: Reference, model: Any, keeps_gradient: bool = False
) -> list[tuple[Tensor, TokenMemory]]:
    """Losses of every segment and the memory after it."""
    memory = replace(model.start_memory(2), keeps_gradient=keeps_gradient)
    results = []
    for tokens, targets in reference.segments():
        nll, memory = model.score(tokens, targets, memory)
        results.append((nll, memory))
        memory = replace(
            memory, states=memory.states.detach()
        )  # in their code states never carry a gradient
    return results


def test_losses_memory_tokens_and_states_are_those_of_the_authors(reference, close):
    for i, (nll, memory) in enumerate(
        scored(reference, from_original(reference.weights, reference.config))
    ):
        torch.testing.assert_close(nll, reference.tensors[f"nll/{i}"], **close)
        torch.testing.assert_close(
            memory.tokens_nBD.transpose(0, 1), reference.tensors[f"memory_tokens/{i}"], **close
        )
        reference.assert_states(i, memory, close)


@pytest.mark.parametrize("through", [False, True], ids=["last segment", "all segments"])
def test_gradients_of_parameters_are_those_of_the_authors(reference, close, through):
    model = from_original(reference.weights, reference.config)
    expected = reference.under("grad_through/" if through else "grad_last/")
    nll, memory = scored(reference, model, keeps_gradient=through)[-1]
    assert memory.tokens_nBD.requires_grad is through
    nll.mean().backward()
    ours = {"mem_tokens": model.memory_tokens.initial.grad[:, None]}
    gradients = {
        name: torch.zeros_like(p) if p.grad is None else p.grad
        for name, p in model.named_parameters()
    }
    ours |= {
        name: view
        for names, view in named_views(gradients, model.config, "original")
        for name in names
    }
    assert ("mem_tokens" in expected) is through
    assert_gradients(ours, expected, {"mem_tokens", *learned_alone(reference.weights)}, close)


def naive(
    model: MemoryTokensTransformerXL, tokens_T: Tensor, memory: TokenMemory, b: int
) -> tuple[Tensor, Tensor]:
    """Hidden states of one stream and the memory tokens that it writes, pair by pair."""
    config = model.config
    layers = list[Any](model.layers)
    n = config.n_tokens
    T = len(tokens_T)
    M = memory.length
    scale = config.d_head**-0.5
    z_nD = memory.tokens_nBD[:, b]
    hidden = torch.cat(
        [z_nD, model.embedding(tokens_T[None])[0], *([z_nD] if config.write_tokens else [])]
    )
    Q = len(hidden)
    K = M + len(hidden)

    def sees(i: int, j: int) -> bool:
        if i < n:
            return M <= j < M + n or (j < M and config.tokens_see_states)
        return j <= M + i if i < n + T else j >= M or config.tokens_see_states

    for number, layer in enumerate(layers):
        attention = layer.attention
        heads = (config.n_head, config.d_head)
        keys = torch.cat([memory.states[number, b], hidden])
        q, _, _ = attention.qkv(hidden).unflatten(-1, (3, *heads)).unbind(1)
        _, k, v = attention.qkv(keys).unflatten(-1, (3, *heads)).unbind(1)
        r = attention.position(sinusoid(torch.arange(K).double(), config.d_model)).unflatten(
            -1, heads
        )
        u = model.encoding.u[0]
        w = model.encoding.v[0]
        attended = torch.zeros(Q, *heads, dtype=torch.float64)
        for h in range(config.n_head):
            for i in range(Q):
                logits = torch.full((K,), -torch.inf, dtype=torch.float64)
                for j in filter(lambda j, i=i: sees(i, j), range(K)):
                    distance = M + i - j
                    position = torch.tensor(0.0)  # of the next key
                    if distance >= 0:
                        position = (q[i, h] + w[h]) @ r[distance, h]
                    elif distance <= -2:
                        position = (q[i + 1, h] + w[h]) @ r[K + distance + 1, h]
                    logits[j] = ((q[i, h] + u[h]) @ k[j, h] + position) * scale
                attended[i, h] = logits.softmax(0) @ v[:, h]
        hidden = layer.after_attention(hidden[None], attention.output(attended.flatten(1))[None])[0]
    return hidden[n : n + T], hidden[n + T :] if config.write_tokens else hidden[:n]


@torch.no_grad()
@pytest.mark.parametrize(
    ("n", "mem_len", "writes", "see_states"), product_of([1, 4], [0, 7], *[[True, False]] * 2)
)
def test_segments_equal_loops_over_all_pairs(n, mem_len, writes, see_states):
    model = tokens_model(
        n_tokens=n, mem_len=mem_len, write_tokens=writes, tokens_see_states=see_states
    )
    memory = model.start_memory(2)
    for tokens in random_stream(2, 9).split([4, 3, 2], dim=1):
        hidden, after = model(tokens, memory)
        for b in range(2):
            expected, written = naive(model, tokens[b], memory, b)
            assert_close(hidden[b], expected)
            assert_close(after.tokens_nBD[:, b], written)
        last, same = model(tokens, memory, n_last=2)
        some, _ = model(tokens, memory, places_Q=torch.tensor([1, 0]))
        assert_close((last, some), (hidden[:, -2:], hidden[:, [1, 0]]))
        assert_close(same.tokens_nBD, after.tokens_nBD)
        memory = after


@torch.no_grad()
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_every_encoding_hands_on_what_was_written_and_nothing_after_a_token(encoding):
    model = tokens_model(**{**ENCODINGS[encoding], "n_tokens": 3, "mem_len": 0})
    stream = random_stream(1, 12)
    changed = stream.repeat(3, 1)
    changed[1, 0] = (changed[1, 0] + 1) % 11  # in the first segment
    changed[2, 10] = (changed[2, 10] + 1) % 11  # in the last
    memory = None
    for tokens in changed.split(4, dim=1):
        hidden, memory = model(tokens, memory)
    difference = (hidden[1:] - hidden[:1]).abs().amax(-1)
    assert (difference[0] > 1e-9).all()
    assert (difference[1] > 1e-9).tolist() == [False, False, True, True]


@pytest.mark.parametrize(
    "options", [{}, {"write_tokens": False, "encoding": "rope", "d_head": 4}], ids=str
)
def test_long_segments_on_the_cpu_equal_the_fused_kernel(options, monkeypatch):
    """Blocks of queries would hide the later keys that memory tokens see."""
    stream = random_stream(2, 301)
    found = []
    for on_cpu in (True, False):
        monkeypatch.setattr(attention, "is_eager_on_cpu", lambda tensor, on_cpu=on_cpu: on_cpu)
        model = tokens_model(n_tokens=70, mem_len=5, **options)
        losses, _ = score_segments(model, stream, 150)
        losses.mean().backward()
        with torch.no_grad():
            found.append(
                [
                    score_segments(model, stream, 150)[0],
                    losses,
                    *(p.grad for p in model.parameters()),
                ]
            )
    torch.testing.assert_close(*found, **EXACT)
