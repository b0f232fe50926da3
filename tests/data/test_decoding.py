"""Text decoded token by token equals the text of all tokens."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from txl_lightning.data.vocabulary import StreamDecoder, Vocabulary

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
