#!/usr/bin/env bash
# datasets 5.2.0: a stream that was stopped and goes on.
#
# Guess: load_state_dict says where the next pass begins; the passes after it begin at
#   the start, as they do in a run that was not stopped.
# Instead: every pass begins there, until set_epoch gives the dataset another number.
#   And if the state was saved under another number than the dataset has, it is not
#   used at all, without a word: the pass begins at the start.
# Why it matters: set_epoch seems to be needed for shuffling only. A resumed run of
#   several epochs without it never reads the first part of the data again; one that
#   had called it and resumes before the call reads the first part twice. Nothing fails.
#
# Seen, 12 rows, stopped after 5, three passes each:
#   resumed                      5-11, 5-11, 5-11
#   resumed, set_epoch(1, 2)     5-11, 0-11, 0-11
#   saved in epoch 1, resumed    0-11
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q datasets==5.2.0
export HF_HOME="$work/cache" HF_HUB_OFFLINE=1
"$work/venv/bin/python" - <<'PY'
from itertools import islice

from datasets import Dataset


def stream():
    return Dataset.from_dict({"n": list(range(12))}).to_iterable_dataset()


def read(rows):
    return [row["n"] for row in rows]


def stopped_after_five(epoch):
    dataset = stream()
    dataset.set_epoch(epoch)
    assert read(islice(dataset, 5)) == [0, 1, 2, 3, 4]
    return dataset.state_dict()


resumed = stream()
resumed.load_state_dict(stopped_after_five(epoch=0))
passes = [read(resumed) for _ in range(3)]
print("resumed", passes)
assert passes == [list(range(5, 12))] * 3

numbered = stream()
numbered.load_state_dict(stopped_after_five(epoch=0))
passes = []
for epoch in range(3):
    numbered.set_epoch(epoch)
    passes.append(read(numbered))
print("with set_epoch", passes)
assert passes == [list(range(5, 12)), list(range(12)), list(range(12))]

later = stream()
later.load_state_dict(stopped_after_five(epoch=1))
print("saved in epoch 1, read in epoch 0", read(later))
assert read(later) == list(range(12))
later.set_epoch(1)
assert read(later) == list(range(5, 12))
PY
