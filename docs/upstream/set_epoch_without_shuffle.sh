#!/usr/bin/env bash
# datasets 5.2.0: set_epoch of a stream that is not shuffled.
#
# Guess: the epoch is a part of the seed of `shuffle`; where nothing is shuffled it
#   changes nothing.
# Instead: from epoch 1 on set_epoch shuffles the order of the shards, also if `shuffle`
#   was never called. Only after `skip` or `take` the order is kept.
# Why it matters: training loops call set_epoch on every dataset that has it. A text that
#   is read on from shard to shard, with a memory or a state that is carried, is read in
#   another order in each epoch, the state of one shard goes on in a shard that is not
#   its continuation, and a loss by position in the corpus is given to other texts. With
#   few shards epoch 1 often happens to keep the order, so that a short test shows nothing.
#
# Seen, 12 rows in 3 shards, epochs 0 to 3:
#   0-11; 0-11; 8-11 0-7; 8-11 4-7 0-3    after skip(0): 0-11 each time
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q datasets==5.2.0
export HF_HOME="$work/cache" HF_HUB_OFFLINE=1
"$work/venv/bin/python" - <<'PY'
from datasets import Dataset

dataset = Dataset.from_dict({"n": list(range(12))}).to_iterable_dataset(num_shards=3)


def epochs(stream):
    orders = []
    for epoch in range(4):
        stream.set_epoch(epoch)
        orders.append([row["n"] for row in stream])
    return orders


orders = epochs(dataset)
for epoch, order in enumerate(orders):
    print(f"epoch {epoch}:", *order)
    assert sorted(order) == list(range(12))
assert orders[0] == orders[1] == list(range(12))
assert orders[2] == [*range(8, 12), *range(8)]
assert orders[3] == [*range(8, 12), *range(4, 8), *range(4)]

assert epochs(dataset.skip(0)) == [list(range(12))] * 4
PY
