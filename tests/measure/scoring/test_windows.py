"""Losses with exactly c tokens of context: every window alone, every kind of model, every number of processes."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from tests.covering import product_of
from tests.model.tiny_model import VOCABULARY, tiny_model
from txl_lightning import TransformerXL
from txl_lightning.errors import OptionError
from txl_lightning.measure.recl.loss_by_context import context_curve
from txl_lightning.measure.losses import WindowReader, context_losses, window_reader
from txl_lightning.model.baselines import RecurrentConfig, RecurrentLanguageModel

TOKENS = np.random.default_rng(3).integers(0, VOCABULARY, 200).astype(np.uint8)
POSITIONS = np.linspace(30, len(TOKENS) - 1, 6).astype(int)
TRAINED = 6
TABLE = {"shaw": 9, "al_rfou": TRAINED}
ADAPTIVE = {"cutoffs": (3, 7), "div_val": 2}


def recurrent(cell: str, **options: object) -> RecurrentLanguageModel:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        config = RecurrentConfig(vocab_size=VOCABULARY, cell=cell, n_layer=2, d_model=8, dropout=0.3, **options)
        return RecurrentLanguageModel(config).double()


def attention(encoding: str, **options: object) -> TransformerXL:
    pairs = {"d_head": 4} if encoding == "rope" else {}
    return tiny_model(encoding=encoding, table_len=TABLE.get(encoding), **pairs, **options)


def reader_of(model: Any, batch_tokens: int) -> WindowReader:
    return replace(window_reader(model, TRAINED), batch_tokens=batch_tokens)


def token_by_token(model: TransformerXL, window: torch.Tensor) -> float:
    """The loss of a window's last token, the others fed one at a time into a memory that drops nothing."""
    alone = model.with_lengths(mem_len=1000, same_length=False, ext_len=0, memory_start="empty")
    memory = None
    for t in range(len(window) - 1):
        nll, memory = alone.score(window[None, t : t + 1], window[None, t + 1 : t + 2], memory)
    return float(nll)


def one_window(model: torch.nn.Module, window: torch.Tensor) -> float:
    return float(model.score(window[None, :-1], window[None, -1:], None)[0])


def windows(context: int) -> list[torch.Tensor]:
    return [torch.from_numpy(TOKENS[t - context : t + 1].astype(np.int64)) for t in POSITIONS]


LENGTHS: dict[str, dict[str, Any]] = {
    "no memory": {"mem_len": 0},
    "same_length": {"mem_len": 4, "same_length": True},
    "zeros": {"mem_len": 5, "memory_start": "zeros", "ext_len": 2},
    "clamp": {"mem_len": 4, "clamp_len": 3},
}
SOFTMAX = {"softmax": {}, "adaptive": ADAPTIVE}


@pytest.mark.parametrize(
    ("encoding", "lengths", "softmax"), product_of(["relative", "shaw", "alibi", "none", "rope"], LENGTHS, SOFTMAX)
)
@torch.no_grad()
def test_distances_see_exactly_the_window_and_nothing_else(encoding: str, lengths: str, softmax: str) -> None:
    given = LENGTHS[lengths] | ({"clamp_len": -1} if encoding == "rope" else {})
    model = attention(encoding, **given, **SOFTMAX[softmax])
    for context in (1, 2, 15):
        ours = context_losses(reader_of(model, 40), TOKENS, POSITIONS, context)
        np.testing.assert_allclose(ours, [token_by_token(model, w) for w in windows(context)], rtol=0, atol=1e-10)


@pytest.mark.parametrize(("encoding", "softmax"), product_of(["absolute", "al_rfou"], SOFTMAX))
@torch.no_grad()
def test_absolute_positions_without_recurrence_are_capped_at_the_trained_length(encoding: str, softmax: str) -> None:
    model = attention(encoding, mem_len=0, **SOFTMAX[softmax])
    reader = reader_of(model, 20)
    assert reader.limit == TRAINED
    for context in (1, TRAINED - 1, TRAINED, TRAINED + 1, 30):
        ours = context_losses(reader, TOKENS, POSITIONS, context)
        alone = [one_window(model, window[-TRAINED - 1 :]) for window in windows(context)]
        np.testing.assert_allclose(ours, alone, rtol=0, atol=1e-10)


@pytest.mark.parametrize(("encoding", "start"), product_of(["absolute", "al_rfou"], ["empty", "zeros"]))
@torch.no_grad()
def test_absolute_positions_with_recurrence_read_segments_of_the_trained_length(encoding: str, start: str) -> None:
    model = attention(encoding, mem_len=8, memory_start=start)
    reader = reader_of(model, 50)
    assert reader.limit is None
    for context in (3, TRAINED, TRAINED + 2, 3 * TRAINED, 29):
        ours = context_losses(reader, TOKENS, POSITIONS, context)
        alone = []
        for window in windows(context):
            first = context % TRAINED or TRAINED  # the ragged segment comes first, the last one is whole
            cuts = [0, *range(first, context + 1, TRAINED)]
            memory = model.with_lengths(memory_start="empty").start_memory(1)
            for i in range(len(cuts) - 1):
                target = window[None, cuts[i + 1] : cuts[i + 1] + 1]
                nll, memory = model.score(window[None, cuts[i] : cuts[i + 1]], target, memory)
            alone.append(float(nll))
        np.testing.assert_allclose(ours, alone, rtol=0, atol=1e-10)


@pytest.mark.parametrize(("cell", "softmax"), product_of(["lstm", "qrnn"], SOFTMAX))
@torch.no_grad()
def test_recurrent_models_start_every_window_from_zeros(cell: str, softmax: str) -> None:
    model = recurrent(cell, **SOFTMAX[softmax])
    model.layers[0].eval()
    modes = [module.training for module in model.modules()]
    ours = context_losses(reader_of(model, 64), TOKENS, POSITIONS, 21)
    assert [module.training for module in model.modules()] == modes
    model.eval()
    np.testing.assert_allclose(ours, [one_window(model, w) for w in windows(21)], rtol=0, atol=1e-10)


def test_impossible_windows_are_refused() -> None:
    with pytest.raises(ValueError, match=r"positions must be in 50 … 199"):
        context_losses(window_reader(attention("relative")), TOKENS, POSITIONS, 50)
    with pytest.raises(OptionError, match="trained_len=None"):
        window_reader(attention("absolute"))
    with pytest.raises(OptionError, match="clamp_len=-5"):
        window_reader(attention("relative"), clamp_len=-5)


def test_a_context_curve_has_the_models_losses_errors_and_recl() -> None:
    model = attention("relative", dropout=0.5).train()
    curve = context_curve(model, TOKENS, POSITIONS, [2, 4, 6], bootstrap=10, fractions=[0.5])
    assert model.training
    losses = context_losses(window_reader(model), TOKENS, POSITIONS, 4)
    assert curve.nll[1] == pytest.approx(losses.mean())
    assert curve.standard_error[1] == pytest.approx(losses.std(ddof=1) / len(losses) ** 0.5)
    assert curve.recl[0.5].value in (2, 4, 6)
