"""A sliding window predicts each token by a separate forward pass."""

import pytest
import torch

from tests.model.tiny_model import (
    ENCODINGS,
    assert_close,
    random_stream,
    score_segments,
    tiny_model,
)
from txl_lightning.errors import OptionError
from txl_lightning.model import SlidingWindow


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_the_last_loss_of_every_window(encoding):
    model = tiny_model(
        encoding=encoding,
        table_len=9,
        mem_len=0,
        d_head=4,
    )
    stream = random_stream(2, 12)
    losses, seen = score_segments(
        SlidingWindow(model, 5),
        stream,
        [7, 4],
    )
    assert torch.equal(seen, stream[:, 6:11])
    for t in range(11):
        tokens = stream[:, max(0, t - 4) : t + 1]
        alone, _ = model.score(
            tokens,
            stream[:, t + 1 : t + 2],
        )
        assert_close(
            losses[:, t : t + 1],
            alone,
        )


def test_what_cannot_be_scored_is_refused():
    with pytest.raises(OptionError, match="attention_len=0: must be"):
        SlidingWindow(tiny_model(), 0)
    with pytest.raises(ValueError, match="2 tokens cannot predict 3 targets"):
        SlidingWindow(tiny_model(), 4).score(random_stream(1, 2), random_stream(1, 3))
