"""The measurement of docs/extending.md, as it stands there."""

import ast
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from tests.docs.pages import ROOT, blocks
from tests.training.small_run import tiny_config
from txl_lightning.command_line.row import Command
from txl_lightning.training.run import train

FOLDER = "txl_lightning.evaluation.share"


def test_the_measurement_of_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options, command, row = blocks(ROOT / "docs/extending.md", "python")
    package = tmp_path / "share"
    package.mkdir()
    for name, code in {"__init__.py": "", "options.py": options, "command.py": command}.items():
        (package / name).write_text(code.replace(FOLDER, "share"))
    monkeypatch.syspath_prepend(tmp_path)
    train(tiny_config(tmp_path, "trainer.max_steps=2"), tmp_path / "run")
    import share.command
    import share.options

    given = OmegaConf.structured(share.options.ShareOptions)
    given.checkpoint, given.n_tokens = str(tmp_path / "run/checkpoints/best.ckpt"), 100
    call = ast.parse(row).body[0].value  # type: ignore[attr-defined]
    given_row = {word.arg: ast.literal_eval(word.value) for word in call.keywords}
    assert Command(call.args[0].value, **given_row).package == FOLDER
    (tmp_path / "out").mkdir()
    (line,) = share.command.run(OmegaConf.to_object(given), tmp_path / "out")
    assert line.endswith("of tokens have a loss above 3.0 nats")
    assert (tmp_path / "out/share.json").is_file()
