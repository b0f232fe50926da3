"""The code of docs/training.md runs in its order, and its module resumes in a Trainer."""

import shutil
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch

from tests.docs.pages import ROOT, blocks
from tests.training.small_run import trained

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*LeafSpec",
    "ignore:Checkpoint directory .* exists",
    "ignore:The '.*_dataloader' does not have many workers",
)
PAGE = ROOT / "docs/training.md"
OPTIONS: dict[str, Any] = {
    "accelerator": "cpu",
    "enable_checkpointing": False,
    "enable_model_summary": False,
    "enable_progress_bar": False,
    "logger": False,
    "num_sanity_val_steps": 1,
}


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return the names that the code of the page defines."""
    directory = tmp_path_factory.mktemp("page")
    shutil.copytree(trained() / "run", directory / "runs/first")
    defined: dict[str, Any] = {}
    with pytest.MonkeyPatch.context() as patch, torch.random.fork_rng():
        patch.chdir(directory)
        for code in blocks(PAGE, "python"):
            exec(compile(code, PAGE.name, "exec"), defined)
    return defined


def test_the_module_of_the_page_resumes(names: dict[str, Any], tmp_path: Path) -> None:
    module = names["StatefulModule"]()
    loader = names["loader"]
    trainer = L.Trainer(max_steps=6, **OPTIONS)  # two epochs of three segments
    trainer.fit(module, loader, loader)
    assert module.memory.filled == 32
    assert trainer.callback_metrics["val/nll"] > 0
    checkpoint = tmp_path / "module.ckpt"
    trainer.save_checkpoint(checkpoint)

    resumed = names["StatefulModule"]()
    resumed.on_load_checkpoint(torch.load(checkpoint, weights_only=True))
    assert torch.equal(resumed.memory.states, module.memory.states)

    trainer = L.Trainer(max_steps=7, **OPTIONS)
    trainer.fit(resumed, loader, loader, ckpt_path=checkpoint)
    assert trainer.global_step == 7
    assert not torch.equal(resumed.memory.states, module.memory.states)
