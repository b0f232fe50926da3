"""Drawn tokens follow the model's distribution, restricted as asked, and are yielded one at a time."""

import math
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from tests.covering import product_of
from tests.model.tiny_model import ENCODINGS, VOCABULARY, random_stream, tiny_model
from txl_lightning.beyond.compressive import CompressiveTransformerXL
from txl_lightning.errors import OptionError
from txl_lightning.model import (
    CachedTransformerXL,
    RecurrentConfig,
    RecurrentLanguageModel,
    SlidingWindow,
    generate,
    generate_all,
)
from txl_lightning.model.inference.generation import candidates


def recurrent_model(cell: str, **options: Any) -> RecurrentLanguageModel:
    torch.manual_seed(0)
    return RecurrentLanguageModel(RecurrentConfig(VOCABULARY, cell=cell, n_layer=2, d_model=8, **options)).double()


MODELS = {
    "txl": lambda: tiny_model(mem_len=30),
    "adaptive": lambda: tiny_model(mem_len=30, cutoffs=(3, 7), div_val=2, d_embed=8),
    "lstm": lambda: recurrent_model("lstm", dropout=0.0, hidden_dropout=0.0).eval(),
    "qrnn": lambda: recurrent_model("qrnn", dropout=0.0, hidden_dropout=0.0).eval(),
}


def drawn(model: Any, prompt: Tensor, n_tokens: int, **options: Any) -> Tensor:
    return torch.stack(list(generate(model, prompt, n_tokens, **options)), dim=1)


@torch.no_grad()
def next_distribution(model: Any, context: Tensor) -> Tensor:
    """P(next token | context), with the whole context in one segment."""
    hidden, _ = model(context)
    return model.log_probabilities(hidden)[:, -1].exp()


def allowed(probabilities: list[float], top_k: int | None, top_p: float, temperature: float) -> dict[int, float]:
    """Candidates in plain Python: the likeliest k, of these the nucleus, normalised."""
    weights = {token: (p / max(probabilities)) ** (1 / temperature) for token, p in enumerate(probabilities)}
    likeliest = sorted(weights, key=lambda token: -weights[token])[: top_k or len(weights)]
    total, nucleus, reached = sum(weights[token] for token in likeliest), [], 0.0
    for token in likeliest:
        nucleus.append(token)
        reached += weights[token] / total
        if reached >= top_p:
            break
    total = sum(weights[token] for token in nucleus)
    return {token: weights[token] / total for token in nucleus}


@given(
    logits=st.lists(st.integers(-40, 40), min_size=1, max_size=9, unique=True),
    top_k=st.none() | st.integers(1, 12),
    top_p=st.sampled_from([1.0, 0.999, 0.83, 0.5, 0.1, 0.001]),
    temperature=st.sampled_from([1e-6, 0.3, 0.7, 1.0, 1.9]),
)
def test_candidates_are_those_of_plain_python(logits, top_k, top_p, temperature):
    log_probabilities = (torch.tensor([logits], dtype=torch.float64) / 10 + 0.0123).log_softmax(-1)
    probabilities, tokens = candidates(log_probabilities, top_k, top_p, temperature)
    expected = allowed(log_probabilities[0].exp().tolist(), top_k, top_p, temperature)
    got = {token: p for token, p in zip(tokens[0].tolist(), probabilities[0].tolist(), strict=True) if p > 0}
    assert got == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("options", [{}, {"top_k": 3, "top_p": 0.9, "temperature": 1.5}], ids=["as it is", "cut"])
def test_tokens_follow_the_models_distribution(name, options):
    model, n = MODELS[name](), 4000
    prompt = random_stream(1, 7).expand(n, -1)
    tokens = drawn(model, prompt, 2, seed=3, segment_len=4, **options)
    context = prompt[:1]
    for position in range(2):
        sampling = {"top_k": 40, "top_p": 1.0, "temperature": 1.0, **options}
        expected = allowed(next_distribution(model, context)[0].tolist(), **sampling)
        assert set(tokens[:, position].tolist()) <= set(expected)
        for token, p in expected.items():
            error = 5 * math.sqrt(p * (1 - p) / len(tokens)) + 1e-9
            assert (tokens[:, position] == token).double().mean().item() == pytest.approx(p, abs=error)
        commonest = tokens[:, position].mode().values
        tokens = tokens[tokens[:, position] == commonest]  # continue with the streams that share a context
        context = torch.cat([context, commonest.view(1, 1)], dim=1)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        *(("top_k", 0), ("top_p", 0.0), ("top_p", 1.1), ("temperature", 0.0), ("n_tokens", -1), ("segment_len", 0)),
        *(
            ("prompt_BT", []),
            ("prompt_BT", [torch.tensor([1, 2]), torch.tensor([], dtype=torch.int64)]),
            ("seed", [1, 2]),
            ("mem_len", 0),
        ),
    ],
)
def test_an_option_that_is_not_allowed_is_named_at_once(option, value):
    options = {"n_tokens": 3, "prompt_BT": random_stream(1, 3), option: value}
    with pytest.raises(OptionError, match=f"^{option.removesuffix('_BT')}=.*: must (be|have)"):
        generate(tiny_model(mem_len=options.pop("mem_len", 4)), **options)


@pytest.mark.parametrize("model", [tiny_model(dropout=0.1), recurrent_model("lstm")], ids=["txl", "lstm"])
def test_a_model_in_training_is_refused(model: nn.Module):
    model.train()
    with pytest.raises(RuntimeError, match="call eval"):
        list(generate(model, random_stream(1, 3), 3))
    drawn(model.eval(), random_stream(1, 3), 3)


