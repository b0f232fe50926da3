"""txl convert source_format=tensorflow: checkpoint, flags and vocabulary from the folder; evaluation of the result."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.checkpoints.convert.test_convert_command import Convert
from tests.data.helpers import files
from tests.model.test_tensorflow import REFERENCES
from tests.training.small_run import evaluated
from txl_lightning.errors import OptionError, UserError
from txl_lightning.evaluation.convert import read_vocabulary
from txl_lightning.evaluation.trained import load_trained
from txl_lightning.model.checkpoints import from_tensorflow

REFERENCE = next(path for path in REFERENCES if path.name == "tensorflow_words")
V = 60
LENGTHS = ("mem_len=9", "same_length=true")


def words(n_tokens: int) -> str:
    """Return a vocabulary of `<eos>`, `<unk>`, w2, w3 and so on."""
    return "\n".join(["<eos>", "<unk>", *(f"w{i}" for i in range(2, n_tokens))]) + "\n"


@pytest.fixture
def convert(tmp_path: Path) -> Convert:
    """`txl convert` with a text of words w2 … w16 by level=word."""
    lines = np.random.default_rng(0).integers(2, 17, (300, 9))
    (tmp_path / "text.txt").write_text(
        "".join(" ".join(f"w{i}" for i in line) + "\n" for line in lines)
    )
    return Convert(tmp_path, tmp_path)


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """A folder like those of the published models: `model/` with a checkpoint, `data/` with its words."""
    folder = tmp_path / "published"
    files(folder, {"data/vocab": words(V)})
    shutil.copytree(
        REFERENCE,
        folder / "model",
        ignore=shutil.ignore_patterns("config.json"),
    )
    return folder


TO_TXL = ("tensorflow", "a.ckpt", "txl", "data.level=word")


@pytest.mark.parametrize("reference", REFERENCES, ids=lambda path: path.name)
def test_evaluation_of_the_references(convert, tmp_path, reference):
    source = tmp_path / "source"
    shutil.copytree(reference, source)
    flags = json.loads((reference / "config.json").read_text())
    (source / "vocab").write_text(words(flags["n_token"]))
    target = convert(
        source,
        *TO_TXL,
        f"vocabulary={source / 'vocab'}",
    )
    found = load_trained(target).model.state_dict()
    direct = from_tensorflow(dict(np.load(reference / "weights.npz")), flags).state_dict()
    torch.testing.assert_close(found, direct, rtol=0, atol=0)
    settings = evaluated(target, tmp_path, splits=["test"], max_segments=4)["evaluation"]
    for name in ("mem_len", "same_length", "clamp_len"):
        assert settings[name] == flags[name]


def test_one_billion_word_has_marks_at_both_ends_as_in_the_tensorflow_code(convert, small):
    vocabulary = small / "data/vocab"
    more = (f"vocabulary={vocabulary}", *LENGTHS)
    published = convert(small, *TO_TXL, "data.name=lm1b", *more)
    assert load_trained(published).config.data.sentence_marks == "both"
    vocabulary.write_text(vocabulary.read_text().replace("<eos>", "<S>").replace("<unk>", "<UNK>"))
    published.unlink()
    other_text = load_trained(convert(small, *TO_TXL, *more))
    assert (other_text.config.data.name, other_text.config.data.sentence_marks) == ("file", "both")


def test_lengths_of_the_options_replace_the_flags(convert, small):
    flags = {"mem_len": 5, "same_length": True, "clamp_len": 3}
    (small / "model/config.json").write_text(json.dumps(flags))
    more = (f"vocabulary={small / 'data/vocab'}", "mem_len=7", "clamp_len=-1")
    config = load_trained(convert(small, *TO_TXL, *more)).model.config
    assert (config.mem_len, config.same_length, config.clamp_len) == (7, True, -1)
    assert (config.extra_key, config.memory_start) == (True, "zeros")


def test_errors_of_a_folder_are_one_clear_line(convert, small, tmp_path):
    def refuse(source, message, *options):
        with pytest.raises(UserError, match=message) as caught:
            convert(source, "tensorflow", "y.ckpt", "txl", "data.level=word", *options)
        assert "\n" not in str(caught.value)
        assert not (tmp_path / "y.ckpt").exists()

    files(tmp_path, {"two/a.index": "", "two/b.index": ""})
    refuse(small, r"mem_len=None: must be given, since there is no config.json")
    for place, n in (("nowhere", 0), ("published/data", 0), ("two", 2)):
        words = f"source=.*: must be a checkpoint of TensorFlow .*; {n} found"
        refuse(tmp_path / place, words, *LENGTHS)


def test_symbols_as_the_papers_code_prepares_them(tmp_path):
    path = tmp_path / "vocab"
    for level, text, symbols in (
        ("byte", "32\n101\n10\n255\n", (" ", "e", "\n", "\xff")),
        ("char", "_\ne\nt\n", (" ", "e", "t")),
        ("char", " \n_\n<unk>\n", (" ", "_", "<unk>")),
        ("word", "<S> 10\n<UNK>\t3\n\nthe\nthe 2\na\u00a0b\n", ("<S>", "<UNK>", "the", "a\u00a0b")),
    ):
        path.write_text(text)
        assert read_vocabulary(path, level).symbols == symbols
    for level, symbol in (("byte", "256"), ("byte", "1_0"), ("byte", "the"), ("char", "the")):
        path.write_text(f"1\n{symbol}\n")
        with pytest.raises(OptionError, match=f"symbol 1: '{symbol}' is not a {level}"):
            read_vocabulary(path, level)
