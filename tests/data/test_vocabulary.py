"""Words, bytes and characters: encoding as in the paper's preparation, and decoding, also token by token."""

import re
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from txl_lightning.data import counting, reading
from txl_lightning.data.reading import Part
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
def test_words_are_those_of_the_original_in_chunks_of_any_size(train: str, valid: str, sizes: list[int]) -> None:
    lines = words_of_the_original(train)
    counts = Counter(word for line in lines for word in [*line, "<eos>"])
    expected = ["<eos>", *(word for word, _ in counts.most_common() if word != "<eos>")]
    if "<unk>" not in expected:
        expected.append("<unk>")
    vocabulary = counting.words(chunks(train.encode(), sizes))
    assert list(vocabulary.symbols) == expected

    words = [
        word if word in expected else "<unk>" for line in words_of_the_original(valid) for word in [*line, "<eos>"]
    ]
    tokens = np.concatenate([np.empty(0, int), *vocabulary.encode_chunks(chunks(valid.encode(), sizes))])
    assert [vocabulary.symbols[int(token)] for token in tokens] == words
    assert np.array_equal(tokens, vocabulary.encode(valid.encode()))
    assert vocabulary.encode(b"").dtype == np.int32


@given(TEXTS, st.lists(st.integers(0, 9), max_size=8))
def test_sentences_of_lm1b_begin_with_one_mark_and_blank_lines_are_none(text: str, sizes: list[int]) -> None:
    vocabulary = Vocabulary("word", ("<S>", "<UNK>", "a", "b"))
    tokens = np.concatenate([np.empty(0, int), *vocabulary.encode_chunks(chunks(text.encode(), sizes))])
    known = [[w if w in ("a", "b") else "<UNK>" for w in line] for line in words_of_the_original(text) if line]
    assert [vocabulary.symbols[int(token)] for token in tokens] == [w for line in known for w in ["<S>", *line]]


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
    assert by_code_point == Vocabulary.of_characters(text)
    tokens = np.concatenate([np.empty(0, int), *by_code_point.encode_chunks(pieces)])
    assert by_code_point.decode(tokens) == text


def test_lines_are_restored_from_words() -> None:
    text = " = Title = \n\n a b a\n"
    vocabulary = counting.words([text.encode()])
    assert vocabulary.decode(vocabulary.encode(text.encode())) == "= Title =\n\na b a\n"
    assert Vocabulary.from_state_dict(vocabulary.state_dict()) == vocabulary


def test_a_symbol_that_training_lacks_is_named_where_there_is_no_unk() -> None:
    for vocabulary, content in ((Vocabulary("char", ("a", "b")), "abc"), (Vocabulary("byte", ("a", "b")), "abc")):
        with pytest.raises(UserError, match="'c' is not among the 2 symbols"):
            vocabulary.encode(content.encode())
    with pytest.raises(UserError, match="'c' is not among the 2 symbols"):
        Vocabulary("word", ("<eos>", "a")).encode(b"a c\n")


@given(st.lists(st.integers(0, 9), max_size=8))
def test_the_first_byte_that_is_not_utf8_is_named(sizes: list[int]) -> None:
    content = "äöü".encode() + b"ab\xe9 c"
    with pytest.raises(UserError, match=r"not UTF-8 text \(byte 8\)"):
        list(reading.decoded(chunks(content, sizes)))
    with pytest.raises(UserError, match=r"not UTF-8 text \(byte 6\)"):
        list(reading.decoded(chunks("äöü€".encode()[:-1], sizes)))


def test_a_count_file_gets_eos_and_unk_and_loses_its_padding(tmp_path) -> None:
    path = tmp_path / "counts.txt"
    path.write_text("the 900000\nof 441958\n＆ 3\nmadeupword0000 0\n", encoding="utf-8")
    assert counting.words_of_count_file(Part(path)).symbols == ("<eos>", "the", "<unk>", "of", "＆")
    path.write_text("the 900000\nof\n")
    with pytest.raises(UserError, match="line 2: 'of' is not a word and its count"):
        counting.words_of_count_file(Part(path))


def test_the_published_list_of_lm1b_needs_its_marks(tmp_path) -> None:
    path = tmp_path / "1b_word_vocab.txt"
    path.write_text("<S> 1\n<UNK> 2\nthe 3\n")
    assert counting.words_of_list(Part(path)).symbols == ("<S>", "<UNK>", "the")
    path.write_text("<S>\nthe\n")
    with pytest.raises(UserError, match="<UNK> is not in it"):
        counting.words_of_list(Part(path))


VOCABULARIES = {
    "bytes": Vocabulary("byte"),
    "some bytes": Vocabulary("byte", tuple(map(chr, [10, 65, 0xC3, 0xA9, 0xE2, 0x82, 0xAC, 0xF0, 0x9F, 0xFF]))),
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


def test_a_character_appears_when_its_last_byte_does() -> None:
    decoder = StreamDecoder(VOCABULARIES["bytes"])
    assert [decoder.feed([byte]) for byte in "a€".encode()] == ["a", "", "", "€"]
    assert decoder.feed(b"\xe2\x82") == ""
    assert decoder.feed(b"b") == "\ufffdb"
    assert decoder.feed(b"\xf0\x9f") + decoder.finish() == "\ufffd"


def test_words_are_joined_as_the_corpus_has_them() -> None:
    decoder = StreamDecoder(VOCABULARIES["words"])
    assert [decoder.feed([token]) for token in (2, 3, 0, 0, 2, 4)] == ["the", " cat", "\n", "\n", "the", " ,"]
