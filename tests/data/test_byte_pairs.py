"""Byte-level BPE: tokens of any text, trained on the training split."""

import json
from functools import cache

import numpy as np
import pytest

from tests.data.helpers import corpus_of, files
from tests.data.test_subwords import tokenizer
from txl_lightning.data.subwords import train_byte_pairs
from txl_lightning.data.vocabulary import Vocabulary
from txl_lightning.errors import OptionError, UserError

TEXT = "".join(f"line {i}: the square of {i} is {i * i}, größer als {i}\n" for i in range(300))


@cache
def trained(vocab_size: int = 400) -> Vocabulary:
    return Vocabulary.of_tokenizer(train_byte_pairs([TEXT], vocab_size))


def changed(**values: object) -> str:
    return json.dumps({**json.loads(trained().tokenizer), **values})


def test_merges_come_from_the_training_split_only(tmp_path):
    content = TEXT.encode()
    kept = int(len(content) * 0.96)
    doctored = content[:kept] + (b"zygote " * len(content))[: len(content) - kept]
    corpora = []
    for path in files(tmp_path, {"honest.txt": content, "other.txt": doctored}):
        corpora.append(corpus_of(path, tmp_path, level="bpe", vocab_size=300))
    honest, other = corpora
    assert honest.checksum != other.checksum
    assert honest.vocabulary == other.vocabulary
    assert np.array_equal(honest.splits["train"], other.splits["train"])
    assert not np.array_equal(honest.splits["test"], other.splits["test"])


OTHER_TOKENIZERS = [
    ("spm.model", r"AutoTokenizer\.from_pretrained\(FOLDER\)\.save_pretrained\(FOLDER\)"),
    ("cl100k.tiktoken", r"TikTokenConverter\(FILE\)\.converted\(\)\.save\('tokenizer\.json'\)"),
]


@pytest.mark.parametrize(("name", "conversion"), OTHER_TOKENIZERS)
def test_a_tokenizer_of_another_format_is_refused_with_the_line_that_converts_it(
    tmp_path, name, conversion
):
    path, tokenizer = files(
        tmp_path,
        {"text.txt": TEXT, name: b"\x0a\xff"},
    )
    with pytest.raises(
        OptionError,
        match=f"{name}: must be a tokenizer.json: {conversion}",
    ):
        corpus_of(path, tmp_path, level="bpe", tokenizer=tokenizer)


WITH_A_SPACE = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True}
AT_THE_START = {
    "type": "Metaspace",
    "replacement": "▁",
    "prepend_scheme": "first",
    "split": True,
}
LOSSY = [
    (lambda: "{}", "is not a byte-level tokenizer.json"),
    (lambda: changed(pre_tokenizer=WITH_A_SPACE), "changes the text"),
    (
        lambda: changed(normalizer={"type": "Lowercase"}),
        r"no token for 'E' \(1 bytes\) of the text",
    ),
    (
        lambda: json.dumps(json.loads(tokenizer("metaspace")) | {"pre_tokenizer": AT_THE_START}),
        "and add no spaces",
    ),
]


@pytest.mark.parametrize(("change", "words"), LOSSY)
def test_a_tokenizer_that_loses_text_is_refused(change, words):
    with pytest.raises(UserError, match=words):
        Vocabulary.of_tokenizer(change()).encode(b"Some TEXT")
