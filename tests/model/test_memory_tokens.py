"""Memory tokens: the authors' outputs and gradients, loops over all pairs, streams cut anywhere, what is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.covering import product_of
from tests.model.test_reference import CLOSE, Reference, learned_alone, with_gradients_as_weights
from tests.model.tiny_model import ENCODINGS, random_stream, score_segments, tiny_model
from txl_lightning import Memory, TransformerXL
from txl_lightning.errors import OptionError
from txl_lightning.model import CachedTransformerXL, SlidingWindow, generate_all
from txl_lightning.model.checkpoints.formats import CheckpointError, from_original, to_huggingface, to_original
from txl_lightning.model.inference.segments import SegmentedTransformerXL
from txl_lightning.model.kernels import cpu, eager
from txl_lightning.model.positions import sinusoid

FILES = sorted((Path(__file__).parent.parent / "reference/rmt").glob("*.safetensors"))
OPTIONS = ("num_mem_tokens", "mem_at_end", "read_mem_from_cache")


@pytest.fixture(params=FILES, ids=lambda path: path.stem)
def reference(request: pytest.FixtureRequest) -> Reference:
    return Reference.load(request.param)


@pytest.fixture(params=["rounded", "float64"])
def close(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """Tolerances of a comparison with the authors' code, which rounds all logits to float32: here too, or not."""
    if request.param == "float64":
        return {"rtol": 0, "atol": 5e-8}
    exact = eager.logits
    monkeypatch.setattr(eager, "logits", lambda factors: exact(factors).float().double())
    return {"rtol": 0, "atol": 1e-12}


def model_of(reference: Reference) -> TransformerXL:
    return from_original(reference.weights, reference.config)


def scored(reference: Reference, model: TransformerXL, keeps_gradient: bool = False) -> list[tuple[Tensor, Memory]]:
    """Losses of every segment and the memory after it."""
    memory, results = replace(model.start_memory(2), keeps_gradient=keeps_gradient), []
    for tokens, targets in reference.segments():
        nll, memory = model.score(tokens, targets, memory)
        results.append((nll, memory))
        memory = replace(memory, states=memory.states.detach())  # in their code states never carry a gradient
    return results


def test_losses_memory_tokens_and_states_are_those_of_the_authors_code(
    reference: Reference, close: dict[str, float]
) -> None:
    for i, (nll, memory) in enumerate(scored(reference, model_of(reference))):
        torch.testing.assert_close(nll, reference.tensors[f"nll/{i}"], **close)
        assert memory.tokens_nBD is not None
        torch.testing.assert_close(memory.tokens_nBD.transpose(0, 1), reference.tensors[f"memory_tokens/{i}"], **close)
        expected = reference.under(f"memory/{i}/")
        assert len(expected) == (reference.config["n_layer"] if reference.config["mem_len"] else 0)
        for layer, states in expected.items():
            torch.testing.assert_close(memory.states[int(layer)], states, **close)


@pytest.mark.parametrize("through", [False, True], ids=["last segment", "all segments"])
def test_gradients_of_every_parameter_are_those_of_the_authors_code(
    reference: Reference, close: dict[str, float], through: bool
) -> None:
    model, expected = model_of(reference), reference.under("grad_through/" if through else "grad_last/")
    nll, memory = scored(reference, model, keeps_gradient=through)[-1]
    assert memory.tokens_nBD is not None
    assert memory.tokens_nBD.requires_grad is through
    nll.mean().backward()
    ours = to_original(with_gradients_as_weights(model))[0]
    assert ("mem_tokens" in expected) is through
    for name, gradient in expected.items():
        torch.testing.assert_close(ours[name], gradient, **close, msg=lambda text, name=name: f"{name}: {text}")
    for name in learned_alone(reference.weights) - expected.keys():
        assert not ours[name].any(), f"{name} has a gradient only here"


