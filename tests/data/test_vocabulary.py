"""Words, bytes and characters: encoding as in the paper's preparation, and decoding, also token by token."""

import re
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from txl_lightning.data import vocabulary as counting
from txl_lightning.data.vocabulary import StreamDecoder, Vocabulary

TEXTS = st.text(
    alphabet=st.sampled_from("ab <unk>é\u3000\n\r𝄞"),
    max_size=60,
)


def lines(text: str) -> list[bytes]:
    """Cut a text after its line breaks, as `read` does."""
    return [line.encode() for line in re.findall("[^\n]*\n|[^\n]+", text)]


def tokens_of(vocabulary: Vocabulary, lines: list[bytes]) -> list[int]:
    tokens = []
    for chunk, _ in vocabulary.encode_documents([line] for line in lines):
        tokens += chunk.tolist()
    return tokens


def words_of_the_original(text: str) -> list[list[str]]:
    """Read words as the paper's code does: open in text mode, strip every line, split it at white space."""
    lines = re.split("\r\n|\r|\n", text)
    if lines[-1] == "":
        lines.pop()
    return [line.strip().split() for line in lines]


@given(TEXTS, TEXTS)
def test_words_are_those_of_the_original(train, valid):
    counts = Counter()
    for line in words_of_the_original(train):
        counts.update([*line, "<eos>"])
    expected = [
        "<eos>",
        *(word for word, _ in counts.most_common() if word != "<eos>"),
    ]
    if "<unk>" not in expected:
        expected.append("<unk>")
    vocabulary = counting.words(lines(train))
    assert list(vocabulary.symbols) == expected
    known = []
    for line in words_of_the_original(valid):
        known += [word if word in expected else "<unk>" for word in [*line, "<eos>"]]
    tokens = vocabulary.encode(valid.encode())
    assert [vocabulary.symbols[token] for token in tokens] == known
    assert tokens_of(vocabulary, lines(valid)) == tokens.tolist()
    assert tokens.dtype == np.int32


@given(TEXTS)
def test_sentences_of_lm1b_begin_with_one_mark_and_blank_lines_are_none(text):
    vocabulary = Vocabulary("word", ("<S>", "<UNK>", "a", "b"))
    expected = []
    for line in words_of_the_original(text):
        if line:
            expected += [
                "<S>",
                *(word if word in ("a", "b") else "<UNK>" for word in line),
            ]
    tokens = tokens_of(vocabulary, lines(text))
    assert [vocabulary.symbols[token] for token in tokens] == expected


@given(st.binary(max_size=80))
def test_bytes_of_enwik8_the_papers_way_and_the_true_way(content):
    pieces = [
        content[:9],
        content[9:],
    ]
    kept = counting.bytes_with_newlines(pieces)
    dropped = counting.bytes_without_newlines(pieces)
    most_common = [chr(value) for value, _ in Counter(content).most_common()]
    assert list(kept.symbols) == most_common
    assert list(dropped.symbols) == [symbol for symbol in most_common if symbol != "\n"]
    for vocabulary, expected in ((kept, content), (dropped, content.replace(b"\n", b""))):
        if vocabulary.symbols:
            tokens = vocabulary.encode(content)
            assert vocabulary.decode_bytes(tokens) == expected
            assert tokens.dtype == np.uint8
            assert vocabulary.decode(tokens) == expected.decode(errors="replace")


@given(st.text(max_size=50))
def test_characters_are_counted_or_ordered_by_code_point(text):
    pieces = [character.encode() for character in text]
    most_common = counting.characters(pieces)
    assert list(most_common.symbols) == [symbol for symbol, _ in Counter(text).most_common()]
    by_code_point = counting.characters_and_unknown(pieces)
    assert by_code_point.symbols == ("<unk>", *sorted(set(text)))
    assert by_code_point.decode(by_code_point.encode(text.encode())) == text


VOCABULARIES = {
    "bytes": Vocabulary("byte"),
    "some bytes": Vocabulary("byte", tuple(map(chr, b"\nA\xc3\xa9\xe2\x82\xac\xf0\x9f\xff"))),
    "characters": Vocabulary("char", ("<unk>", "a", "é", "\n", "漢")),
    "words": Vocabulary("word", ("<eos>", "<unk>", "the", "cat", ",")),
    "sentences": Vocabulary("word", ("<S>", "<UNK>", "the", "cat")),
}


@pytest.mark.parametrize("name", VOCABULARIES)
@given(numbers=st.lists(st.integers(0, 255), max_size=12))
def test_pieces_make_the_text_of_all_tokens(name, numbers):
    vocabulary = VOCABULARIES[name]
    tokens = [number % len(vocabulary) for number in numbers]
    decoder = StreamDecoder(vocabulary)
    pieces = [decoder.feed([token]) for token in tokens]
    assert "".join(pieces) + decoder.finish() == vocabulary.decode(tokens)


def test_text_appears_when_its_last_byte_or_the_next_word_does():
    decoder = StreamDecoder(VOCABULARIES["bytes"])
    assert [decoder.feed([byte]) for byte in "a€".encode()] == ["a", "", "", "€"]
    assert decoder.feed(b"\xe2\x82b") == "\ufffdb"
    assert decoder.feed(b"\xf0\x9f") + decoder.finish() == "\ufffd"
    decoder = StreamDecoder(VOCABULARIES["words"])
    pieces = [decoder.feed([token]) for token in (2, 3, 0, 0, 2, 4)]
    assert pieces == ["the", " cat", "\n", "\n", "the", " ,"]
