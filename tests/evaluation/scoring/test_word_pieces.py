"""First and later pieces of words: subwords, characters and bytes."""

import re

import numpy as np
import pytest

from txl_lightning.data.vocabulary import Vocabulary
from txl_lightning.evaluation.scoring.tokenized_text import (
    TokenizedText,
    pieces_of_symbols,
    pieces_of_text,
    word_pieces,
)

TEXT = "Über naïve_words, 2nd: été—ab\n(x)y '😀z' 中文 end"


def kinds(first: np.ndarray, later: np.ndarray) -> str:
    assert not (first & later).any()
    return "".join("F" if f else "L" if x else "." for f, x in zip(first, later, strict=True))


def of_characters(text: str) -> str:
    found = ["."] * len(text)
    for word in re.finditer(r"\w+", text):
        found[word.start()] = "F"
        found[word.start() + 1 : word.end()] = "L" * (len(word[0]) - 1)
    return "".join(found)


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        ([" word", "s", ",", " an", "other", " ", "one", "\n"], "FL.FL.F."),
        (["un", " known", "x y", "z. a", "bc"], "FFFFL"),  # a piece in which a word begins is a first one
        (["don", "'", "t"], "F.F"),
        (["a b", "_c", "1", "-", "-"], "FLL.."),
    ],
)
def test_a_piece_is_the_first_if_a_word_begins_in_it(tokens: list[str], expected: str) -> None:
    content = "".join(tokens).encode()
    ends = np.cumsum([len(token.encode()) for token in tokens])
    text = TokenizedText(np.arange(len(tokens)), np.append(0, ends[:-1]), len(content))
    assert kinds(*word_pieces(pieces_of_text(text, content, np.arange(len(tokens))))) == expected


def test_parts_of_a_character_are_later_pieces_but_for_the_first() -> None:
    content = "a été".encode()
    text = TokenizedText(np.arange(7), np.array([0, 1, 2, 2, 4, 5, 5]), len(content))  # both parts of é start there
    assert kinds(*word_pieces(pieces_of_text(text, content, np.arange(7)))) == "F.FLLLL"


def test_characters_and_bytes() -> None:
    places, expected = np.arange(len(TEXT)), of_characters(TEXT)
    vocabulary = Vocabulary.of_characters(TEXT)
    assert kinds(*word_pieces(pieces_of_symbols(vocabulary, vocabulary.encode(TEXT.encode()), places))) == expected
    unknown = Vocabulary.of_characters(TEXT.replace("—", ""))
    assert kinds(*word_pieces(pieces_of_symbols(unknown, unknown.encode(TEXT.encode()), places))) == expected
    sizes = [len(character.encode()) for character in TEXT]
    each = zip(expected, sizes, strict=True)
    of_bytes = "".join("." * n if kind == "." else kind + "L" * (n - 1) for kind, n in each)
    content = np.frombuffer(TEXT.encode(), np.uint8)
    places = np.arange(len(content))
    assert kinds(*word_pieces(pieces_of_symbols(Vocabulary("byte"), content, places))) == of_bytes
    text = TokenizedText(content, places, len(content))
    assert kinds(*word_pieces(pieces_of_text(text, TEXT.encode(), places))) == of_bytes


def test_bytes_that_are_no_text_are_of_no_word_and_words_have_no_pieces() -> None:
    content = np.frombuffer(b"ab\xff\xfec \x80d", np.uint8)
    assert kinds(*word_pieces(pieces_of_symbols(Vocabulary("byte"), content, np.arange(8)))) == "FL..F..F"
    latin = Vocabulary("byte", tuple("ab\xc3\xa9 "))  # a byte-level vocabulary of the paper's enwik8
    assert kinds(*word_pieces(pieces_of_symbols(latin, latin.encode("aé b".encode()), np.arange(5)))) == "FLL.F"
    pairs = Vocabulary("bpe", ("a", " b", "\xc3", "\xa9", "c d", "."))
    assert kinds(*word_pieces(pieces_of_symbols(pairs, np.array([0, 2, 3, 1, 0, 5, 4, 3]), np.arange(8)))) == "FLLFL.F."
    assert pieces_of_symbols(Vocabulary("word", ("<eos>", "a")), np.zeros(3, np.int32), np.arange(3)) is None
