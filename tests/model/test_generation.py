"""Drawn tokens follow the model's distribution, restricted as asked, and are yielded one at a time."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.covering import product_of
from tests.model.tiny_model import STATEFUL, VOCABULARY, random_stream, tiny_model
from txl_lightning.errors import OptionError
from txl_lightning.model import CachedTransformerXL, SlidingWindow, generate, generate_all

MODELS = {
    "txl": lambda: tiny_model(mem_len=30),
    "adaptive": lambda: tiny_model(mem_len=30, cutoffs=(3, 7), div_val=2, d_embed=8),
    "lstm": lambda: tiny_model(cell="lstm").eval(),
    "qrnn": lambda: tiny_model(cell="qrnn").eval(),
}


def drawn(model: Any, prompt: Tensor, n_tokens: int, **options: Any) -> Tensor:
    return torch.stack(list(generate(model, prompt, n_tokens, **options)), dim=1)


def allowed(
    probabilities: list[float], top_k: int | None, top_p: float, temperature: float
) -> dict[int, float]:
    """Candidates in plain Python: the likeliest k, of these the nucleus, normalised."""
    weights = {
        token: (p / max(probabilities)) ** (1 / temperature)
        for token, p in enumerate(probabilities)
    }
    likeliest = sorted(weights, key=lambda token: -weights[token])[: top_k or len(weights)]
    total, nucleus, reached = sum(weights[token] for token in likeliest), [], 0.0
    for token in likeliest:
        nucleus.append(token)
        reached += weights[token] / total
        if reached >= top_p:
            break
    total = sum(weights[token] for token in nucleus)
    return {token: weights[token] / total for token in nucleus}


CUT = {
    "as it is": {},
    "cut": {"top_k": 3, "top_p": 0.9, "temperature": 1.5},
    "greedy": {"temperature": 1e-6},
}
CUT |= {
    "nucleus": {"top_p": 0.5, "temperature": 0.3},
    "all": {"top_k": None},
    "tiny": {"top_p": 1e-300},
}


@pytest.mark.parametrize(("name", "cut"), product_of(MODELS, CUT))
def test_tokens_follow_the_models_distribution(name, cut):
    model, n = MODELS[name](), 4000
    prompt = random_stream(1, 7).expand(n, -1)
    tokens = drawn(model, prompt, 2, seed=3, segment_len=4, **CUT[cut])
    context = prompt[:1]
    for position in range(2):
        sampling = {"top_k": 40, "top_p": 1.0, "temperature": 1.0, **CUT[cut]}
        with torch.no_grad():  # the whole context in one segment
            p_V = model.log_probabilities(model(context)[0])[0, -1].exp()
        expected = allowed(p_V.tolist(), **sampling)
        assert set(tokens[:, position].tolist()) <= set(expected)
        for token, p in expected.items():
            error = 5 * math.sqrt(p * (1 - p) / len(tokens)) + 1e-9
            assert (tokens[:, position] == token).double().mean().item() == pytest.approx(
                p, abs=error
            )
        commonest = tokens[:, position].mode().values
        tokens = tokens[
            tokens[:, position] == commonest
        ]  # continue with the streams that share a context
        context = torch.cat([context, commonest.view(1, 1)], dim=1)


WRONG = [
    ("top_k", 0),
    ("top_p", 0.0),
    ("top_p", 1.1),
    ("temperature", 0.0),
    ("n_tokens", -1),
    ("segment_len", 0),
]
WRONG += [
    ("prompt_BT", []),
    ("prompt_BT", [torch.tensor([1]), torch.tensor([]).long()]),
    ("seed", [1, 2]),
]
WRONG += [("mem_len", 0)]


@pytest.mark.parametrize(("option", "value"), WRONG)
def test_an_option_that_is_not_allowed_is_named_at_once(option, value):
    options = {"n_tokens": 3, "prompt_BT": random_stream(1, 3), option: value}
    with pytest.raises(OptionError, match=f"^{option.removesuffix('_BT')}=.*: must (be|have)"):
        generate(tiny_model(mem_len=options.pop("mem_len", 4)), **options)


@pytest.mark.parametrize(
    "model", [tiny_model(dropout=0.1), tiny_model(cell="lstm", dropout=0.1)], ids=["txl", "lstm"]
)
def test_a_model_in_training_is_refused(model: nn.Module):
    model.train()
    with pytest.raises(RuntimeError, match="call eval"):
        list(generate(model, random_stream(1, 3), 3))
    drawn(model.eval(), random_stream(1, 3), 3)


UNEQUAL: dict[str, dict[str, Any]] = {
    **{
        name: arm
        for name, arm in STATEFUL.items()
        if not {"ext_len", "n_tokens"} & arm.keys() and name != "no memory"
    },
    "relative": {"mem_len": 400},
    "documents": {"mem_len": 30, "memory_reset": "document"},
    "sliding window": {"mem_len": 0},
}


def unequal(name: str) -> Any:
    model = tiny_model(**UNEQUAL[name]).eval()
    return SlidingWindow(model, 6) if name == "sliding window" else model


@pytest.mark.parametrize(("name", "top_k"), product_of(UNEQUAL, [1, 5]))
def test_prompts_of_different_lengths_are_continued_as_each_is_alone(name, top_k):
    model, stream = unequal(name), random_stream(1, 90)[0]
    prompts, seeds = [stream[:7], stream[:1], stream, stream[50:57]], [4, 5, 6, 7]
    options = {"top_k": top_k, "segment_len": 32}
    together = drawn(model, prompts, 8, seed=seeds, **options)
    for row, (prompt, seed) in enumerate(zip(prompts, seeds, strict=True)):
        assert torch.equal(
            together[row : row + 1], drawn(model, prompt[None], 8, seed=seed, **options)
        )
    assert torch.equal(together, generate_all(model, prompts, 8, seed=seeds, **options))
    assert top_k == 1 or len(set(map(tuple, together.tolist()))) > 1


@pytest.mark.parametrize("name", ["absolute", "zeros"])
def test_prompts_of_different_lengths_are_one_batch(name):
    """Shorter prompts begin later: no call reads a segment for nothing, and every drawn token is one call."""
    model, stream = CachedTransformerXL(unequal(name)), random_stream(1, 90)[0]
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
    seeded, generated = (
        drawn(model, prompt, 20, seed=seed) for seed in (2, torch.Generator().manual_seed(2))
    )
    assert torch.equal(seeded, generated)
    assert torch.equal(torch.get_rng_state(), state)


class Reading:
    """A model that draws given tokens and keeps those that it reads."""

    def __init__(self, *tokens: int) -> None:
        self.tokens, self.read = iter(tokens), []

    def __call__(self, tokens_BT: Tensor, memory: Any = None) -> tuple[Tensor, None]:
        self.read += tokens_BT[0].tolist()
        return tokens_BT[..., None].float(), None

    def log_probabilities(self, hidden_BTD: Tensor) -> Tensor:
        return (
            torch.nn.functional.one_hot(torch.tensor([[next(self.tokens)]]), VOCABULARY)
            .float()
            .log()
        )


@pytest.mark.parametrize("segment_len", [3, 64])
@pytest.mark.parametrize("closed", [True, False])
def test_a_drawn_start_begins_a_document_and_in_closed_ones_the_second_of_two(segment_len, closed):
    model, prompt = Reading(9, 9, 9, 5), torch.tensor([[9, 2, 3, 9, 9, 4, 9, ~9, 9]])
    drawn(model, prompt, 4, segment_len=segment_len, document_start=9, closed_documents=closed)
    second = [9, 2, 3, 9, ~9, 4, 9, ~9, 9, ~9, 9, ~9]
    assert model.read == (second if closed else [~9 if token == 9 else token for token in second])


def test_tokens_stream_and_gradients_stay_on_outside():
    model = Reading(*range(9))
    tokens = generate(model, random_stream(1, 5), 100)
    assert model.read == []
    for n in range(3):
        assert next(tokens).tolist() == [n]
        assert len(model.read) == 5 + n
        assert torch.is_grad_enabled()
    assert list(generate(model, random_stream(2, 5), 0)) == []
