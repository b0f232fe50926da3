"""Continuous inputs in place of token embeddings, and models without a vocabulary."""

import re
from typing import Any

import pytest
import torch

from tests.covering import product_of
from tests.model.tiny_model import CACHEABLE, SIZES, STATEFUL, random_stream, tiny_model
from txl_lightning import CachedTransformerXL, TransformerXLConfig, generate
from txl_lightning.errors import OptionError
from txl_lightning.model.checkpoints import CheckpointError, to_huggingface, to_original

T = 4
NO_TOKENS = "^vocab_size=None: must be given for tokens and losses; without it give inputs_BTD$"


def model_of(arm: str, **options: Any) -> Any:
    return tiny_model(**{**STATEFUL[arm], **options})


@pytest.mark.parametrize(("arm", "mode"), product_of(STATEFUL, ["train", "evaluate", "cached"]))
def test_inputs_take_the_place_of_the_scaled_embeddings(arm: str, mode: str) -> None:
    model, stream = model_of(arm, dropout=0.1 if mode == "train" else 0.0), random_stream(2, 3 * T)
    scorer: Any = model
    if mode == "cached" and arm in CACHEABLE:
        scorer = CachedTransformerXL(model.eval())
    found: list[Any] = []
    with torch.set_grad_enabled(scorer is model):
        for embed in (False, True):
            torch.manual_seed(0)
            memory, hidden = None, []
            for tokens in stream.split(T, dim=1):
                given = {"inputs_BTD": model.embedding(tokens)} if embed else {"tokens_BT": tokens}
                hidden_BTD, memory = scorer(
                    **given, n_last=3, **({} if memory is None else name(memory, arm))
                )
                hidden.append(hidden_BTD)
            found.append(torch.cat(hidden, dim=1))
    torch.testing.assert_close(
        *found, rtol=0, atol=1e-12
    )  # no bits: AVX2's products depend on places in memory


def name(memory: Any, arm: str) -> dict[str, Any]:
    return {"state" if arm in ("lstm", "qrnn") else "memory": memory}


@pytest.mark.parametrize("arm", STATEFUL)
def test_a_model_without_a_vocabulary_is_the_other_without_embedding_and_softmax(arm: str) -> None:
    model, bare = model_of(arm), model_of(arm, vocab_size=None, cutoffs=())
    weights = {
        key: x
        for key, x in model.state_dict().items()
        if key.split(".")[0] not in ("embedding", "softmax")
    }
    assert bare.state_dict().keys() == weights.keys() < model.state_dict().keys()
    bare.load_state_dict(weights)
    inputs = torch.randn(2, 2 * T, 8, dtype=torch.float64, requires_grad=True)
    hidden, memory = bare(inputs_BTD=inputs[:, :T])
    again, _ = bare(inputs_BTD=inputs[:, T:], **name(memory, arm))
    assert torch.equal(hidden, model(inputs_BTD=inputs[:, :T])[0])
    (hidden.square().sum() + again.square().sum()).backward()
    assert bool((inputs.grad.abs().sum(dim=-1) > 0).all())
    assert all(
        parameter.grad is not None
        for key, parameter in bare.named_parameters()
        if "compressor" not in key
    )


def test_what_a_model_without_a_vocabulary_lacks_is_said_in_one_line() -> None:
    bare, tokens = tiny_model(vocab_size=None).eval(), random_stream(2, T)
    hidden, _ = bare(inputs_BTD=torch.zeros(2, T, 8, dtype=torch.float64))
    recurrent = tiny_model(cell="lstm", vocab_size=None)
    calls = [
        (bare, tokens),
        (bare.score, tokens, tokens),
        (bare.log_probabilities, hidden),
        (recurrent, tokens),
    ]
    for call, *given in [*calls, (lambda *prompt: list(generate(bare, *prompt)), tokens, 3)]:
        with pytest.raises(OptionError, match=NO_TOKENS):
            call(*given)
    for convert in (to_original, to_huggingface):
        with pytest.raises(CheckpointError, match="vocab_size"):
            convert(tiny_model(vocab_size=None, memory_start="zeros"))
    with pytest.raises(OptionError, match=r"^cutoffs=\[4\]: must be below the None tokens"):
        TransformerXLConfig(**{**SIZES, "vocab_size": None}, cutoffs=(4,))


@pytest.mark.parametrize("scorer", ["model", "cached", "lstm"])
def test_inputs_that_do_not_fit_are_refused(scorer: str) -> None:
    model = tiny_model(cell="lstm") if scorer == "lstm" else tiny_model()
    called: Any = CachedTransformerXL(model) if scorer == "cached" else model
    tokens, inputs = random_stream(2, T), torch.zeros(2, T, 8, dtype=torch.float64)
    with torch.no_grad():
        for given in ({}, {"tokens_BT": tokens, "inputs_BTD": inputs}):
            with pytest.raises(ValueError, match=r"^give either tokens or inputs_BTD$"):
                called(**given)
        shape = re.escape("inputs_BTD of shape (2, 4, 5): D must be d_model=8")
        with pytest.raises(ValueError, match=f"^{shape}$"):
            called(inputs_BTD=inputs[..., :5])