def test_weights_convert_back_to_the_same_bits(reference: Reference) -> None:
    converted, config = to_original(model_of(reference))
    assert {name: config[name] for name in OPTIONS} == {name: reference.config[name] for name in OPTIONS}
    assert converted.keys() == reference.weights.keys()
    assert all(torch.equal(converted[name], weight) for name, weight in reference.weights.items() if "inv" not in name)
    assert from_original(converted, config).config == model_of(reference).config
    with pytest.raises(CheckpointError, match="n_tokens=3: Hugging Face's class has only n_tokens=0"):
        to_huggingface(model_of(reference).with_lengths(memory_start="zeros"))


def naive(model: TransformerXL, tokens_T: Tensor, memory: Memory, b: int) -> tuple[Tensor, Tensor]:
    """Hidden states of one stream and the memory tokens that it writes, pair by pair."""
    config, layers = model.config, list[Any](model.layers)
    n, T, M, scale = config.n_tokens, len(tokens_T), memory.length, config.d_head**-0.5
    assert memory.tokens_nBD is not None
    z_nD = memory.tokens_nBD[:, b]
    hidden = torch.cat([z_nD, model.embedding(tokens_T[None])[0], *([z_nD] if config.write_tokens else [])])
    Q, K = len(hidden), M + len(hidden)

    def sees(i: int, j: int) -> bool:
        if i < n:
            return M <= j < M + n or (j < M and config.tokens_see_states)
        return j <= M + i if i < n + T else j >= M or config.tokens_see_states

    for number, layer in enumerate(layers):
        attention, heads = layer.attention, (config.n_head, config.d_head)
        keys = torch.cat([memory.states[number, b], hidden])
        q, _, _ = attention.qkv(hidden).unflatten(-1, (3, *heads)).unbind(1)
        _, k, v = attention.qkv(keys).unflatten(-1, (3, *heads)).unbind(1)
        r = attention.position(sinusoid(torch.arange(K).double(), config.d_model)).unflatten(-1, heads)
        u, w = model.encoding.u[0], model.encoding.v[0]
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
    ("n", "mem_len", "writes", "see_states"), product_of([1, 4], [0, 7], [True, False], [True, False])
)
def test_segments_equal_loops_over_all_pairs(n: int, mem_len: int, writes: bool, see_states: bool) -> None:
    model = tiny_model(n_tokens=n, mem_len=mem_len, write_tokens=writes, tokens_see_states=see_states)
    memory = model.start_memory(2)
    for tokens in random_stream(2, 9).split([4, 3, 2], dim=1):
        hidden, after = model(tokens, memory)
        assert after.tokens_nBD is not None
        for b in range(2):
            expected, written = naive(model, tokens[b], memory, b)
            torch.testing.assert_close(hidden[b], expected, **CLOSE)
            torch.testing.assert_close(after.tokens_nBD[:, b], written, **CLOSE)
        last, same = model(tokens, memory, n_last=2)
        torch.testing.assert_close(last, hidden[:, -2:], **CLOSE)
        torch.testing.assert_close(same.tokens_nBD, after.tokens_nBD, **CLOSE)
        some, _ = model(tokens, memory, places_Q=torch.tensor([1, 0]))
        torch.testing.assert_close(some, hidden[:, [1, 0]], **CLOSE)
        memory = after


@torch.no_grad()
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_every_encoding_hands_on_what_was_written_and_nothing_after_a_token(encoding: str) -> None:
    model, stream = tiny_model(**{**ENCODINGS[encoding], "n_tokens": 3, "mem_len": 0}), random_stream(1, 12)
    changed = stream.repeat(3, 1)
    changed[1, 0] = (changed[1, 0] + 1) % 11  # in the first segment
    changed[2, 10] = (changed[2, 10] + 1) % 11  # in the last
    memory = None
    for tokens in changed.split(4, dim=1):
        hidden, memory = model(tokens, memory)
    difference = (hidden[1:] - hidden[:1]).abs().amax(-1)
    assert (difference[0] > 1e-9).all()
    assert (difference[1] > 1e-9).tolist() == [False, False, True, True]


