"""Commands import no more than they need: a start takes as long as its imports."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import txl_lightning
from tests.alone import printed
from tests.training.small_run import trained

# None of these is needed without training; torch._dynamo, with SymPy, is torch's compiler.
SLOW = ("lightning", "torchmetrics", "torch._dynamo", "sympy", "datasets", "wandb")
COMMANDS = {
    "evaluate": ("checkpoint=BEST",),
    "recl": (
        "checkpoints=[BEST]",
        "first_context=8",
        "step=8",
        "max_context=16",
        "n_positions=8",
        "logger=none",
    ),
    "generate": ("checkpoint=BEST", "prompt=line", "n_tokens=5"),
    "attention": ("checkpoint=BEST", "logger=none"),
    "convert": ("source=BEST", "source_format=txl", "target=out", "target_format=original"),
}
PROGRAM = """
import json, sys
from txl_lightning.cli import main
for words in json.loads(sys.argv[1]):
    sys.argv = ["txl", *words]
    main()
    print("\\n" + json.dumps([words[0], sorted(sys.modules)]))
"""


ABSENT = {  # after an import in a fresh process
    "import txl_lightning": {"torch", "lightning", "hydra"},
    "import txl_lightning.cli": {"torch", "hydra", "omegaconf", "numpy"},
    "import txl_lightning.application": {"torch", "lightning", "matplotlib", "wandb", "optuna"},
    "from txl_lightning import load_trained": {"lightning", "torch._dynamo"},
}


@pytest.mark.parametrize("line", ABSENT)
def test_an_import_brings_no_more_than_it_needs(line: str) -> None:
    printed("-c", f"import sys\n{line}\nassert not {ABSENT[line]} & set(sys.modules)")


def test_the_front_door_has_the_names_of_the_rooms() -> None:
    assert txl_lightning.LanguageModelModule.__module__ == "txl_lightning.training.module"
    assert {"load_trained", "LanguageModelModule"} < set(txl_lightning.__all__)


@pytest.mark.slow
def test_commands_that_do_not_train_import_nothing_slow(tmp_path: Path) -> None:
    """Run them one after the other in one process, whose modules are listed after each."""
    best = str(trained() / "run/checkpoints/best.ckpt")
    given = {
        command: [word.replace("BEST", best) for word in words]
        for command, words in COMMANDS.items()
    }
    lines = [[command, *words, f"hydra.run.dir={command}"] for command, words in given.items()]
    said = printed("-c", PROGRAM, json.dumps(lines), directory=tmp_path).splitlines()
    found = [json.loads(line) for line in said if line.startswith('["')]
    assert [(command, {*SLOW} & {*modules}) for command, modules in found] == [
        (command, set()) for command in COMMANDS
    ]
