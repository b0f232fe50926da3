"""Evaluation, cached inference, RECL and generation on the meta device, where a tensor on another device raises."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from tests.devices.arms import B, T, cases, make, tokens, unread_clusters
from tests.host_reads import AnsweredReads
from txl_lightning import CachedTransformerXL, TransformerXL
from txl_lightning.data.streams import Streams
from txl_lightning.evaluation.losses import stream_losses
from txl_lightning.model.inference import generation
from txl_lightning.model.inference.cached import can_cache
from txl_lightning.model.inference.sliding_window import SlidingWindow
from txl_lightning.recl.windows import window_losses, window_reader

CORPUS = np.arange(200) % 30


@pytest.fixture(autouse=True)
def _unread() -> Iterator[None]:
    with unread_clusters():
        yield


@pytest.mark.parametrize("arm", cases())
def test_streams_are_scored_cached_or_not(arm):
    model = make(arm, "meta").eval()
    streams = Streams(
        CORPUS[: 3 * B * T],
        B,
        T,
    )
    cached = [CachedTransformerXL(model, mem_len=17)] if can_cache(model) else []
    with AnsweredReads():
        for reader in (model, *cached):
            assert len(stream_losses(reader, streams).nll) == streams.n_targets


@pytest.mark.parametrize("arm", cases())
def test_recl_has_losses_by_context(arm):
    reader = window_reader(make(arm, "meta"), trained_len=T)
    with AnsweredReads():
        assert window_losses(reader, CORPUS, np.arange(50, 60), [2, 4, 6]).shape == (3, 10)


@pytest.mark.parametrize("arm", cases())
def test_tokens_are_generated(arm, monkeypatch):
    """As `txl generate` does it: without a memory, from a window that is recomputed for every token."""

    def likeliest(log_probabilities_BV, sampling, generators):
        _, tokens_Bk = generation.candidates(
            log_probabilities_BV, sampling.top_k, sampling.top_p, sampling.temperature
        )
        return tokens_Bk[:, 0]

    monkeypatch.setattr(generation, "_sample", likeliest)  # draws on the CPU for every device
    model = make(arm, "meta").eval()
    if isinstance(model, TransformerXL) and not model.config.mem_len:
        model = SlidingWindow(model, T)
    with AnsweredReads():
        drawn = list(generation.generate(model, tokens("meta"), 3, top_k=5, top_p=0.9))
    assert [(token_B.shape, token_B.device.type) for token_B in drawn] == [((B,), "meta")] * 3
