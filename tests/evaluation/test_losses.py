"""Standard errors of losses, and targets that are no tokens."""

from typing import Any

import numpy as np
import pytest
import torch

from tests.model.tiny_model import tiny_model
from txl_lightning.evaluation.losses import standard_error, text_units
from txl_lightning.model.inference.cached import CachedTransformerXL


def test_units_are_blocks_or_sentences_and_a_single_one_has_no_error() -> None:
    """<S> a b | <S> c | <S> d e, and the <S> after it: the end of a sentence belongs to the sentence."""
    assert standard_error(
        np.ones(3),
        np.zeros(3, np.int64),
    ) == (None, 1)
    blocks, name = text_units(
        np.array([1, 2, 3, 8]),
        None,
        3,
    )
    assert (blocks.tolist(), name) == (
        [
            0,
            0,
            1,
            2,
        ],
        "blocks of 3 tokens",
    )
    sentences, name = text_units(
        np.arange(1, 9),
        np.array([0, 3, 5]),
        3,
    )
    assert (sentences.tolist(), name) == (
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
    tokens = torch.tensor(
        [
            [
                -4,
                1,
                2,
                -6,
            ]
        ]
    )
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
