"""The encoding of the README and the measurement of docs/house.md, as they stand there."""

import ast
from pathlib import Path

import pytest
import torch
from hydra import compose, initialize_config_dir
from hydra.core.config_store import ConfigStore
from omegaconf import OmegaConf

from tests.docs.pages import ROOT, blocks
from tests.training.small_run import tiny_config
from txl_lightning import TransformerXL, TransformerXLConfig
from txl_lightning.command_line import Command
from txl_lightning.config.composition import register_command
from txl_lightning.config.encoding_kinds import KINDS
from txl_lightning.config.schemas import CONF
from txl_lightning.model.encodings import ENCODINGS
from txl_lightning.training.run import train

MODULE = "txl_lightning.measure.share"


def test_the_measurement_of_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, options, command, row = blocks(ROOT / "docs/house.md", "python")
    (tmp_path / "share.py").write_text(f"{options}\n{command}")
    monkeypatch.syspath_prepend(tmp_path)
    train(tiny_config(tmp_path, "trainer.max_steps=2"), tmp_path / "run")
    import share

    # Every job of a multirun gets the contents of the store, and a job's process cannot import this module.
    monkeypatch.setattr(ConfigStore.instance(), "repo", dict(ConfigStore.instance().repo))
    register_command("share", share.ShareOptions)
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf/share.yaml").write_text(blocks(ROOT / "docs/house.md", "yaml")[-1])
    words = [f"checkpoint={tmp_path}/run/checkpoints/best.ckpt", "n_tokens=100", f"hydra.searchpath=[file://{CONF}]"]
    with initialize_config_dir(str(tmp_path / "conf"), version_base="1.3"):
        given = compose("share", overrides=words)
    call = ast.parse(row).body[0].value  # type: ignore[attr-defined]
    given_row = {word.arg: ast.literal_eval(word.value) for word in call.keywords}
    assert Command(call.args[0].value, **given_row).module == MODULE
    (tmp_path / "out").mkdir()
    (line,) = share.run(OmegaConf.to_object(given), tmp_path / "out")
    assert line.endswith("of tokens have a loss above 3.0 nats")
    assert (tmp_path / "out/share.json").is_file()


def test_the_encoding_of_the_readme_subtracts_the_logarithm_of_the_distance() -> None:
    (code,) = (code for code in blocks(ROOT / "README.md", "python") if "@register_encoding" in code)
    try:
        exec(compile(code, "README.md", "exec"), {})
        model = TransformerXL(TransformerXLConfig(7, n_layer=2, d_model=8, n_head=2, d_head=4, encoding="logarithm"))
        (of_first, _) = model.encoding.positions(3, -1, torch.zeros(()))
        assert torch.allclose(of_first.bias_HS.exp(), torch.tensor([1 / 4, 1 / 3, 1 / 2, 1]).expand(2, -1))
        assert model.score(torch.zeros(1, 3).long(), torch.zeros(1, 3).long())[0].isfinite().all()
    finally:
        KINDS.pop("logarithm", None)
        ENCODINGS.pop("logarithm", None)
