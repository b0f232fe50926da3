"""Commands import no more than they need: a start takes as long as its imports."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.training.small_run import trained

ROOT = Path(__file__).parents[1]
# None of these is needed without training; torch._dynamo, with SymPy, is torch's compiler.
SLOW = ("lightning", "torchmetrics", "torch._dynamo", "sympy", "datasets", "wandb")
COMMANDS = {
    "evaluate": ("checkpoint=BEST",),
    "recl": ("checkpoints=[BEST]", "first_context=8", "step=8", "max_context=16", "n_positions=8", "logger=none"),
    "generate": ("checkpoint=BEST", "prompt=line", "n_tokens=5"),
    "attention": ("checkpoint=BEST", "logger=none"),
    "convert": ("source=BEST", "source_format=txl", "target=out", "target_format=original"),
}
PROGRAM = """
import json, sys
from txl_lightning.cli import main
sys.argv = ["txl", *json.loads(sys.argv[1])]
main()
print("\\n" + json.dumps(sorted(sys.modules)))
"""


def test_the_front_door_imports_what_a_name_needs() -> None:
    """In a fresh process: the package alone nothing, a checkpoint's reader torch, the module Lightning too."""
    code = """if True:
        import sys, txl_lightning
        assert not {"torch", "lightning", "hydra"} & set(sys.modules)
        from txl_lightning import load_trained
        assert "torch" in sys.modules and not {"lightning", "torch._dynamo"} & set(sys.modules)
        from txl_lightning import LanguageModelModule
        assert LanguageModelModule.__module__ == "txl_lightning.training.module"
        assert {"load_trained", "LanguageModelModule"} < set(txl_lightning.__all__)
        """
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, timeout=300)


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_that_does_not_train_imports_nothing_slow(tmp_path: Path, command: str) -> None:
    best = str(trained() / "run/checkpoints/best.ckpt")
    words = [command, *(word.replace("BEST", best) for word in COMMANDS[command]), f"hydra.run.dir={tmp_path}/run"]
    paths = {**os.environ, "PYTHONPATH": str(ROOT)}
    code = [sys.executable, "-c", PROGRAM, json.dumps(words)]
    done = subprocess.run(code, cwd=tmp_path, env=paths, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert set(SLOW).isdisjoint(json.loads(done.stdout.splitlines()[-1]))
