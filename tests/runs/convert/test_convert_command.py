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
from txl_lightning.config.composition import register_command, register_schemas
from txl_lightning.config.schemas import CONF
from txl_lightning.errors import OptionError, UserError
from txl_lightning.model.checkpoints.formats import CheckpointError
from txl_lightning.runs.convert.command import run
from txl_lightning.runs.convert.options import ConvertOptions
from txl_lightning.runs.trained import load_trained
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
    register_schemas()
    register_command("convert", ConvertOptions)
    with initialize_config_dir(str(CONF), version_base="1.3"):
        return compose("convert", overrides=["profile=smoke", "data=file"])


class Convert:
    """`txl convert` with the text of a folder."""

    def __init__(self, place: Path, directory: Path) -> None:
        self.place, self.directory = place, directory

    def __call__(self, source: object, source_format: str, target: str, target_format: str, *more: str) -> Path:
        data = [f"data.path={self.place / 'text.txt'}", f"data.cache_dir={self.place / 'cache'}"]
        formats = [f"source_format={source_format}", f"target_format={target_format}"]
        paths = [f"source={source}", f"target={self.directory / target}"]
        words = OmegaConf.from_dotlist([*data, *formats, *paths, *more])
        options = OmegaConf.to_object(OmegaConf.merge(composed(), words))
        assert isinstance(options, ConvertOptions)
        (line,) = run(options, self.directory)
        return Path(line)


@pytest.fixture
def convert(place: Path, tmp_path: Path) -> Convert:
    return Convert(place, tmp_path)


@pytest.mark.parametrize("family", ["original", "huggingface"])
def test_there_and_back_again_is_the_same_model(convert: Convert, source: Path, family: str) -> None:
    there = convert(source, "txl", "there", family)
    assert {path.name for path in there.iterdir()} == {"model.safetensors", "config.json"}
    back = convert(there, family, "back.ckpt", "txl")
    first, second = load_trained(source), load_trained(back)
    assert first.model.config == second.model.config
    assert first.vocabulary == second.vocabulary
    state = second.model.state_dict()
    assert all(torch.equal(tensor, state[name]) for name, tensor in first.model.state_dict().items())


def test_a_converted_model_is_fine_tuned_at_once(convert: Convert, place: Path, source: Path, tmp_path: Path) -> None:
    back = convert(convert(source, "txl", "there", "huggingface"), "huggingface", "back.ckpt", "txl")
    same = (*TRAINED, "trainer.max_steps=1", "optimizer.lr=1e-9")
    tuned = train(tiny_config(place, *same, f"initial_weights={back}"), tmp_path / "tuned")
    before = json.loads((place / "run/metrics.json").read_text())
    assert tuned["val/nll"] == pytest.approx(before["val/nll"], abs=1e-4)
    with pytest.raises(OptionError, match=r"initial_weights=.*is of another model"):
        train(tiny_config(place, *same, "model.n_layer=1", f"initial_weights={back}"), tmp_path / "wrong")


@pytest.mark.parametrize("suffix", [".bin", ".pt"])
def test_torch_files_of_tensors_are_read(convert: Convert, source: Path, suffix: str) -> None:
    there = convert(source, "txl", "there", "original")
    torch.save(load_file(there / "model.safetensors"), there / f"weights{suffix}")
    back = convert(there / f"weights{suffix}", "original", "back.ckpt", "txl")
    assert load_trained(back).model.config.untie_biases


