#!/usr/bin/env bash
# lightning 2.6.6: the state that SpikeDetection saves cannot be loaded.
#
# Guess: a callback that writes its state into every checkpoint reads it when the run
#   resumes; at worst its running mean starts again.
# Instead: `load_state_dict` uses an attribute that the class does not have, so
#   resuming with the callback ends in an AttributeError.
# Why it matters: the callback is meant for long trainings, which are those that
#   resume. Leave it out of a run that may be stopped.
#
# Seen: AttributeError: 'SpikeDetection' object has no attribute 'running'
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q torch==2.13.0 lightning==2.6.6
"$work/venv/bin/python" - <<'PY'
import torch
from lightning.pytorch.callbacks import SpikeDetection

saved = SpikeDetection().state_dict()
assert "running" in saved, saved
try:
    SpikeDetection().load_state_dict(saved)
except AttributeError as error:
    print(f"AttributeError: {error}")
    assert "has no attribute 'running'" in str(error)
else:
    raise SystemExit("the state was loaded: the behaviour has changed")
PY
