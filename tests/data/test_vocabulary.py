"""Words, bytes and characters: encoding as in the paper's preparation, and decoding, also token by token."""

import re
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from txl_lightning.data import vocabulary as counting
from txl_lightning.data.vocabulary import StreamDecoder, Vocabulary
from txl_lightning.errors import UserError

TEXTS = st.text(alphabet=st.sampled_from("ab <unk>é\u3000\n\r𝄞"), max_size=60)


def chunks(content: bytes, sizes: list[int]) -> list[bytes]:
    """Cut the content into pieces of drawn sizes, also inside characters."""
    ends = np.cumsum(sizes).tolist()
    return [content[a:b] for a, b in zip([0, *ends], [*ends, len(content)], strict=True)]


def words_of_the_original(text: str) -> list[list[str]]:
    """Read words as the paper's code does: open in text mode, strip every line, split it at white space."""
    lines = re.split("\r\n|\r|\n", text)
    return [line.strip().split() for line in (lines[:-1] if lines[-1] == "" else lines)]


@given(TEXTS, TEXTS, st.lists(st.integers(0, 9), max_size=8))
def test_words_are_those_of_the_original_in_chunks_of_any_size(
    train: str, valid: str, sizes: list[int]
) -> None:
    lines = words_of_the_original(train)
    counts = Counter(word for line in lines for word in [*line, "<eos>"])
    expected = ["<eos>", *(word for word, _ in counts.most_common() if word != "<eos>")]
    if "<unk>" not in expected:
        expected.append("<unk>")
    vocabulary = counting.words(chunks(train.encode(), sizes))
    assert list(vocabulary.symbols) == expected

    words = [word for line in words_of_the_original(valid) for word in [*line, "<eos>"]]
    tokens = np.concatenate(
        [np.empty(0, int), *vocabulary.encode_chunks(chunks(valid.encode(), sizes))]
    )
    known = [word if word in expected else "<unk>" for word in words]
    assert [vocabulary.symbols[int(token)] for token in tokens] == known
    assert np.array_equal(tokens, vocabulary.encode(valid.encode()))
    assert vocabulary.encode(b"").dtype == np.int32


@given(TEXTS, st.lists(st.integers(0, 9), max_size=8))
def test_sentences_of_lm1b_begin_with_one_mark_and_blank_lines_are_none(
    text: str, sizes: list[int]
) -> None:
    vocabulary = Vocabulary("word", ("<S>", "<UNK>", "a", "b"))
    tokens = np.concatenate(
        [np.empty(0, int), *vocabulary.encode_chunks(chunks(text.encode(), sizes))]
    )
    known = [
        [w if w in ("a", "b") else "<UNK>" for w in line]
        for line in words_of_the_original(text)
        if line
    ]
    assert [vocabulary.symbols[int(token)] for token in tokens] == [
        w for line in known for w in ["<S>", *line]
    ]


def test_a_rare_word_of_lm1b_is_unknown() -> None:
    vocabulary = counting.words_of_sentences([b"b a a\nb a\n", b"b c c\n"])
    assert vocabulary.symbols == ("<S>", "<UNK>", "b", "a")
    assert vocabulary.decode(vocabulary.encode(b"a c\nb\n")) == "\na <UNK>\nb"


@given(st.binary(max_size=80), st.lists(st.integers(0, 9), max_size=8))
def test_bytes_of_enwik8_the_papers_way_and_the_true_way(content: bytes, sizes: list[int]) -> None:
    pieces = chunks(content, sizes)
    kept, dropped = counting.bytes_with_newlines(pieces), counting.bytes_without_newlines(pieces)
    most_common = [chr(value) for value, _ in Counter(content).most_common()]
    assert list(kept.symbols) == most_common
    assert list(dropped.symbols) == [symbol for symbol in most_common if symbol != "\n"]
    for vocabulary, expected in ((kept, content), (dropped, content.replace(b"\n", b""))):
        if vocabulary.symbols:
            tokens = vocabulary.encode(content)
            assert "".join(vocabulary.symbols[t] for t in tokens).encode("latin-1") == expected
            assert tokens.dtype == np.uint8
            assert vocabulary.decode(tokens) == expected.decode(errors="replace")


@given(st.text(max_size=50), st.lists(st.integers(0, 9), max_size=8))
def test_characters_do_not_depend_on_where_chunks_end(text: str, sizes: list[int]) -> None:
    pieces = chunks(text.encode(), sizes)
    most_common = counting.characters(pieces)
    assert list(most_common.symbols) == [symbol for symbol, _ in Counter(text).most_common()]
    by_code_point = counting.characters_and_unknown(pieces)
    assert by_code_point.symbols == ("<unk>", *sorted(set(text)))
    tokens = np.concatenate([np.empty(0, int), *by_code_point.encode_chunks(pieces)])
    assert by_code_point.decode(tokens) == text


@given(
    st.lists(st.integers(0, 9), max_size=8),
    st.sampled_from(["äöü".encode() + b"ab\xe9 c", "äöü€".encode()[:-1]]),
)
def test_bytes_that_are_not_utf8_are_an_error(sizes: list[int], content: bytes) -> None:
    with pytest.raises(UserError, match="not UTF-8 text"):
        counting.characters(chunks(content, sizes))


VOCABULARIES = {
    "bytes": Vocabulary("byte"),
    "some bytes": Vocabulary(
        "byte", tuple(map(chr, [10, 65, 0xC3, 0xA9, 0xE2, 0x82, 0xAC, 0xF0, 0x9F, 0xFF]))
    ),
    "characters": Vocabulary("char", ("<unk>", "a", "é", "\n", "漢")),
    "words": Vocabulary("word", ("<eos>", "<unk>", "the", "cat", ",")),
    "sentences": Vocabulary("word", ("<S>", "<UNK>", "the", "cat")),
}


@pytest.mark.parametrize("name", VOCABULARIES)
@given(data=st.data())
def test_pieces_make_the_text_of_all_tokens(name: str, data: st.DataObject) -> None:
    vocabulary = VOCABULARIES[name]
    tokens = data.draw(st.lists(st.integers(0, len(vocabulary) - 1), max_size=12))
    decoder = StreamDecoder(vocabulary)
    pieces = [decoder.feed([token]) for token in tokens]
    assert "".join([*pieces, decoder.finish()]) == vocabulary.decode(tokens)


def test_text_appears_when_its_last_byte_or_the_next_word_does() -> None:
    decoder = StreamDecoder(VOCABULARIES["bytes"])
    assert [decoder.feed([byte]) for byte in "a€".encode()] == ["a", "", "", "€"]
    assert decoder.feed(b"\xe2\x82b") == "\ufffdb"
    assert decoder.feed(b"\xf0\x9f") + decoder.finish() == "\ufffd"
    decoder = StreamDecoder(VOCABULARIES["words"])
    assert [decoder.feed([token]) for token in (2, 3, 0, 0, 2, 4)] == [
        "the",
        " cat",
        "\n",
        "\n",
        "the",
        " ,",
    ]
