"""txl convert: between the three formats, through files."""

import json
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig, OmegaConf
from safetensors.torch import load_file

from tests.training.small_run import tiny_config
from txl_lightning.application import register
from txl_lightning.config.schemas import CONF
from txl_lightning.data.vocabulary import Vocabulary
from txl_lightning.errors import CheckpointError, OptionError, UserError
from txl_lightning.evaluation import convert as command
from txl_lightning.evaluation.trained import load_trained
from txl_lightning.registry import COMMANDS
from txl_lightning.training.run import train

TRAINED = ("memory.start=zeros", "model.untie_biases=true", "trainer.max_steps=2")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `text.txt` and a run on it, `run/checkpoints/best.ckpt`."""
    directory = tmp_path_factory.mktemp("convert")
    train(tiny_config(directory, *TRAINED), directory / "run")
    return directory


@pytest.fixture
def source(place: Path) -> Path:
    return place / "run/checkpoints/best.ckpt"


@cache
def composed() -> DictConfig:
    register(COMMANDS["convert"])
    with initialize_config_dir(str(CONF), version_base="1.3"):
        return compose("convert", overrides=["profile=smoke", "data=file", "data.level=byte"])


class Convert:
    """`txl convert` with the text of a folder."""

    def __init__(self, place: Path, directory: Path) -> None:
        self.place = place
        self.directory = directory

    def __call__(
        self, source: object, source_format: str, target: str, target_format: str, *more: str
    ) -> Path:
        return convert_with(
            f"data.path={self.place / 'text.txt'}",
            f"data.cache_dir={self.place / 'cache'}",
            *more,
            f"source={source}",
            f"source_format={source_format}",
            f"target={self.directory / target}",
            f"target_format={target_format}",
        )


def convert_with(*words: str) -> Path:
    """Run `txl convert` with options, and return the target that it names."""
    options = OmegaConf.to_object(OmegaConf.merge(composed(), OmegaConf.from_dotlist(list(words))))
    (line,) = command.run(options, Path())
    return Path(line)


@pytest.fixture
def convert(place: Path, tmp_path: Path) -> Convert:
    return Convert(place, tmp_path)


@pytest.mark.parametrize("family", ["original", "huggingface"])
def test_there_and_back_again_is_the_same_model(convert, source, family):
    there = convert(source, "txl", "there", family)
    assert {path.name for path in there.iterdir()} == {"model.safetensors", "config.json"}
    first = load_trained(source)
    second = load_trained(convert(there, family, "back.ckpt", "txl", "vocabulary=corpus"))
    assert first.model.config == second.model.config
    assert first.vocabulary == second.vocabulary
    states = [trained.model.state_dict() for trained in (first, second)]
    torch.testing.assert_close(*states, rtol=0, atol=0)


def test_a_converted_model_is_fine_tuned_at_once(convert, place, source, tmp_path):
    there = convert(source, "txl", "there", "huggingface")
    back = convert(there, "huggingface", "back.ckpt", "txl", "vocabulary=corpus")
    same = (*TRAINED, "trainer.max_steps=1", "optimizer.lr=1e-9")
    tuned = train(
        tiny_config(place, *same, f"initial_weights={back}"),
        tmp_path / "tuned",
    )
    before = json.loads((place / "run/metrics.json").read_text())
    assert tuned["val/nll"] == pytest.approx(before["val/nll"], abs=1e-4)


class Code:
    """Object of a malicious file: unpickling it runs code."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return (exec, ("raise SystemExit('this file runs code')",))


def test_torch_files_are_read_and_one_with_code_is_refused(convert, source):
    there = convert(source, "txl", "there", "original")
    torch.save(load_file(there / "model.safetensors"), there / "weights.bin")
    back = convert(there / "weights.bin", "original", "back.ckpt", "txl")
    assert load_trained(back).model.config.untie_biases
    torch.save({"weights": Code()}, there / "evil.pt")
    words = r"evil.pt: cannot be read: .*; code in a file is never run"
    with pytest.raises(OptionError, match=words):
        convert(there / "evil.pt", "original", "x.ckpt", "txl")


def test_bad_sources_and_targets_are_named(convert, source, tmp_path):
    there = convert(source, "txl", "there", "original")
    to_char = ("original", "y", "txl", "data.level=char")
    for message, *words in (
        (r"target=.*there: must not exist yet", source, "txl", "there", "original"),
        (r"source=.*nowhere: no such file", tmp_path / "nowhere", "original", "y", "txl"),
        (r"not a checkpoint of the Hugging Face Transformer-XL", there, "huggingface", "y", "txl"),
        (r"model has 256 tokens, .* or its corpus with data=", there, *to_char),
    ):
        with pytest.raises(UserError, match=message):
            convert(*words)
    for text in ("not JSON", "[" * 100_000):
        (there / "config.json").write_text(text)
        with pytest.raises(UserError, match=r"config.json: cannot be used"):
            convert(there, "original", "y", "txl")
    assert not (tmp_path / "y").exists()


def test_parts_that_the_other_format_lacks_are_named(convert, place, tmp_path):
    train(tiny_config(place, "encoding=shaw", "trainer.max_steps=1"), tmp_path / "run")
    source = tmp_path / "run/checkpoints/best.ckpt"
    with pytest.raises(CheckpointError, match="encoding=shaw"):
        convert(source, "txl", "there", "huggingface")
    back = convert(convert(source, "txl", "there", "original"), "original", "back.ckpt", "txl")
    config = load_trained(back).model.config
    assert replace(config, dropout=0.0) == replace(load_trained(source).model.config, dropout=0.0)


@pytest.mark.parametrize(
    ("level", "symbols"),
    [
        ("char", ("\n", " ", "a", "b", "é", "_", "7")),
        ("byte", ("\n", " ", "a", "\xe9", "7")),
        ("word", ("<eos>", "the", "b", "12")),
    ],
)
def test_symbols_survive_huggingfaces_layout(tmp_path, level, symbols):
    """A line break is a symbol like any other: symbols were once joined by line breaks."""
    vocabulary = Vocabulary(level, symbols)
    command.write_vocabulary(vocabulary, tmp_path)
    assert command.read_vocabulary(tmp_path / "vocab.json", level) == vocabulary
