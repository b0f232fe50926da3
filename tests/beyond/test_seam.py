"""A variant is one file, as docs/house.md has it, which nothing imports."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import txl_lightning.beyond
from tests.docs.pages import blocks
from tests.training.small_run import tiny_config
from txl_lightning.errors import OptionError
from txl_lightning.runs.trained import load_trained
from txl_lightning.training.run import train

ROOT = Path(__file__).parents[2]


def test_a_variant_is_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (code,) = (code for code in blocks(ROOT / "docs/house.md", "python") if "ToyConfig" in code)
    (tmp_path / "toy.py").write_text(code)
    monkeypatch.setattr(txl_lightning.beyond, "__path__", [*txl_lightning.beyond.__path__, str(tmp_path)])
    config = tiny_config(tmp_path)
    config.beyond = {"name": "toy", "factor": 0.5}
    train(config, tmp_path / "run")
    model = load_trained(tmp_path / "run/checkpoints/best.ckpt").model
    assert (type(model).__name__, model.config.factor) == ("ToyTransformerXL", 0.5)  # type: ignore[union-attr]
    config.beyond["facto"] = 1
    with pytest.raises(OptionError, match=r"beyond\.facto=1: is no option of beyond=toy, which has factor"):
        train(config, tmp_path / "second")


@pytest.mark.parametrize("importer", ["txl_lightning/model/memory.py", "txl_lightning/cli.py", "experiments/paper.py"])
def test_an_import_of_the_room_fails_in_lint(tmp_path: Path, importer: str) -> None:
    for folder in ("txl_lightning", "experiments", "benchmarks", "sweeps", "hydra_plugins"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__", "results"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    with (tmp_path / importer).open("a") as file:
        file.write("\nimport txl_lightning.beyond.gru_residual\n")
    lint = [str(Path(sys.executable).with_name("lint-imports")), "--no-cache", "--no-logo"]
    result = subprocess.run(lint, cwd=tmp_path, capture_output=True, text=True, env={"PATH": "", "PYTHONPATH": ""})
    assert result.returncode == 1
    assert "txl_lightning.beyond" in result.stdout.split("Broken contracts")[1]
