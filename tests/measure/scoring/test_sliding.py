"""The sliding window against brute force: every token alone, its window read from a fresh state, in float64."""

import numpy as np
import pytest
import torch
from torch import nn

from tests.measure.scoring.test_windows import TRAINED, attention, reader_of, recurrent, token_by_token
from tests.model.tiny_model import VOCABULARY
from txl_lightning import TransformerXL
from txl_lightning.errors import OptionError
from txl_lightning.measure.losses import WindowReader, sliding_losses, window_reader

N = 21
TOKENS = np.random.default_rng(5).integers(0, VOCABULARY, N).astype(np.uint8)
KINDS = {
    "relative": lambda: attention("relative", mem_len=4, same_length=True),
    "relative, clamped, no memory": lambda: attention("relative", mem_len=0, clamp_len=3),
    "shaw": lambda: attention("shaw", mem_len=3, memory_start="zeros"),
    "absolute": lambda: attention("absolute", mem_len=0),
    "al_rfou": lambda: attention("al_rfou", mem_len=0),
    "lstm": lambda: recurrent("lstm").eval(),
    "qrnn": lambda: recurrent("qrnn").eval(),
}


def alone(model: nn.Module, first: int, end: int, t: int) -> float:
    """-log P(x_t | x_first … x_{t-1}) where the model reads the window x_first … x_{end-1}, nothing before it."""
    stream = torch.from_numpy(TOKENS.astype(np.int64))
    if isinstance(model, TransformerXL) and not model.config.kind.absolute:
        return token_by_token(model, stream[first : t + 1])
    nll, _ = model.score(stream[None, first:end], stream[None, first + 1 : end + 1], None)
    return float(nll[0, t - first - 1])


def brute_force(model: nn.Module, window: int, stride: int) -> list[float]:
    losses = []
    for t in range(1, N):
        k = (t - 1) // stride
        end = min((k + 1) * stride, N - 1)
        losses.append(alone(model, max(0, end - window), end, t))
    return losses


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(kind, marks=pytest.mark.slow if kind in ("relative", "shaw", "al_rfou", "qrnn") else ())
        for kind in KINDS
    ],
)
@torch.no_grad()
def test_every_token_is_scored_once_as_if_its_window_were_alone(kind: str) -> None:
    model = KINDS[kind]()
    for window, stride in ((5, 1), (5, 3), (4, 4)):
        losses = sliding_losses(reader_of(model, 3 * window), TOKENS, window, stride)
        np.testing.assert_allclose(losses.nll, brute_force(model, window, stride), rtol=0, atol=1e-10)
        assert losses.positions.tolist() == list(range(1, N))
        assert losses.left_out == {"first_of_streams": 1, "trimmed": 0, "max_segments": 0}


@torch.no_grad()
def test_a_window_is_capped_at_the_positions_that_a_model_knows() -> None:
    for encoding in ("absolute", "al_rfou"):
        reader = window_reader(attention(encoding, mem_len=0), TRAINED)
        longer, longest = (sliding_losses(reader, TOKENS, window, 2).nll for window in (20, TRAINED))
        np.testing.assert_array_equal(longer, longest)
        with pytest.raises(OptionError, match=f"stride={TRAINED + 1}: must be in 1 … {TRAINED}, the tokens"):
            sliding_losses(reader, TOKENS, 20, TRAINED + 1)


@torch.no_grad()
def test_absolute_positions_with_recurrence_read_a_window_in_segments() -> None:
    model = attention("absolute", mem_len=8)
    ours = sliding_losses(window_reader(model, TRAINED), TOKENS, window=10, stride=8).nll
    stream = torch.from_numpy(TOKENS.astype(np.int64))[None]
    memory, parts = None, []
    for start, stop in ((6, 10), (10, 16)):  # the second window: x_6 … x_15, scored on x_9 … x_16
        nll, memory = model.score(stream[:, start:stop], stream[:, start + 1 : stop + 1], memory)
        parts.append(nll)
    np.testing.assert_allclose(ours[8:16], torch.cat(parts, 1)[0, -8:], rtol=0, atol=1e-10)


def test_it_stops_early_and_says_what_is_left_out() -> None:
    reader = window_reader(attention("relative"))
    whole, part = (sliding_losses(reader, TOKENS, 5, 3, max_windows=n) for n in (None, 4))
    np.testing.assert_allclose(part.nll, whole.nll[:12])
    assert part.left_out == {"first_of_streams": 1, "trimmed": 0, "max_segments": N - 1 - 12}


@pytest.mark.parametrize(("window", "stride", "words"), [(0, 1, "window=0"), (4, 5, "stride=5"), (4, 0, "stride=0")])
def test_impossible_windows_are_named(window: int, stride: int, words: str) -> None:
    with pytest.raises(OptionError, match=words):
        sliding_losses(WindowReader(attention("relative")), TOKENS, window, stride)