@pytest.mark.parametrize("options", [{}, {"write_tokens": False, "encoding": "rope", "d_head": 4}], ids=str)
def test_long_segments_on_the_cpu_equal_the_eager_kernel(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blocks of queries would hide the later keys that memory tokens see."""
    stream, found = random_stream(2, 301), []
    for attend in (cpu.attend, eager.attend):
        monkeypatch.setattr(cpu, "attend", attend)
        model = tiny_model(n_tokens=70, mem_len=5, **options)
        losses, _ = score_segments(model, stream, 150)
        losses.mean().backward()
        with torch.no_grad():
            found.append([score_segments(model, stream, 150)[0], losses, *(p.grad for p in model.parameters())])
    for ours, expected in zip(*found, strict=True):
        torch.testing.assert_close(ours, expected, **CLOSE)


@torch.no_grad()
@settings(max_examples=25, deadline=None)
@given(
    encoding=st.sampled_from(sorted(ENCODINGS)),
    writes=st.booleans(),
    mem_len=st.sampled_from([0, 5]),
    cuts=st.lists(st.integers(1, 7), min_size=1, max_size=5),
)
def test_a_stream_read_in_segments_may_be_cut_anywhere(
    encoding: str, writes: bool, mem_len: int, cuts: list[int]
) -> None:
    model = tiny_model(**{**ENCODINGS[encoding], "n_tokens": 3, "mem_len": mem_len, "write_tokens": writes})
    reader, stream = SegmentedTransformerXL(model, 4), random_stream(2, sum(cuts) + 1)
    filled = torch.nn.functional.pad(stream, (0, -(stream.shape[1] - 1) % 4))
    expected, _ = score_segments(model, filled, 4)
    ours, _ = score_segments(reader, stream, cuts)  # type: ignore[arg-type]
    torch.testing.assert_close(ours, expected[:, : ours.shape[1]], **CLOSE)


@torch.no_grad()
def test_drawn_tokens_fill_segments() -> None:
    model, prompt = tiny_model(n_tokens=3, mem_len=0).eval(), random_stream(2, 6)
    drawn = generate_all(model, prompt, 7, top_k=1, segment_len=4)
    text = torch.cat([prompt, drawn], dim=1)
    hidden, memory = [], None
    for tokens in torch.nn.functional.pad(text, (0, 3)).split(4, dim=1):
        part, memory = model(tokens, memory)
        hidden.append(part)
    likeliest = model.log_probabilities(torch.cat(hidden, dim=1)).argmax(-1)
    assert torch.equal(drawn, likeliest[:, 5:12])
    with pytest.raises(OptionError, match="mem_len=0: must be >= 1 to generate"):
        generate_all(tiny_model(mem_len=0).eval(), prompt, 1)


def test_the_initial_memory_tokens_have_a_gradient_of_zero_after_the_first_segment() -> None:
    model, stream = tiny_model(n_tokens=3), random_stream(2, 9)
    initial, memory, gradients = model.get_parameter("memory_tokens.initial"), None, []
    for tokens in stream.split(4, dim=1)[:2]:
        model.zero_grad()
        nll, memory = model.score(tokens[:, :-1], tokens[:, 1:], memory)
        nll.mean().backward()
        gradients.append(bool(initial.grad.any()))  # type: ignore[union-attr]
    assert gradients == [True, False]


def test_what_memory_tokens_cannot_do_is_refused_in_one_line() -> None:
    model, tokens = tiny_model(n_tokens=3, encoding="absolute"), random_stream(2, 4)
    with pytest.raises(OptionError, match=r"^n_tokens=3: cannot be cached; use the model itself"):
        CachedTransformerXL(model)
    with pytest.raises(OptionError, match=r"^fused=True: is not possible with n_tokens=3"):
        SlidingWindow(model, 4, fused=True)
    with pytest.raises(OptionError, match=r"^ext_len=2: must be 0 with n_tokens"):
        model.with_lengths(ext_len=2)
    with pytest.raises(ValueError, match="a memory without memory tokens given to a model with n_tokens=3"):
        model(tokens, tiny_model().start_memory(2))
    model.use_attention("flex")
    with pytest.raises(OptionError, match=r"^attention=flex: hides all keys after a query; memory tokens need default"):
        model(tokens)
