"""Ids of tokenizers are the whole text's, whatever divides it and however it is read."""

import json
import random
from collections.abc import Iterable
from functools import cache
from itertools import chain
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    trainers,
)

from txl_lightning.data import subwords
from txl_lightning.data.subwords import WORD, train_byte_pairs
from txl_lightning.data.vocabulary import Vocabulary
from txl_lightning.errors import UserError

SENTENCES = (
    "It was a bright cold day in April, and the clocks were striking 13.",
    "Well, Prince, so Genoa and Lucca are now just family estates of the Buonapartes -- isn't it?!",
    "“Größe” naïve café 12345 3.14159 e-mail@example.org http://example.org/a/b?c=d",
    "\u3000床前明月光,疑是地上霜。 🎉🎉 \u00a0\u00a0x",
)
draw = random.Random(1)
PROSE = ""
for _ in range(400):
    PROSE += " ".join(draw.choices(SENTENCES, k=draw.randint(1, 6)))
    PROSE += "\n" * draw.randint(1, 3)
CODE = ""
for i in range(800):
    indent = "    " * draw.randint(1, 4)
    CODE += f"def f{i}(a, b):\n{indent}return a  +  {i}*b\n"
    CODE += "\n" * draw.choice([0, 1, 3]) + "\t\t# x \n" * (i % 3)
ACGT = "".join(draw.choices("acgt", k=30_000))
LONG_RUNS = ACGT + "7" * 2_000 + " " * 3_000 + "()" * 999
WHITE = "\n" * 777 + "\t \n" * 2_000 + "\u3000" * 55
TEXTS = {
    "prose": PROSE,
    "code": CODE,
    "crlf": PROSE.replace("\n", "\r\n") + "\r\n\r\n",
    "one line": LONG_RUNS + PROSE.replace("\n", "-"),
    "white space": " " * 4_099 + WHITE + "\x1c ! \x1f " * 99 + " ",
}

CL100K = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
O200K = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{M}]*[\p{Ll}\p{M}]+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+|\p{L}"
)
BYTE_LEVEL = pre_tokenizers.ByteLevel(add_prefix_space=False)
NO_REGEX = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)


def expression(pattern: str) -> Any:
    isolated = pre_tokenizers.Split(Regex(pattern), "isolated")
    return pre_tokenizers.Sequence([isolated, NO_REGEX])


DIGITS = pre_tokenizers.Digits(individual_digits=True)
WAYS = {
    "gpt2": BYTE_LEVEL,
    "cl100k": expression(CL100K),
    "o200k": expression(O200K),
    "no expression": NO_REGEX,
    "digits": pre_tokenizers.Sequence([DIGITS, BYTE_LEVEL]),
    "unigram": BYTE_LEVEL,
    "metaspace": pre_tokenizers.Metaspace(prepend_scheme="never"),
    "metaspace of gemma": pre_tokenizers.Split(" ", "merged_with_previous"),
    "gpt2 nfc": BYTE_LEVEL,
    "gpt2 added": BYTE_LEVEL,
}


@cache
def tokenizer(way: str) -> str:
    """Train a tokenizer of 600 tokens that divides text in a way; SentencePiece's kinds have 900."""
    made = Tokenizer(models.BPE())
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    options = {"vocab_size": 600, "show_progress": False}
    trainer = trainers.BpeTrainer(initial_alphabet=alphabet, **options)
    if way == "unigram":
        made.model = models.Unigram()
        trainer = trainers.UnigramTrainer(initial_alphabet=alphabet, **options)
    if way.startswith("metaspace"):
        made.model = models.BPE(byte_fallback=True)
        made.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()])
        byte_tokens = [f"<0x{byte:02X}>" for byte in range(256)]
        trainer = trainers.BpeTrainer(
            special_tokens=byte_tokens,
            **{**options, "vocab_size": 900},
        )
    made.pre_tokenizer = WAYS[way]
    if way == "gpt2 nfc":
        made.normalizer = normalizers.NFC()
    if way == "metaspace of gemma":
        made.normalizer = normalizers.Replace(" ", "▁")
    made.train_from_iterator(
        (PROSE + CODE).splitlines(keepends=True),
        trainer,
    )
    if way == "gpt2 added":
        made.add_tokens([AddedToken(" " * n, normalized=True) for n in (4, 8)])
        made.add_special_tokens(["<|end|>"])
    state = json.loads(made.to_str())
    if way.startswith("metaspace"):
        state["added_tokens"] = []
    made = Tokenizer.from_str(json.dumps(state))
    if way == "metaspace of gemma":
        made.add_tokens([AddedToken("▁▁", normalized=False)])
    return made.to_str()


def ids_of(way: str, text: str) -> list[int]:
    """Return the ids of a whole text, from the library."""
    return Tokenizer.from_str(tokenizer(way)).encode(text, add_special_tokens=False).ids


@cache
def vocabulary_of(way: str) -> Vocabulary:
    return Vocabulary.of_tokenizer(tokenizer(way))


def encoded(vocabulary: Vocabulary, contents: Iterable[bytes]) -> list[int]:
    """Return the tokens of one document that is read in chunks."""
    tokens = []
    for chunk, _ in vocabulary.encode_documents([content] for content in contents):
        tokens += chunk.tolist()
    return tokens


def in_chunks(text: str, size: int) -> list[str]:
    return [text[at : at + size] for at in range(0, len(text), size)]


