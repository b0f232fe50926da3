"""Continuous inputs in place of token embeddings, and models without a vocabulary."""

import re

import pytest
import torch

from tests.covering import product_of
from tests.model.tiny_model import CACHEABLE, STATEFUL, assert_close, random_stream, tiny_model
from txl_lightning import CachedTransformerXL, generate
from txl_lightning.errors import OptionError
from txl_lightning.model.checkpoints import CheckpointError, to_huggingface, to_original

T = 4
NO_TOKENS = "^vocab_size=None: must be given for tokens and losses; without it give inputs_BTD$"


@pytest.mark.parametrize(
    ("arm", "mode"),
    product_of(STATEFUL, ["train", "evaluate", "cached"]),
)
def test_inputs_take_the_place_of_the_scaled_embeddings(arm, mode):
    dropout = 0.1 if mode == "train" else 0.0
    model = tiny_model(**{**STATEFUL[arm], "dropout": dropout})
    stream = random_stream(2, 2 * T)
    inputs = model.embedding(stream)
    scorer = model
    if mode == "cached" and arm in CACHEABLE:
        scorer = CachedTransformerXL(model.eval())
    with torch.set_grad_enabled(scorer is model):
        torch.manual_seed(0)
        _, memory = scorer(stream[:, :T])
        expected, _ = scorer(
            stream[:, T:],
            memory,
            n_last=3,
        )
        torch.manual_seed(0)
        _, memory = scorer(inputs_BTD=inputs[:, :T])
        hidden, _ = scorer(
            None,
            memory,
            n_last=3,
            inputs_BTD=inputs[:, T:],
        )
    # Not the same bits: AVX2's products depend on places in memory.
    assert_close(hidden, expected, 1e-12)


@pytest.mark.parametrize("arm", STATEFUL)
def test_a_model_without_a_vocabulary_is_the_other_without_embedding_and_softmax(arm):
    model = tiny_model(**STATEFUL[arm])
    bare = tiny_model(**{**STATEFUL[arm], "vocab_size": None, "cutoffs": ()})
    missing = bare.load_state_dict(model.state_dict(), strict=False)
    assert missing.missing_keys == []
    assert {key.split(".")[0] for key in missing.unexpected_keys} == {"embedding", "softmax"}
    inputs = torch.randn(
        2,
        2 * T,
        8,
        dtype=torch.float64,
        requires_grad=True,
    )
    hidden, memory = bare(inputs_BTD=inputs[:, :T])
    assert torch.equal(hidden, model(inputs_BTD=inputs[:, :T])[0])
    again, _ = bare(None, memory, inputs_BTD=inputs[:, T:])
    (hidden.square().sum() + again.square().sum()).backward()
    assert bool((inputs.grad.abs().sum(dim=-1) > 0).all())


def test_what_a_model_without_a_vocabulary_lacks_is_said_in_one_line():
    bare = tiny_model(vocab_size=None).eval()
    tokens = random_stream(2, T)
    hidden, _ = bare(inputs_BTD=torch.zeros(2, T, 8, dtype=torch.float64))
    for call in (
        lambda: bare(tokens),
        lambda: bare.score(tokens, tokens),
        lambda: bare.log_probabilities(hidden),
        lambda: tiny_model(cell="lstm", vocab_size=None)(tokens),
        lambda: list(generate(bare, tokens, 3)),
    ):
        with pytest.raises(OptionError, match=NO_TOKENS):
            call()
    for convert in (to_original, to_huggingface):
        with pytest.raises(CheckpointError, match="vocab_size"):
            convert(tiny_model(vocab_size=None, memory_start="zeros"))


LACKING = "give either tokens or inputs_BTD"
WIDE = re.escape("inputs_BTD of shape (2, 4, 5): D must be d_model=8")


@pytest.mark.parametrize("scorer", ["model", "cached", "lstm"])
@torch.no_grad()
def test_inputs_that_do_not_fit_are_refused(scorer):
    model = tiny_model(cell="lstm") if scorer == "lstm" else tiny_model()
    called = CachedTransformerXL(model) if scorer == "cached" else model
    both = {
        "tokens_BT": random_stream(2, T),
        "inputs_BTD": torch.zeros(2, T, 8).double(),
    }
    wide = {"inputs_BTD": torch.zeros(2, T, 5).double()}
    for given, words in (({}, LACKING), (both, LACKING), (wide, WIDE)):
        with pytest.raises(ValueError, match=f"^{words}$"):
            called(**given)
