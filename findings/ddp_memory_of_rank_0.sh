#!/usr/bin/env bash
# torch 2.13.0: a memory of hidden states, kept as a buffer, with two processes.
#
# Guess: each process has its own streams of text, and its module's buffer is its own;
#   DistributedDataParallel averages gradients. A buffer with persistent=False is not
#   a part of the model's state at all.
# Instead: before every forward pass all buffers are overwritten with those of rank 0,
#   also if they are not persistent, were assigned anew since the last step, and in
#   evaluation. Every process goes on with the memory of rank 0's text.
# Why it matters: register_buffer is the usual way to let a memory follow the model to
#   its device. With one process all is right; with several, all but one attend to text
#   that is not theirs, and nothing fails. Keep the memory outside the module, or as a
#   plain attribute.
#
# Seen, rank 1 in its third step, having remembered 11: buffer 1 (rank 0's), attribute 11
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3.11 -m venv "$work/venv"
"$work/venv/bin/pip" install -q torch==2.13.0
cat > "$work/memory.py" <<'PY'
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Model(nn.Module):
    def __init__(self, how):
        super().__init__()
        self.out = nn.Linear(1, 1)
        if how == "attribute":
            self.memory = torch.zeros(1)
        else:
            self.register_buffer("memory", torch.zeros(1), persistent=how == "persistent buffer")

    def forward(self, x):
        remembered, self.memory = self.memory.item(), x.detach().clone()
        return self.out(x).sum(), remembered


rank = int(sys.argv[2])
dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}", rank=rank, world_size=2)
for how in ("persistent buffer", "buffer", "attribute"):
    model = DistributedDataParallel(Model(how))
    for step in range(3):
        loss, trained = model(torch.full((1,), 10.0 * rank + step))
        loss.backward()
    model.eval()
    with torch.no_grad():
        _, evaluated = model(torch.zeros(1))
    own = how == "attribute"
    print(f"rank {rank}, {how}: {trained:.0f}, evaluation {evaluated:.0f}")
    assert trained == (10 * rank + 1 if own else 1)
    assert evaluated == (10 * rank + 2 if own else 2)
dist.destroy_process_group()
PY
for rank in 0 1; do
  "$work/venv/bin/python" -W ignore "$work/memory.py" "$work/meeting" "$rank" 2> "$work/log$rank" &
  pids[$rank]=$!
done
for rank in 0 1; do wait "${pids[$rank]}" || { cat "$work/log$rank"; exit 1; }; done