class Code:
    """Object of a malicious file: unpickling it runs code."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return (exec, ("raise SystemExit('this file runs code')",))


def test_a_file_with_code_is_refused_and_not_run(convert: Convert, tmp_path: Path) -> None:
    torch.save({"weights": Code()}, tmp_path / "evil.pt")
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(OptionError, match=r"evil.pt: must hold tensors only; code in a file is never run"):
        convert(tmp_path / "evil.pt", "original", "x.ckpt", "txl")


def test_bad_sources_and_targets_are_named(convert: Convert, place: Path, source: Path, tmp_path: Path) -> None:
    there = convert(source, "txl", "there", "original")
    with pytest.raises(OptionError, match=r"target=.*there: must not exist yet"):
        convert(source, "txl", "there", "original")
    with pytest.raises(OptionError, match="source_format=onnx: must be one of original, huggingface, txl"):
        convert(there, "onnx", "y", "txl")
    with pytest.raises(OptionError, match=r"source=.*nowhere: no such file"):
        convert(tmp_path / "nowhere", "original", "y", "txl")
    with pytest.raises(OptionError, match=r"source=.*cache: has none of"):
        convert(place / "cache", "original", "y", "txl")
    with pytest.raises(CheckpointError, match="not a checkpoint of the Hugging Face Transformer-XL"):
        convert(there, "huggingface", "y", "txl")
    with pytest.raises(UserError, match=r"the vocabulary of the model has 256 tokens, .* choose the corpus the model"):
        convert(there, "original", "y", "txl", "data.level=char")
    (there / "config.json").write_text("not JSON")
    with pytest.raises(OptionError, match=r"its config.json must be JSON"):
        convert(there, "original", "y", "txl")
    assert not (tmp_path / "y").exists()


def test_parts_that_the_other_format_lacks_are_named(convert: Convert, place: Path, tmp_path: Path) -> None:
    train(tiny_config(place, "encoding=shaw", "trainer.max_steps=1"), tmp_path / "run")
    source = tmp_path / "run/checkpoints/best.ckpt"
    with pytest.raises(CheckpointError, match="encoding=shaw"):
        convert(source, "txl", "there", "huggingface")
    back = convert(convert(source, "txl", "there", "original"), "original", "back.ckpt", "txl")
    config = load_trained(back).model.config
    assert replace(config, dropout=0.0) == replace(load_trained(source).model.config, dropout=0.0)


@pytest.mark.parametrize(
    "overrides",
    [("memory=compressive", "memory.rate=2"), ("encoding=rope", "model.d_head=8", "encoding.interpolation=2")],
    ids=["compressive", "interpolated"],
)
def test_nothing_of_a_run_is_lost_but_given_lengths_replace_those_of_its_evaluation(
    convert: Convert, place: Path, tmp_path: Path, overrides: tuple[str, ...]
) -> None:
    lengths = ("evaluation.mem_len=3", "evaluation.segment_len=4")
    train(tiny_config(place, *overrides, *lengths, "trainer.max_steps=1"), tmp_path / "run")
    source = tmp_path / "run/checkpoints/best.ckpt"
    first, copied = load_trained(source), load_trained(convert(source, "txl", "copy.ckpt", "txl"))
    assert copied.model.config == first.model.config
    assert copied.config.evaluation == first.config.evaluation
    longer = load_trained(convert(source, "txl", "longer.ckpt", "txl", "mem_len=5")).config.evaluation
    assert (longer.mem_len, longer.segment_len) == (None, 4)


def test_a_checkpoint_keeps_its_own_vocabulary_and_corpus(convert: Convert, source: Path, place: Path) -> None:
    """Whatever `data=` says, which has the same number of tokens here."""
    lengths = ("mem_len=5", "clamp_len=7")
    other = ("data.level=bpe", "data.vocab_size=256", "evaluation.clamp_len=3", *lengths)
    first, copied = load_trained(source), load_trained(convert(source, "txl", "copy.ckpt", "txl", *other))
    assert copied.vocabulary == first.vocabulary
    assert copied.vocabulary_given == first.vocabulary_given
    assert copied.config.data == first.config.data
    assert (copied.model.config.mem_len, copied.model.config.clamp_len) == (5, 7)
    assert copied.config.evaluation == first.config.evaluation
    with pytest.raises(OptionError, match="vocabulary=corpus: must be null: a checkpoint of source_format=txl keeps"):
        convert(source, "txl", "other.ckpt", "txl", "vocabulary=corpus")
