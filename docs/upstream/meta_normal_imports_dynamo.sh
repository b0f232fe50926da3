#!/usr/bin/env bash
# torch 2.13.0: initial values on the meta device.
#
# Guess: on the meta device nothing is computed, so every initialisation is free.
# Instead: normal_ is done there by a Python decomposition. The first call imports
#   torch._dynamo and sympy, 800 modules in all. uniform_ and trunc_normal_ import
#   nothing: nn.Linear is free, nn.Embedding is not.
# Why it matters: a model is built on the meta device to count its parameters, to plan
#   its memory or to load a checkpoint, often in a command that should answer at once
#   and in every process of a job. Its first embedding table costs more than a second
#   there, and a profile counts that second as building the model.
#
# Seen: Linear 0 modules, 0.0 s; trunc_normal_ 0, 0.0 s; Embedding on the CPU 0, 0.0 s;
#   normal_ 823, 1.5 s; Embedding 823, 1.9 s
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3.11 -m venv "$work/venv"
"$work/venv/bin/pip" install -q torch==2.13.0 numpy==2.4.6
cat > "$work/build.py" <<'PY'
import sys
import time

import torch
from torch import nn

BUILDS = {
    "linear": lambda: nn.Linear(4, 4, device="meta"),
    "uniform": lambda: torch.empty(4, device="meta").uniform_(),
    "truncated": lambda: nn.init.trunc_normal_(torch.empty(4, device="meta")),
    "embedding on the CPU": lambda: nn.Embedding(4, 4),
    "normal": lambda: torch.empty(4, device="meta").normal_(),
    "embedding": lambda: nn.Embedding(4, 4, device="meta"),
}
name = sys.argv[1]
before, start = set(sys.modules), time.perf_counter()
BUILDS[name]()
seconds, imported = time.perf_counter() - start, set(sys.modules) - before
print(f"{name}: {len(imported)} modules imported, {seconds:.1f} s")
if name in ("normal", "embedding"):
    assert {"sympy", "torch._dynamo"} <= imported and len(imported) > 500
else:
    assert not imported
PY
for name in linear uniform truncated "embedding on the CPU" normal embedding; do
  "$work/venv/bin/python" "$work/build.py" "$name"
done