UNEQUAL = {
    "relative": lambda: tiny_model(mem_len=400),
    "short memory": lambda: tiny_model(mem_len=5, same_length=True),
    **{name: partial(tiny_model, **options, mem_len=8) for name, options in ENCODINGS.items() if name != "relative"},
    "zeros": lambda: tiny_model(mem_len=12, memory_start="zeros"),
    "sliding window": lambda: SlidingWindow(tiny_model(mem_len=0), 6),
    "documents": lambda: tiny_model(mem_len=30, memory_reset="document"),
    "compressive": lambda: tiny_model(CompressiveTransformerXL, mem_len=4, rate=2, compressed_len=3).eval(),
    "lstm": MODELS["lstm"],
    "qrnn": MODELS["qrnn"],
}


@pytest.mark.parametrize(("name", "top_k"), product_of(UNEQUAL, [1, 5]))
def test_prompts_of_different_lengths_are_continued_as_each_is_alone(name, top_k):
    model, stream = UNEQUAL[name](), random_stream(1, 90)[0]
    prompts, seeds = [stream[:7], stream[:1], stream, stream[50:57]], [4, 5, 6, 7]
    options = {"top_k": top_k, "segment_len": 32}
    together = drawn(model, prompts, 8, seed=seeds, **options)
    for row, (prompt, seed) in enumerate(zip(prompts, seeds, strict=True)):
        assert torch.equal(together[row : row + 1], drawn(model, prompt[None], 8, seed=seed, **options))
    assert torch.equal(together, generate_all(model, prompts, 8, seed=seeds, **options))
    assert top_k == 1 or len(set(map(tuple, together.tolist()))) > 1


@pytest.mark.parametrize("name", ["absolute", "zeros"])
def test_prompts_of_different_lengths_are_one_batch(name):
    """Shorter prompts begin later: no call reads a segment for nothing, and every drawn token is one call."""
    model, stream = CachedTransformerXL(UNEQUAL[name]()), random_stream(1, 90)[0]
    call, rows = CachedTransformerXL.__call__, []

    def counted(self: Any, tokens_BT: Tensor, *arguments: Any, **options: Any) -> Any:
        rows.append(tokens_BT.shape)
        return call(self, tokens_BT, *arguments, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CachedTransformerXL, "__call__", counted)
        drawn(model, [stream[:7], stream, stream[:33]], 4, segment_len=32)
    assert rows == [(1, 32), (2, 32), (3, 26), *[(3, 1)] * 3]


def test_a_seed_or_a_generator_leaves_the_global_random_state_alone():
    model, prompt, state = tiny_model(), random_stream(1, 5), torch.get_rng_state()
    seeded, generated = (drawn(model, prompt, 20, seed=seed) for seed in (2, torch.Generator().manual_seed(2)))
    assert torch.equal(seeded, generated)
    assert torch.equal(torch.get_rng_state(), state)


def test_what_stood_before_a_document_does_not_change_what_is_drawn():
    """The prompt's document begins with a marked token; a drawn `document_start` begins another one."""
    model, prompt = tiny_model(mem_len=60, memory_reset="document").float(), random_stream(2, 12)
    prompt[1] = prompt[0]
    prompt[1, :7] = (prompt[1, :7] + 1) % VOCABULARY
    prompt[:, 7] = ~prompt[:, 7]
    assert (one := drawn(model, prompt, 30, seed=[1, 1]))[0].tolist() == one[1].tolist()
    cut = drawn(model, prompt, 30, seed=[1, 1], document_start=9)[0]
    begins = torch.cat([prompt[0], cut])[:-1]
    begins = torch.where(begins == 9, ~begins, begins)[None]
    assert (begins[0, 12:] < 0).any()
    whole = tiny_model(mem_len=0, memory_reset="document").float()
    with torch.no_grad():
        p = whole.log_probabilities(whole(begins)[0])[0, 11:].exp()
    again, generator = [], torch.Generator().manual_seed(1)
    for of_place in p:
        probabilities, tokens = candidates(of_place[None].log(), 40, 1.0, 1.0)
        again.append(int(tokens[0, torch.multinomial(probabilities, 1, generator=generator)]))
    assert again == cut.tolist()


class Reading:
    """A model that draws given tokens and keeps those that it reads."""

    def __init__(self, *tokens: int) -> None:
        self.tokens, self.read = iter(tokens), []

    def __call__(self, tokens_BT: Tensor, memory: Any = None) -> tuple[Tensor, None]:
        self.read += tokens_BT[0].tolist()
        return tokens_BT[..., None].float(), None

    def log_probabilities(self, hidden_BTD: Tensor) -> Tensor:
        return torch.nn.functional.one_hot(torch.tensor([[next(self.tokens)]]), VOCABULARY).float().log()


@pytest.mark.parametrize("segment_len", [3, 64])
def test_in_closed_documents_the_second_of_two_starts_begins_one(segment_len):
    model, prompt = Reading(9, 9, 9, 5), torch.tensor([[9, 2, 3, 9, 9, 4, 9, ~9, 9]])
    drawn(model, prompt, 4, segment_len=segment_len, document_start=9, closed_documents=True)
    assert model.read == [9, 2, 3, 9, ~9, 4, 9, ~9, 9, ~9, 9, ~9]


def test_tokens_stream_and_gradients_stay_on_outside():
    model = Reading(*range(9))
    tokens = generate(model, random_stream(1, 5), 100)
    assert model.read == []
    for n in range(3):
        assert next(tokens).tolist() == [n]
        assert len(model.read) == 5 + n
        assert torch.is_grad_enabled()
    assert list(generate(model, random_stream(2, 5), 0)) == []
