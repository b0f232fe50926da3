"""Bytes of tokens: spans with gaps and shared bytes, pieces of several tokenizers, characters cut at the ends."""

import numpy as np
import pytest

from txl_lightning.data.vocabulary import Vocabulary, characters_and_unknown
from txl_lightning.errors import UserError
from txl_lightning.measure.models import (
    TokenizedText,
    character_starts,
    common_pieces,
    starts_of_spans,
    whole_characters,
    with_vocabulary,
)


@pytest.mark.parametrize(
    ("spans", "starts"),
    [
        ([(0, 2), (2, 5), (5, 6)], [0, 2, 5]),
        ([(1, 2), (4, 5), (5, 6)], [0, 2, 5]),  # bytes between two tokens belong to the second
        ([(0, 1), (1, 4), (1, 4), (4, 5)], [0, 1, 1, 4]),  # a character of two tokens
        ([(0, 4), (1, 5), (4, 6), (6, 7)], [0, 0, 0, 6]),  # two characters over three tokens
        ([(0, 0), (0, 3)], [0, 0]),  # a token without bytes
    ],
)
def test_every_token_has_a_start(spans: list[tuple[int, int]], starts: list[int]) -> None:
    begins, ends = np.array(spans).T
    assert starts_of_spans(begins, ends).tolist() == starts


def test_characters_start_after_the_bytes_before_them() -> None:
    assert character_starts("aé€😀b").tolist() == [0, 1, 3, 6, 10]


def text_of(*starts: int, n_bytes: int = 9) -> TokenizedText:
    return TokenizedText(np.zeros(len(starts)), np.array(starts), n_bytes)


def test_pieces_end_where_no_token_goes_on() -> None:
    assert common_pieces([text_of(0, 2, 5, 7), text_of(*range(9)), text_of(0, 1, 2, 7, 8)]).tolist() == [0, 2, 7, 9]
    with pytest.raises(UserError, match="unknown"):
        common_pieces([text_of(0, 2), TokenizedText(np.zeros(2), None, 9)])


def test_tokenizers_agree_if_they_cut_the_text_alike() -> None:
    assert text_of(0, 2).agrees_with(TokenizedText(np.array([7, 8]), np.array([0, 2]), 9))
    assert not text_of(0, 2).agrees_with(text_of(0, 3))
    unknown = TokenizedText(np.array([1, 2]), None, 9)
    assert unknown.agrees_with(TokenizedText(np.array([1, 2]), None, 9))
    assert not unknown.agrees_with(text_of(0, 2))


def test_the_tokens_of_a_run_have_the_bytes_of_its_vocabulary() -> None:
    content = "aéa\n".encode()
    assert with_vocabulary(Vocabulary("byte"), content).starts.tolist() == [0, 1, 2, 3, 4]
    assert with_vocabulary(characters_and_unknown(["aé\n".encode()]), content).starts.tolist() == [0, 1, 3, 4]
    assert with_vocabulary(Vocabulary("byte", ("a",)), b"aa\n").starts is None  # drops line breaks
    assert with_vocabulary(Vocabulary("word", ("<eos>", "a")), b"a a\n").starts is None
    sentences = with_vocabulary(Vocabulary("word", ("<S>", "<UNK>", "a")), b"a\na a\n", closed=True)
    assert sentences.tokens.tolist() == [0, 2, 0, 0, 2, 2, 0]
    with pytest.raises(UserError, match="'b' is not among"):
        with_vocabulary(characters_and_unknown([b"a"]), b"b")


def test_a_character_cut_at_either_end_is_left_out() -> None:
    content = "€a😀".encode()
    assert whole_characters(content) == "€a😀"
    for cut in (1, 2):
        assert whole_characters(content[cut:]) == "a😀"
    for cut in (1, 2, 3):
        assert whole_characters(content[:-cut]) == "€a"
    with pytest.raises(UserError, match=r"is not UTF-8 text \(byte 3\)"):
        whole_characters(b"abc\xffabc")