@pytest.mark.parametrize("name", TEXTS)
@pytest.mark.parametrize("way", WAYS)
def test_ids_are_those_of_the_whole_text(way, name, monkeypatch):
    monkeypatch.setattr(subwords, "PART_CHARACTERS", 6_000)
    monkeypatch.setattr(subwords, "PLACES_CHARACTERS", 2_000)
    text = TEXTS[name]
    if way == "gpt2 added":
        text += "x <|end|> y" * 9
    expected = ids_of(way, text)
    vocabulary = vocabulary_of(way)
    for size in (len(text), 9_973):
        assert encoded(vocabulary, map(str.encode, in_chunks(text, size))) == expected
    assert vocabulary.decode_bytes(np.array(expected)) == text.encode()


PARTS = st.text(max_size=40) | st.sampled_from(["\n\n", "  ", " x", "größer\r\n", "\x1c"])


@given(
    st.lists(PARTS, max_size=12),
    st.integers(1, 9),
)
def test_ids_do_not_depend_on_how_the_text_is_read(parts, size):
    text = "".join(parts)
    chunks = map(str.encode, in_chunks(text, size))
    assert encoded(vocabulary_of("gpt2"), chunks) == ids_of("gpt2", text)


@pytest.mark.parametrize("way", WAYS)
def test_documents_are_encoded_each_for_itself(way):
    documents = ["a\n\n", "", "größer 12  ", "\n\n  x", "y" * 30]
    expected = [ids_of(way, text) for text in documents]
    contents = [text.encode() for text in documents]
    first, *inner, last = contents
    cut = [
        [first[:1]],
        [
            first[1:],
            *inner,
            last[:9],
        ],
        [last[9:]],
    ]
    for chunks in ([contents], cut):
        tokens = []
        begins = []
        for chunk, at in vocabulary_of(way).encode_documents(chunks):
            begins += (at + len(tokens)).tolist()
            tokens += chunk.tolist()
        assert tokens == list(chain.from_iterable(expected))
        assert begins == np.cumsum([len(ids) for ids in expected])[:-1].tolist()


@pytest.mark.parametrize("way", ["cl100k", "metaspace"])
def test_short_documents_take_work_that_grows_with_their_number(way, monkeypatch):
    """For each document, version 0.5.0 summed the lengths of all before it: two million calls here."""
    documents = [f"record {n}\n".encode() for n in range(2_000)]
    vocabulary = vocabulary_of(way)
    lengths = Mock(side_effect=len)
    monkeypatch.setattr(subwords, "len", lengths, raising=False)
    chunks = list(vocabulary.encode_documents([documents]))
    assert sum(len(begins) for _, begins in chunks) == len(documents) - 1
    assert lengths.call_count < 10 * len(documents)


def test_the_white_space_that_divides_is_that_of_the_expression():
    """A character is white space to GPT-2's expression if it joins neither a letter, a digit nor a sign before it."""
    for code in {*range(0x3100), 0x180E, 0xFEFF, 0x1F389}:
        divides = all(len(BYTE_LEVEL.pre_tokenize_str(before + chr(code))) == 2 for before in "a1!")
        assert (len(WORD.findall("a" + chr(code))) == 2) == divides, hex(code)


def test_a_vocabulary_of_before_0_5_is_refused():
    state = vocabulary_of("gpt2").state_dict()
    assert Vocabulary.from_state_dict(state) == vocabulary_of("gpt2")
    del state["by_line"]
    words = r"subwords were cut line by line, as before version 0\.5\.0"
    with pytest.raises(UserError, match=words):
        Vocabulary.from_state_dict(state)


def test_training_counts_the_words_of_the_whole_text():
    text = CODE + PROSE
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = BYTE_LEVEL
    trainer = trainers.BpeTrainer(
        vocab_size=700,
        min_frequency=2,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator([text], trainer)
    found = train_byte_pairs(in_chunks(text, 777), 700)
    assert json.loads(found)["model"] == json.loads(made.to_str())["model"]


def test_dropout_of_training_is_off():
    state = json.loads(tokenizer("gpt2"))
    state["model"]["dropout"] = 0.5
    dropping = Vocabulary.of_tokenizer(json.dumps(state))
    assert dropping.encode(PROSE.encode()).tolist() == ids_of("gpt2", PROSE)


def test_one_unknown_character_is_named_with_its_bytes():
    """By a unigram tokenizer without fallback to bytes."""
    pieces = [
        ("<unk>", 0.0),
        *((character, -2.0) for character in "▁abcdefghijklmnopqrstuvwxyz."),
    ]
    made = Tokenizer(models.Unigram(pieces, unk_id=0))
    made.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never")
    made.decoder = decoders.Metaspace(prepend_scheme="never")
    vocabulary = Vocabulary.of_tokenizer(made.to_str())
    text = "the cat sat on a mat. " * 5_000
    assert vocabulary.decode(vocabulary.encode(text.encode())) == text
    with pytest.raises(UserError, match=r"has no token for '中' \(3 bytes\) of the text"):
        vocabulary.encode((text + "中" + text).encode())


def test_a_long_run_of_letters_is_cut_for_training():
    """Training is quadratic in the length of a word."""
    made = Vocabulary.of_tokenizer(train_byte_pairs(["a" * 20_000], 300))
    assert max(map(len, made.symbols)) <= 1024
