"""How many files of the package a training passes through before its first step."""

import json
from pathlib import Path

import pytest

from tests.alone import printed

PROGRAM = """
import json, os, sys
from txl_lightning import cli
import txl_lightning.training.module as module

entered = set()

def note(frame, event, argument):  # functions only: bodies of classes and modules run when they are imported
    if event == "call" and frame.f_code.co_flags & 1 and frame.f_code.co_filename.startswith(PACKAGE):
        entered.add(frame.f_code.co_filename.removeprefix(PACKAGE))

def first_step(*_):
    sys.setprofile(None)
    print(json.dumps(sorted(entered)), flush=True)
    os._exit(0)

PACKAGE = os.path.dirname(cli.__file__) + os.sep
module.LanguageModelModule.training_step = first_step
sys.argv = ["txl", "train", "data=recall", "data.distance=4", "profile=smoke", "logger=none", "hydra.run.dir=run"]
sys.setprofile(note)
cli.main()
"""


@pytest.mark.slow
def test_the_files_entered_before_the_first_step(tmp_path: Path) -> None:
    entered = json.loads(printed("-c", PROGRAM, directory=tmp_path).splitlines()[-1])
    assert "model/transformer_xl.py" in entered
    assert len(entered) <= 36, entered
