"""TAB in bash: commands, groups with real choices, options."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import ROOT

COMPLETE = """
eval "$(txl train -sc install=bash)"
complete -p txl
while read -r COMP_LINE; do
    COMP_POINT=${#COMP_LINE}; words=($COMP_LINE); COMP_CWORD=$((${#words[@]} - 1))
    hydra_bash_completion
    echo "${COMPREPLY[@]}"
done
"""
COMPLETED = {
    "txl eva": "evaluate",
    "txl train encoding=r": "encoding=relative encoding=rope",
    "txl train encoding=s": "encoding=shaw",
    "txl train data=file": "data=file",
    "txl train seed=1 optimizer.l": "optimizer.lr=",
    "txl train callbacks=e": "callbacks=early_stopping",
    "txl train trainer=": "trainer=cpu trainer=ddp trainer=gpu trainer=slurm",
    "txl train debug=o": "debug=overfit",
    "txl convert source_f": "source_format=",
}


@pytest.mark.slow
def test_bash_completes_commands_options_groups_and_values(tmp_path: Path) -> None:
    program = tmp_path / "txl"
    start = "import sys; sys.argv[0] = 'txl'; from txl_lightning.cli import main; main()"
    program.write_text(f'#!/bin/sh\nPYTHONPATH={ROOT} exec {sys.executable} -c "{start}" "$@"\n')
    program.chmod(0o755)
    variables = dict(os.environ)
    variables["PATH"] = f"{tmp_path}:{os.environ['PATH']}"
    lines = "".join(f"{line}\n" for line in COMPLETED)
    done = subprocess.run(
        ["bash", "-c", COMPLETE], env=variables, input=lines, capture_output=True, text=True
    )
    registered, *completed = done.stdout.splitlines()
    assert registered.endswith("-F hydra_bash_completion txl")
    assert completed == list(COMPLETED.values())
