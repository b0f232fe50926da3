"""Byte-level BPE: tokens of any bytes, trained on the training split."""

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from txl_lightning.config.schemas import DataConfig
from txl_lightning.data import byte_pairs
from txl_lightning.data.byte_pairs import pieces, train_byte_pairs
from txl_lightning.data.corpus import Corpus, load_corpus
from txl_lightning.data.vocabulary import StreamDecoder, Vocabulary
from txl_lightning.errors import OptionError, UserError

TEXT = "".join(f"line {i}: the square of {i} is {i * i}, größer als {i}\n" for i in range(300))


@cache
def trained(vocab_size: int = 400) -> Vocabulary:
    return Vocabulary.of_tokenizer(train_byte_pairs([TEXT.encode()], vocab_size))


def corpus_of(path: Path, **options: object) -> Corpus:
    data = DataConfig(name="file", path=str(path), level="bpe", cache_dir=str(path.parent / "cache"), **options)
    return load_corpus(data)


def changed(**values: object) -> str:
    return json.dumps({**json.loads(trained().tokenizer), **values})


LIKE_TEXT = st.text().map(str.encode) | st.sampled_from([TEXT.encode()[:500], "größer".encode()[:4], b"\r\n \n\n  x\n"])


@given(st.lists(st.binary() | LIKE_TEXT).map(b"".join))
def test_decoding_gives_back_any_bytes(content: bytes) -> None:
    vocabulary = trained()
    tokens = vocabulary.encode(content)
    assert vocabulary.decode_bytes(tokens) == content
    assert vocabulary.count_bytes(tokens) == len(content)
    decoder = StreamDecoder(vocabulary)
    assert decoder.feed(tokens) + decoder.finish() == content.decode("utf-8", errors="replace")


@given(st.lists(st.binary(max_size=40) | LIKE_TEXT), st.integers(5, 60))
def test_tokens_do_not_depend_on_how_the_text_is_read(chunks: list[bytes], longest: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(byte_pairs, "LONGEST_PIECE", longest)
        whole = list(pieces([b"".join(chunks)]))
        assert list(pieces(chunks)) == whole
        assert all(0 < len(piece) <= longest for piece in whole)
        assert b"".join(whole) == b"".join(chunks)


def test_bytes_are_counted_only_where_they_are_known() -> None:
    characters = Vocabulary.of_characters("aé€")
    assert characters.count_bytes(characters.encode("é€a".encode())) == 6
    assert characters.count_bytes(characters.encode(b"ax")) is None
    assert Vocabulary("word", ("<eos>", "<unk>")).count_bytes(np.array([0])) is None
    assert Vocabulary("byte", ("b", "\n")).count_bytes(np.array([0, 1, 1])) == 3


def test_common_words_become_tokens_of_equal_number_everywhere() -> None:
    vocabulary = trained()
    assert len(vocabulary) == 400
    assert len(vocabulary.encode(TEXT.encode())) < len(TEXT) / 2.5
    assert " square" in vocabulary.numbers
    assert train_byte_pairs([TEXT[:1000].encode(), TEXT[1000:].encode()], 400) == vocabulary.tokenizer
    assert Vocabulary.from_state_dict(json.loads(json.dumps(vocabulary.state_dict()))) == vocabulary


def test_bytes_that_are_not_utf_8_are_single_tokens() -> None:
    tokens = trained().encode(b" square\xff\xc3 square")
    assert [trained().decode_bytes([token]) for token in tokens.tolist()] == [b" square", b"\xff", b"\xc3", b" square"]


def test_merges_come_from_the_training_split_only(tmp_path: Path) -> None:
    content = TEXT.encode()
    kept = int(len(content) * 0.96)
    doctored = content[:kept] + (b"zygote " * len(content))[: len(content) - kept]
    for name, of_file in {"a": content, "b": doctored}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "text.txt").write_bytes(of_file)
    honest, other = (corpus_of(tmp_path / name / "text.txt", vocab_size=300) for name in "ab")
    assert honest.checksum != other.checksum
    assert honest.vocabulary == other.vocabulary
    assert np.array_equal(honest.splits["train"], other.splits["train"])
    assert not np.array_equal(honest.splits["test"], other.splits["test"])


def test_a_tokenizer_file_is_used_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text(TEXT)
    (tmp_path / "tokenizer.json").write_text(trained().tokenizer)
    corpus = corpus_of(tmp_path / "text.txt", tokenizer=str(tmp_path / "tokenizer.json"))
    assert corpus.vocabulary == trained()
    assert corpus.splits["train"].dtype == np.uint16
    added = {"id": 400, "content": "<|end|>", "special": True, "single_word": False, "lstrip": False, "rstrip": False}
    (tmp_path / "tokenizer.json").write_text(changed(added_tokens=[{**added, "normalized": False}]))
    corpus = corpus_of(tmp_path / "text.txt", tokenizer=str(tmp_path / "tokenizer.json"))
    assert len(corpus.vocabulary) == 401
    assert corpus.vocabulary.encode(b"a<|end|>").tolist()[1:] == [400]


def unusable() -> Iterator[tuple[dict[str, object], str]]:
    yield {"vocab_size": 100_000}, r"data.vocab_size=100000: must be in 256 … \d+: no other pair"
    yield {"vocab_size": 255}, "data.vocab_size=255: must be an integer >= 256"
    yield {"vocab_size": 300, "tokenizer": "x.json"}, "must not be given together"
    yield {"level": "char", "vocab_size": 300}, "is for data.level=bpe"
    yield {"level": "byte", "tokenizer": "x.json"}, "is for data.level=bpe"
    yield {"tokenizer": "missing.json"}, "data.tokenizer=missing.json: cannot be read"


@pytest.mark.parametrize(("options", "words"), list(unusable()))
def test_unusable_options_are_named(tmp_path: Path, options: dict[str, object], words: str) -> None:
    (tmp_path / "text.txt").write_text(TEXT)
    data = DataConfig(name="file", path=str(tmp_path / "text.txt"), cache_dir=str(tmp_path / "cache"))
    with pytest.raises(OptionError, match=words):
        load_corpus(DataConfig(**{**vars(data), "level": "bpe", **options}))


@pytest.mark.parametrize(
    ("tokenizer", "words"),
    [
        ("{}", "is not a tokenizer.json"),
        (json.dumps({"version": "1.0", "added_tokens": [], "model": {"type": "WordLevel", "vocab": {}}}), "is not a"),
        ("prefix", "changes the text"),
        ("normalizer", "changes the text"),
    ],
)
def test_a_tokenizer_that_loses_text_is_refused(tokenizer: str, words: str) -> None:
    known = {
        "prefix": {"pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True}},
        "normalizer": {"normalizer": {"type": "Lowercase"}},
    }
    text = changed(**known[tokenizer]) if tokenizer in known else tokenizer
    with pytest.raises(UserError, match=words):
        Vocabulary.of_tokenizer(text).encode(b"Some TEXT")
