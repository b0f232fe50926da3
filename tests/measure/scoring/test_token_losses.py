"""Segments without memory scored in larger batches: the same losses, in the same order."""

from typing import Any

import numpy as np
import pytest

from tests.model.tiny_model import VOCABULARY, tiny_model
from txl_lightning.data.streams import OrderedStreams
from txl_lightning.measure.scoring import stream_losses as scoring
from txl_lightning.model.baselines import RecurrentConfig, RecurrentLanguageModel
from txl_lightning.model.inference.cached import CachedTransformerXL

TOKENS = np.random.default_rng(3).integers(0, VOCABULARY, 120).astype(np.uint8)


def batches(model: Any, monkeypatch: pytest.MonkeyPatch, window_tokens: int, **options: Any) -> tuple[Any, list[int]]:
    """Losses on three streams in segments of 4, and the batch size of every call."""
    sizes: list[int] = []
    score = model.score

    def noted(tokens: Any, targets: Any, state: Any) -> Any:
        sizes.append(len(tokens))
        return score(tokens, targets, state)

    with monkeypatch.context() as patched:
        patched.setattr(scoring, "WINDOW_TOKENS", window_tokens)
        patched.setattr(model, "score", noted, raising=False)
        streams = OrderedStreams(TOKENS, 3, 4, ext_len=getattr(getattr(model, "config", None), "ext_len", 0))
        return scoring.stream_losses(model, streams, **options), sizes


@pytest.mark.parametrize("cached", [True, False])
@pytest.mark.parametrize("encoding", ["relative", "absolute"])
def test_windows_are_scored_together(encoding: str, cached: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    model: Any = tiny_model(mem_len=0, ext_len=6, encoding=encoding).eval()
    model = CachedTransformerXL(model) if cached else model
    alone, ones = batches(model, monkeypatch, 0)
    ours, sizes = batches(model, monkeypatch, 3 * 10 * 3)
    assert ones == [3] * 10
    assert sizes == [3, 3, 9, 9, 3, 3]  # windows grow to 10 tokens; the last segment is shorter
    np.testing.assert_allclose(ours.nll, alone.nll, rtol=0, atol=1e-12)
    assert ours.positions.tolist() == alone.positions.tolist()
    first, _ = batches(model, monkeypatch, 90, max_segments=4)
    assert (len(first.nll), first.left_out["max_segments"]) == (48, len(alone.nll) - 48)


def test_a_memory_or_a_recurrent_state_goes_from_segment_to_segment(monkeypatch: pytest.MonkeyPatch) -> None:
    recurrent = RecurrentLanguageModel(RecurrentConfig(vocab_size=VOCABULARY, cell="lstm", n_layer=1, d_model=8))
    for model in (tiny_model(mem_len=4).eval(), recurrent.eval()):
        assert batches(model, monkeypatch, 1000)[1] == [3] * 10
