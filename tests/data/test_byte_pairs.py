"""Byte-level BPE: tokens of any text, trained on the training split."""

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from tests.data.helpers import corpus_of, files
from tests.data.test_subwords import tokenizer
from txl_lightning.data.subwords import train_byte_pairs
from txl_lightning.data.vocabulary import StreamDecoder, Vocabulary
from txl_lightning.errors import OptionError, UserError

TEXT = "".join(f"line {i}: the square of {i} is {i * i}, größer als {i}\n" for i in range(300))


@cache
def trained(vocab_size: int = 400) -> Vocabulary:
    return Vocabulary.of_tokenizer(train_byte_pairs([TEXT], vocab_size))


def changed(**values: object) -> str:
    return json.dumps({**json.loads(trained().tokenizer), **values})


LIKE_TEXT = st.text() | st.sampled_from(
    [
        TEXT[:500],
        "größer",
        "\r\n \n\n  x\n",
        "\u3000\nx",
    ]
)


@given(st.lists(LIKE_TEXT).map("".join))
def test_decoding_gives_back_any_text(content: str) -> None:
    vocabulary = trained()
    tokens = vocabulary.encode(content.encode())
    assert vocabulary.decode_bytes(tokens).decode() == content
    assert vocabulary.count_bytes(tokens) == len(content.encode())
    decoder = StreamDecoder(vocabulary)
    assert decoder.feed(tokens) + decoder.finish() == content


def test_merges_come_from_the_training_split_only(tmp_path: Path) -> None:
    content = TEXT.encode()
    kept = int(len(content) * 0.96)
    doctored = content[:kept] + (b"zygote " * len(content))[: len(content) - kept]
    paths = files(tmp_path, {"honest.txt": content, "other.txt": doctored})
    honest, other = (corpus_of(path, tmp_path, level="bpe", vocab_size=300) for path in paths)
    assert honest.checksum != other.checksum
    assert honest.vocabulary == other.vocabulary
    assert np.array_equal(honest.splits["train"], other.splits["train"])
    assert not np.array_equal(honest.splits["test"], other.splits["test"])


def test_a_tokenizer_file_is_used_as_it_is(tmp_path: Path) -> None:
    made = Tokenizer.from_str(trained().tokenizer)
    made.add_special_tokens(["<|end|>"])
    path, tokenizer = files(tmp_path, {"text.txt": TEXT, "tokenizer.json": made.to_str()})
    corpus = corpus_of(path, tmp_path, level="bpe", tokenizer=tokenizer)
    assert corpus.vocabulary.tokenizer == made.to_str()
    assert (len(corpus.vocabulary), corpus.splits["train"].dtype) == (401, np.uint16)
    assert corpus.vocabulary.encode(b"a<|end|>").tolist()[1:] == [400]


OTHER_TOKENIZERS = [
    ("spm.model", r"AutoTokenizer\.from_pretrained\(FOLDER\)\.save_pretrained\(FOLDER\)"),
    ("cl100k.tiktoken", r"TikTokenConverter\(FILE\)\.converted\(\)\.save\('tokenizer\.json'\)"),
]


@pytest.mark.parametrize(("name", "conversion"), OTHER_TOKENIZERS)
def test_a_tokenizer_of_another_format_is_refused_with_the_line_that_converts_it(
    tmp_path: Path, name: str, conversion: str
) -> None:
    path, tokenizer = files(tmp_path, {"text.txt": TEXT, name: b"\x0a\xff"})
    with pytest.raises(OptionError, match=f"{name}: must be a tokenizer.json: {conversion}"):
        corpus_of(path, tmp_path, level="bpe", tokenizer=tokenizer)


WITH_A_SPACE = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True}
WORD_LEVEL = {
    "type": "WordLevel",
    "vocab": {"[UNK]": 0},
    "unk_token": "[UNK]",
}
WORDS = json.dumps(
    {
        "version": "1.0",
        "added_tokens": [],
        "model": WORD_LEVEL,
    }
)


AT_THE_START = {
    "type": "Metaspace",
    "replacement": "▁",
    "prepend_scheme": "first",
    "split": True,
}
LOSSY = [
    (lambda: "{}", "is not a byte-level tokenizer.json"),
    (lambda: WORDS, "neither byte-level nor of SentencePiece"),
    (lambda: changed(pre_tokenizer=WITH_A_SPACE), "changes the text"),
    (
        lambda: changed(normalizer={"type": "Lowercase"}),
        r"no token for 'E' \(1 bytes\), 'S' \(1 bytes\), 'T' .*, 'X' .* of the text",
    ),
    (
        lambda: json.dumps(json.loads(tokenizer("metaspace")) | {"pre_tokenizer": AT_THE_START}),
        "and add no spaces",
    ),
]


@pytest.mark.parametrize(("change", "words"), LOSSY)
def test_a_tokenizer_that_loses_text_is_refused(change: Callable[[], str], words: str) -> None:
    with pytest.raises(UserError, match=words):
        Vocabulary.of_tokenizer(change()).encode(b"Some TEXT")
