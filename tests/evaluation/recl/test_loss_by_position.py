"""Loss by position: the loss of every target of a window, bins, the length of training."""

import numpy as np
import pytest

from tests.evaluation.recl.counting_models import Lagging
from tests.evaluation.scoring.test_windows import TOKENS, attention, reader_of, recurrent
from txl_lightning.evaluation.recl.loss_by_context import binned_by_position, position_losses
from txl_lightning.evaluation.scoring.windows import context_losses, window_reader

ENDS = np.array([20, 60, 61, 150, 199])


@pytest.mark.parametrize("kind", ["relative", "lstm", "absolute"])
def test_the_p_th_target_has_p_tokens_of_context(kind: str) -> None:
    model = recurrent("lstm").eval() if kind == "lstm" else attention(kind, mem_len=0)
    reader = reader_of(model, 40)
    losses_TW = position_losses(reader, TOKENS, ENDS, 18)
    assert losses_TW.shape == (reader.visible(18), 5)
    for p in (1, 5, len(losses_TW)):
        expected = context_losses(reader, TOKENS, ENDS - len(losses_TW) + p, p)
        if kind != "absolute" or p == len(losses_TW):  # absolute positions of a shorter window are others
            np.testing.assert_allclose(losses_TW[p - 1], expected, atol=1e-10)


def test_bins_hold_every_position_once_and_a_step_stays_where_it_is() -> None:
    reader = window_reader(Lagging(10))
    tokens = np.tile(np.arange(10, dtype=np.uint8), 60)
    found = binned_by_position(position_losses(reader, tokens, np.arange(300, 340), 100), np.arange(40) // 4)
    assert found["first"][:17] == [*range(1, 18)]
    assert found["last"][-1] == 100
    assert [last + 1 for last in found["last"][:-1]] == found["first"][1:]
    assert all(last - first + 1 <= first // 8 + 1 for first, last in zip(found["first"], found["last"], strict=True))
    expected = [np.log(256) if p < 10 else -np.log(0.9) for p in found["first"]]
    np.testing.assert_allclose(found["nll"], expected, rtol=1e-6)
    assert found["windows"] == 40
