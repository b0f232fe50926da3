"""Standard errors over parts of a text."""

import numpy as np

from txl_lightning.measure.losses import standard_error, text_units


def test_a_single_unit_has_none() -> None:
    assert standard_error(np.ones(3), np.zeros(3, dtype=np.int64)) == (None, 1)


def test_blocks_and_sentences() -> None:
    positions = np.array([1, 2, 3, 4, 5, 8])
    of_blocks, name = text_units(positions, None, 3)
    assert (of_blocks.tolist(), name) == ([0, 0, 1, 1, 1, 2], "blocks of 3 tokens")
    # <S> a b | <S> c | <S> d e, and the <S> after it: the end of a sentence belongs to the sentence.
    of_sentences, name = text_units(np.arange(1, 9), np.array([0, 3, 5]), 3)
    assert (of_sentences.tolist(), name) == ([0, 0, 0, 1, 1, 2, 2, 2], "sentences")
