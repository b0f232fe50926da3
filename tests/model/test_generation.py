"""Drawn tokens follow the model's distribution, restricted as asked, and are yielded one at a time."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.covering import product_of
from tests.model.tiny_model import ENCODINGS, STATEFUL, VOCABULARY, random_stream, tiny_model
from txl_lightning import TransformerXL, TransformerXLConfig
from txl_lightning.errors import OptionError
from txl_lightning.model import SlidingWindow, generate, generate_all
from txl_lightning.model.inference.cached import can_cache

MODELS = {
    "txl": lambda: tiny_model(mem_len=30),
    "adaptive": lambda: tiny_model(mem_len=30, cutoffs=(3, 7), div_val=2, d_embed=8),
    "lstm": lambda: tiny_model(cell="lstm").eval(),
    "qrnn": lambda: tiny_model(cell="qrnn").eval(),
}


def drawn(model: Any, prompt: Tensor, n_tokens: int, **options: Any) -> Tensor:
    return torch.stack(
        list(generate(model, prompt, n_tokens, **options)),
        dim=1,
    )


def allowed(
    probabilities: list[float], top_k: int | None = 40, top_p: float = 1.0, temperature: float = 1.0
) -> dict[int, float]:
    """Candidates in plain Python: the likeliest k, of these the nucleus, normalised."""
    weights = {}
    for token, p in enumerate(probabilities):
        weights[token] = (p / max(probabilities)) ** (1 / temperature)
    likeliest = sorted(weights, key=weights.get, reverse=True)[:top_k]
    total = sum(weights[token] for token in likeliest)
    nucleus = {}
    for token in likeliest:
        if sum(nucleus.values()) / total < top_p:
            nucleus[token] = weights[token]
    kept = sum(nucleus.values())
    return {token: weight / kept for token, weight in nucleus.items()}


CUT = {
    "as it is": {},
    "cut": {"top_k": 3, "top_p": 0.9, "temperature": 1.5},
    "greedy": {"temperature": 1e-6},
    "nucleus": {"top_p": 0.5, "temperature": 0.3},
    "all": {"top_k": None},
    "tiny": {"top_p": 1e-300},
}


@pytest.mark.parametrize(("name", "cut"), product_of(MODELS, CUT))
def test_tokens_follow_the_models_distribution(name, cut):
    model = MODELS[name]()
    context = random_stream(1, 7)
    tokens = drawn(
        model,
        context.expand(4000, -1),
        2,
        seed=3,
        segment_len=4,
        **CUT[cut],
    )
    for position in range(2):
        with torch.no_grad():  # the whole context in one segment
            p_V = model.log_probabilities(model(context)[0])[0, -1].exp()
        expected = allowed(p_V.tolist(), **CUT[cut])
        drawn_here = tokens[:, position]
        assert set(drawn_here.tolist()) <= set(expected)
        for token, p in expected.items():
            error = 5 * math.sqrt(p * (1 - p) / len(tokens)) + 1e-9
            share = (drawn_here == token).double().mean().item()
            assert share == pytest.approx(p, abs=error)
        # Continue with the streams that share a context.
        commonest = drawn_here.mode().values
        tokens = tokens[drawn_here == commonest]
        context = torch.cat(
            [context, commonest.view(1, 1)],
            dim=1,
        )


WRONG = [
    ("top_k", 0),
    ("top_p", 0.0),
    ("top_p", 1.1),
    ("temperature", 0.0),
    ("n_tokens", -1),
    ("segment_len", 0),
    ("prompt_BT", []),
    ("prompt_BT", [torch.tensor([1]), torch.tensor([]).long()]),
    ("seed", [1, 2]),
    ("mem_len", 0),
]


@pytest.mark.parametrize(("option", "value"), WRONG)
def test_an_option_that_is_not_allowed_is_named_at_once(option, value):
    options = {
        "n_tokens": 3,
        "prompt_BT": random_stream(1, 3),
        option: value,
    }
    model = tiny_model(mem_len=options.pop("mem_len", 4))
    with pytest.raises(
        OptionError,
        match=f"^{option.removesuffix('_BT')}=.*: must (be|have)",
    ):
        generate(model, **options)


@pytest.mark.parametrize(
    "model", [tiny_model(dropout=0.1), tiny_model(cell="lstm", dropout=0.1)], ids=["txl", "lstm"]
)
def test_a_model_in_training_is_refused(model):
    model.train()
    with pytest.raises(RuntimeError, match="call eval"):
        list(generate(model, random_stream(1, 3), 3))
    drawn(model.eval(), random_stream(1, 3), 3)


class Mute(TransformerXL):
    """A variant that can be cached and says that it cannot generate."""

    cannot = {"generation": "it only listens"}  # noqa: RUF012


def test_a_model_that_cannot_generate_is_refused_cached_or_not():
    model = Mute(TransformerXLConfig(VOCABULARY, mem_len=4, n_layer=1)).eval()
    assert can_cache(model)
    with pytest.raises(OptionError, match="Mute: cannot generate: it only listens"):
        generate(model, random_stream(1, 3), 2)


UNEQUAL = {
    "relative": {"mem_len": 400},
    "documents": {"mem_len": 30, "memory_reset": "document"},
}
for arm in (*ENCODINGS, "zeros", "clusters"):
    UNEQUAL.setdefault(arm, STATEFUL[arm])


@pytest.mark.parametrize("name", ["compressive", "lstm", "sliding window"])
def test_prompts_of_different_lengths_are_refused_by_a_model_for_one_length(name):
    if name == "sliding window":
        model = SlidingWindow(tiny_model(mem_len=0).eval(), 6)
    else:
        model = tiny_model(**STATEFUL[name]).eval()
    stream = random_stream(1, 9)[0]
    with pytest.raises(OptionError, match=r"^prompt=\[9, 3\]: must have one length"):
        generate(model, [stream, stream[:3]], 2)
    assert drawn(model, stream[:3].expand(2, -1), 2).shape == (2, 2)


@pytest.mark.parametrize(
    ("name", "top_k"),
    product_of(UNEQUAL, [1, 5]),
)
def test_prompts_of_different_lengths_are_continued_as_each_is_alone(name, top_k):
    model = tiny_model(**UNEQUAL[name]).eval()
    stream = random_stream(1, 90)[0]
    prompts = [
        stream[:7],
        stream[:1],
        stream,
        stream[50:57],
    ]
    options = {"top_k": top_k, "segment_len": 32}
    together = generate_all(
        model,
        prompts,
        8,
        seed=[4, 5, 6, 7],
        **options,
    )
    for row, prompt in enumerate(prompts):
        alone = drawn(
            model,
            prompt[None],
            8,
            seed=4 + row,
            **options,
        )
        assert torch.equal(together[row], alone[0])


def test_a_seed_or_a_generator_leaves_the_global_random_state_alone():
    model = tiny_model()
    prompt = random_stream(1, 5)
    state = torch.get_rng_state()
    seeded = drawn(model, prompt, 20, seed=2)
    generated = drawn(
        model,
        prompt,
        20,
        seed=torch.Generator().manual_seed(2),
    )
    assert torch.equal(seeded, generated)
    assert torch.equal(torch.get_rng_state(), state)


class Reading:
    """A model that draws given tokens and keeps those that it reads."""

    def __init__(self, *tokens: int) -> None:
        self.tokens = iter(tokens)
        self.read = []

    def __call__(self, tokens_BT: Tensor, memory: Any = None) -> tuple[Tensor, None]:
        self.read += tokens_BT[0].tolist()
        return tokens_BT[..., None].float(), None

    def log_probabilities(self, hidden_BTD: Tensor) -> Tensor:
        log_probabilities_BTV = torch.full(
            (1, 1, VOCABULARY),
            -torch.inf,
        )
        log_probabilities_BTV[..., next(self.tokens)] = 0.0
        return log_probabilities_BTV


@pytest.mark.parametrize("segment_len", [3, 64])
@pytest.mark.parametrize("closed", [True, False])
def test_a_drawn_start_begins_a_document_and_in_closed_ones_the_second_of_two(segment_len, closed):
    model = Reading(9, 9, 9, 5)
    prompt = torch.tensor([[9, 2, 3, 9, 9, 4, 9, ~9, 9]])
    drawn(
        model,
        prompt,
        4,
        segment_len=segment_len,
        document_start=9,
        closed_documents=closed,
    )
    second = [
        9,
        2,
        3,
        9,
        ~9,
        4,
        9,
        ~9,
        9,
        ~9,
        9,
        ~9,
    ]
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
