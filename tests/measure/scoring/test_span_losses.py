"""Losses of spans: sums of the losses of their tokens, each with the context of the span."""

import numpy as np
import pytest
import torch

from tests.measure.scoring.test_windows import TOKENS, attention, reader_of, recurrent
from txl_lightning.measure.losses import WindowReader, evaluating, span_losses

BEGINS = np.array([3, 3, 10, 20, 20, 20])
FIRSTS = np.array([5, 9, 11, 29, 21, 30])
STOPS = np.array([8, 10, 14, 32, 25, 31])


def one_by_one(reader: WindowReader, begins: np.ndarray) -> np.ndarray:
    sums = []
    for begin, first, stop in zip(begins, FIRSTS, STOPS, strict=True):
        window = torch.from_numpy(TOKENS[begin:stop].astype(np.int64))[None]
        with torch.no_grad(), evaluating(reader.model):
            sums.append(reader.last_losses(window, int(stop - first)).sum())
    return np.array(sums)


@pytest.mark.parametrize("kind", ["relative", "lstm", "absolute", "absolute memory"])
def test_spans_have_the_losses_of_windows_of_their_own(kind: str) -> None:
    models = {
        "relative": lambda: attention("relative", mem_len=0),
        "lstm": lambda: recurrent("lstm"),
        "absolute": lambda: attention("absolute", mem_len=0),
        "absolute memory": lambda: attention("absolute", mem_len=8),
    }
    reader = reader_of(models[kind]().eval(), 40)
    assert reader.one_pass == ("absolute" not in kind)
    begins = BEGINS if reader.limit is None else np.minimum(np.maximum(BEGINS, STOPS - 1 - reader.limit), FIRSTS - 1)
    ours = span_losses(reader, TOKENS, BEGINS, FIRSTS, STOPS)
    np.testing.assert_allclose(ours, one_by_one(reader, begins), rtol=0, atol=1e-10)
