"""txl convert: between the three formats, through files."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf
from safetensors.torch import load_file

from tests.training.small_run import tiny_config
from txl_lightning.config.composition import register_schemas
from txl_lightning.config.schemas import CONF
from txl_lightning.errors import OptionError, UserError
from txl_lightning.model.checkpoints.formats import CheckpointError
from txl_lightning.runs.convert.command import convert
from txl_lightning.runs.convert.options import ConvertOptions
from txl_lightning.runs.trained import load_trained
from txl_lightning.training.run import train

register_schemas()


def options(directory: Path, *overrides: str) -> ConvertOptions:
    data = ["data=file", f"data.path={directory / 'text.txt'}", f"data.cache_dir={directory / 'cache'}"]
    with initialize_config_dir(str(CONF), version_base="1.3"):
        return OmegaConf.to_object(compose("convert", overrides=["profile=smoke", *data, *overrides]))


def to(directory: Path, source: object, source_format: str, target: str, target_format: str, *more: str) -> Path:
    names = [f"source={source}", f"source_format={source_format}"]
    return convert(options(directory, *names, f"target={directory / target}", f"target_format={target_format}", *more))


@pytest.fixture
def run(tmp_path: Path) -> Path:
    train(tiny_config(tmp_path, "memory.start=zeros", "model.untie_biases=true"), tmp_path / "run")
    return tmp_path / "run/checkpoints/best.ckpt"


@pytest.mark.parametrize("family", ["original", "huggingface"])
def test_there_and_back_again_is_the_same_model(tmp_path: Path, run: Path, family: str) -> None:
    there = to(tmp_path, run, "txl", "there", family)
    assert {path.name for path in there.iterdir()} == {"model.safetensors", "config.json"}
    back = to(tmp_path, there, family, "back.ckpt", "txl")
    first, second = load_trained(run), load_trained(back)
    assert first.model.config == second.model.config
    assert first.vocabulary == second.vocabulary
    state = second.model.state_dict()
    assert all(torch.equal(tensor, state[name]) for name, tensor in first.model.state_dict().items())


def test_a_converted_model_is_fine_tuned_at_once(tmp_path: Path, run: Path) -> None:
    back = to(tmp_path, to(tmp_path, run, "txl", "there", "huggingface"), "huggingface", "back.ckpt", "txl")
    same = ("memory.start=zeros", "model.untie_biases=true", "trainer.max_steps=1", "optimizer.lr=1e-9")
    tuned = train(tiny_config(tmp_path, *same, f"initial_weights={back}"), tmp_path / "tuned")
    before = json.loads((tmp_path / "run/metrics.json").read_text())
    assert tuned["val/nll"] == pytest.approx(before["val/nll"], abs=1e-4)
    with pytest.raises(OptionError, match=r"initial_weights=.*is of another model"):
        train(tiny_config(tmp_path, *same, "model.n_layer=1", f"initial_weights={back}"), tmp_path / "wrong")


@pytest.mark.parametrize("suffix", [".bin", ".pt"])
def test_torch_files_of_tensors_are_read(tmp_path: Path, run: Path, suffix: str) -> None:
    there = to(tmp_path, run, "txl", "there", "original")
    torch.save(load_file(there / "model.safetensors"), there / f"weights{suffix}")
    back = to(tmp_path, there / f"weights{suffix}", "original", "back.ckpt", "txl")
    assert load_trained(back).model.config.untie_biases


class Code:
    """What a malicious file would hold."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return (exec, ("raise SystemExit('this file runs code')",))


def test_a_file_with_code_is_refused_and_not_run(tmp_path: Path, run: Path) -> None:
    torch.save({"weights": Code()}, tmp_path / "evil.pt")
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(OptionError, match=r"evil.pt: holds no weights \(or code, which is not run\)"):
        to(tmp_path, tmp_path / "evil.pt", "original", "x.ckpt", "txl")


def test_bad_sources_and_targets_are_named(tmp_path: Path, run: Path) -> None:
    there = to(tmp_path, run, "txl", "there", "original")
    with pytest.raises(OptionError, match=r"target=.*there: exists already"):
        to(tmp_path, run, "txl", "there", "original")
    with pytest.raises(OptionError, match="source_format=onnx: must be one of original, huggingface, txl"):
        to(tmp_path, there, "onnx", "y", "txl")
    with pytest.raises(OptionError, match=r"source=.*nowhere: no such file"):
        to(tmp_path, tmp_path / "nowhere", "original", "y", "txl")
    with pytest.raises(OptionError, match=r"source=.*cache: in it none of"):
        to(tmp_path, tmp_path / "cache", "original", "y", "txl")
    with pytest.raises(CheckpointError, match="not a checkpoint of the Hugging Face Transformer-XL"):
        to(tmp_path, there, "huggingface", "y", "txl")
    with pytest.raises(UserError, match=r"the model has 256 tokens, .* choose the corpus it was trained on"):
        to(tmp_path, there, "original", "y", "txl", "data.level=char")
    (there / "config.json").write_text("not JSON")
    with pytest.raises(OptionError, match=r"its config.json is no JSON"):
        to(tmp_path, there, "original", "y", "txl")
    assert not (tmp_path / "y").exists()


def test_what_the_other_format_cannot_hold_is_named(tmp_path: Path) -> None:
    train(tiny_config(tmp_path, "encoding=shaw"), tmp_path / "run")
    source = tmp_path / "run/checkpoints/best.ckpt"
    with pytest.raises(CheckpointError, match="encoding=shaw"):
        to(tmp_path, source, "txl", "there", "huggingface")
    back = to(tmp_path, to(tmp_path, source, "txl", "there", "original"), "original", "back.ckpt", "txl")
    config = load_trained(back).model.config
    assert replace(config, dropout=0.0) == replace(load_trained(source).model.config, dropout=0.0)
