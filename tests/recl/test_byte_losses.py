"""Losses by bytes: two tokenizers with one distribution have equal curves; the rule, byte by byte."""

import numpy as np
import pytest
import torch

from tests.recl.pair_models import PairBytes, Pairs, pair_text
from txl_lightning.errors import UserError
from txl_lightning.evaluation.losses import WindowReader, window_reader
from txl_lightning.recl.command import byte_losses
from txl_lightning.recl.models import TokenizedText

TEXT = pair_text(150)
BYTES = TokenizedText(np.frombuffer(TEXT, np.uint8), np.arange(len(TEXT)), len(TEXT))


def test_a_context_is_cut_to_whole_tokens_and_a_loss_is_divided_over_the_bytes_of_its_piece() -> None:
    model = Pairs()
    tokens, sizes = model.encode(TEXT)
    text = TokenizedText(np.array(tokens), np.cumsum(sizes) - 2, len(TEXT))
    # Another tokenizer joins pairs 10 and 11, so that the piece is bytes 20 … 24.
    pieces = np.array([b for b in range(0, 301, 2) if b != 22])
    ours = byte_losses(window_reader(model), text, pieces, np.array([23]), [4, 7])
    # 4 bytes reach back to byte 19, in pair 9: no whole pair is left, so pair 9 is read. 7 bytes reach back to pair 8.
    for place, first in enumerate([9, 8]):
        window = torch.tensor([tokens[first:12]])
        nll, _ = model.score(window[:, :-1], window[:, -2:])
        assert ours[place, 0] == pytest.approx(float(nll.sum()) / 4, abs=1e-12)


def test_a_piece_beyond_the_limit_of_a_model_is_refused() -> None:
    pieces, positions = np.arange(0, 301, 20), np.array([40, 200])
    with pytest.raises(UserError, match="no common bound in 20 tokens; a model sees only 19"):
        byte_losses(WindowReader(PairBytes(), limit=19, one_pass=True), BYTES, pieces, positions, [2, 4])
    byte_losses(WindowReader(PairBytes(), limit=20, one_pass=True), BYTES, pieces, positions, [2, 4])


def test_the_first_piece_is_not_scored() -> None:
    reader = window_reader(PairBytes())
    with pytest.raises(UserError, match="no common bound in the first 20 bytes"):
        byte_losses(reader, BYTES, np.array([0, 20, 300]), np.array([12, 200]), [2, 4])
    with pytest.raises(UserError, match="unknown"):
        byte_losses(reader, TokenizedText(BYTES.tokens, None, 300), np.array([0, 300]), np.array([12]), [2])
