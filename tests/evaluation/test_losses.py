"""Losses of streams against brute force in float64, and standard errors."""

from typing import Any

import numpy as np
import pytest
import torch

from tests.model.tiny_model import VOCABULARY, tiny_model
from txl_lightning.data.streams import Streams
from txl_lightning.evaluation import losses as module
from txl_lightning.evaluation.losses import standard_error, stream_losses, text_units
from txl_lightning.model.inference.cached import CachedTransformerXL

TOKENS = (
    np.random.default_rng(3)
    .integers(
        0,
        VOCABULARY,
        200,
    )
    .astype(np.uint8)
)


def batches(
    model: Any, monkeypatch: pytest.MonkeyPatch, tokens: int, **options: Any
) -> tuple[Any, list[int]]:
    """Losses on three streams in segments of 4, and the batch size of every call."""
    sizes: list[int] = []
    score = model.score
    with monkeypatch.context() as patched:
        patched.setattr(module, "SEGMENT_TOKENS", tokens)
        patched.setattr(
            model,
            "score",
            lambda x, *given: (
                sizes.append(len(x))
                or score(
                    x,
                    *given,
                )
            ),
            raising=False,
        )
        return stream_losses(
            model,
            Streams(
                TOKENS[:120],
                3,
                4,
                ext_len=6,
            ),
            **options,
        ), sizes


@pytest.mark.parametrize(
    ("encoding", "cached"), [("relative", True), ("relative", False), ("absolute", True)]
)
def test_segments_without_memory_are_joined(
    encoding: str, cached: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    model: Any = tiny_model(mem_len=0, ext_len=6, encoding=encoding).eval()
    model = CachedTransformerXL(model) if cached else model
    alone, ones = batches(model, monkeypatch, 0)
    ours, sizes = batches(model, monkeypatch, 3 * 10 * 3)
    assert ones == [3] * 10
    assert sizes == [3, 3, 9, 9, 3, 3]  # windows grow to 10 tokens; the last segment is shorter
    np.testing.assert_allclose(
        ours.nll,
        alone.nll,
        rtol=0,
        atol=1e-12,
    )
    assert ours.positions.tolist() == alone.positions.tolist()
    first, _ = batches(model, monkeypatch, 90, max_segments=4)
    assert (len(first.nll), first.left_out["max_segments"]) == (48, len(alone.nll) - 48)


def test_units_are_blocks_or_sentences_and_a_single_one_has_no_error() -> None:
    assert standard_error(
        np.ones(3),
        np.zeros(3, dtype=np.int64),
    ) == (None, 1)
    of_blocks, name = text_units(
        np.array([1, 2, 3, 4, 5, 8]),
        None,
        3,
    )
    assert (of_blocks.tolist(), name) == (
        [
            0,
            0,
            1,
            1,
            1,
            2,
        ],
        "blocks of 3 tokens",
    )
    # <S> a b | <S> c | <S> d e, and the <S> after it: the end of a sentence belongs to the sentence.
    of_sentences, name = text_units(
        np.arange(1, 9),
        np.array([0, 3, 5]),
        3,
    )
    assert (of_sentences.tolist(), name) == (
        [
            0,
            0,
            0,
            1,
            1,
            2,
            2,
            2,
        ],
        "sentences",
    )


READERS = ["hidden", "cached", "clusters"]


@pytest.mark.parametrize("target", [-1, -3, -100])
@pytest.mark.parametrize("reader", READERS)
def test_a_target_that_is_no_token_is_refused_with_resets_too(target: int, reader: str) -> None:
    """-1 - token begins a document among the tokens; among the targets it was the loss of another token."""
    cutoffs = (50, 150) if reader == "clusters" else ()
    options = {"vocab_size": 256, "memory_reset": "document", "cutoffs": cutoffs}
    model: Any = tiny_model(**options).eval()
    if reader == "cached":
        model = CachedTransformerXL(model)
    tokens = torch.tensor([[-4, 1, 2, -6]])
    with (
        torch.no_grad(),
        pytest.raises(
            RuntimeError,
            match=f"index {target} is out of bounds",
        ),
    ):
        model.score(
            tokens,
            torch.tensor([[1, 2, target, 3]]),
        )
