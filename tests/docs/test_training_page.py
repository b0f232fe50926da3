"""The code of docs/training.md, in its order, and its module in a trainer that stops and resumes."""

import shutil
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch

from tests.docs.pages import ROOT, blocks
from tests.training.small_run import trained
from txl_lightning import CachedTransformerXL

PAGE = ROOT / "docs/training.md"


def check_beam_search(names: dict[str, Any]) -> None:
    """As many beams as there are tokens find the likeliest of all pairs."""
    model, prompts = names["model"].double(), names["streams"][:2, :9]
    found = names["beam_search"](CachedTransformerXL(model), prompts, 2, 256)
    with torch.no_grad():
        for prompt, pair in zip(prompts, found, strict=True):
            rows = torch.cat([prompt.expand(256, -1), torch.arange(256)[:, None]], dim=1)
            log_p = model.log_probabilities(model(rows)[0])[:, -2:]
            of_pairs = log_p[0, 0][:, None] + log_p[:, 1]
            assert of_pairs[tuple(pair)] == of_pairs.max()


@pytest.mark.filterwarnings("ignore:.*LeafSpec", "ignore:The '.*_dataloader' does not have many workers")
def test_the_code_of_the_page_runs_and_its_module_resumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(trained() / "run", tmp_path / "runs/first")
    names: dict[str, Any] = {}
    with torch.random.fork_rng():
        for code in blocks(PAGE, "python"):
            exec(compile(code, PAGE.name, "exec"), names)
        options: dict[str, Any] = {"accelerator": "cpu", "logger": False, "enable_progress_bar": False}
        options |= {"enable_model_summary": False, "enable_checkpointing": False, "num_sanity_val_steps": 1}
        check_beam_search(names)
        module, loader = names["StatefulModule"](), names["loader"]
        trainer = L.Trainer(max_steps=6, **options)  # two epochs of three segments
        trainer.fit(module, loader, loader)
        assert module.memory.filled == 32
        assert trainer.callback_metrics["val/nll"] > 0
        trainer.save_checkpoint("module.ckpt")
        resumed = names["StatefulModule"]()
        resumed.on_load_checkpoint(torch.load("module.ckpt", weights_only=True))
        assert torch.equal(resumed.memory.states, module.memory.states)
        again = L.Trainer(max_steps=7, **options)
        again.fit(resumed, loader, loader, ckpt_path="module.ckpt")
        assert again.global_step == 7
        assert not torch.equal(resumed.memory.states, module.memory.states)
