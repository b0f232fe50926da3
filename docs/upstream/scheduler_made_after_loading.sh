#!/usr/bin/env bash
# torch 2.13.0: the order in which a run that resumes builds and loads.
#
# Guess: once the optimizer and the scheduler have loaded their states, the learning
#   rate is that of the run that was stopped, whatever was built first.
# Instead: building a scheduler changes the optimizer's rate, and its load_state_dict
#   does not put it back. LinearLR, and thus a SequentialLR or ChainedScheduler with a
#   warm-up, computes each rate from the one before: built after the optimizer was
#   loaded, it follows the right curve from a wrong value to the end. With LambdaLR the
#   next step alone is wrong; CosineAnnealingLR by itself is right.
# Why it matters: the moments, the count of steps and get_last_lr() are those of the
#   stopped run, and the new rate is a plausible one. A run with a warm-up from a
#   hundredth that resumes after it learns at a hundredth of its rate for good.
#
# Seen, rate 1, warm-up from 0.1 in 10 of 100 steps, resumed at 20; rates in steps 20, 21
#   and 60, uninterrupted and with the scheduler built last:
#   LinearLR            1.0000 1.0000 1.0000    0.1000 0.1000 0.1000
#   SequentialLR        0.9698 0.9636 0.4132    0.1000 0.0994 0.0426
#   ChainedScheduler    0.8179 0.8097 0.5472    0.0818 0.0810 0.0547
#   LambdaLR            0.9698 0.9636 0.4132    0.1000 0.9636 0.4132
#   CosineAnnealingLR   0.9045 0.8951 0.3455    the same
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3.11 -m venv "$work/venv"
"$work/venv/bin/pip" install -q torch==2.13.0
cat > "$work/resume.py" <<'PY'
import copy
import math

import torch
from torch.optim import lr_scheduler

STEPS, WARMUP, STOP = 100, 10, 20


def warmup(optimizer):
    return lr_scheduler.LinearLR(optimizer, 0.1, total_iters=WARMUP)


def factor(step):
    if step < WARMUP:
        return 0.1 + 0.9 * step / WARMUP
    return (1 + math.cos(math.pi * (step - WARMUP) / (STEPS - WARMUP))) / 2


SCHEDULES = {
    "LinearLR": warmup,
    "SequentialLR": lambda optimizer: lr_scheduler.SequentialLR(optimizer, [
        warmup(optimizer), lr_scheduler.CosineAnnealingLR(optimizer, STEPS - WARMUP)
    ], [WARMUP]),
    "ChainedScheduler": lambda optimizer: lr_scheduler.ChainedScheduler([
        warmup(optimizer), lr_scheduler.ExponentialLR(optimizer, 0.99)
    ]),
    "LambdaLR": lambda optimizer: lr_scheduler.LambdaLR(optimizer, factor),
    "CosineAnnealingLR": lambda optimizer: lr_scheduler.CosineAnnealingLR(optimizer, STEPS),
}


def build_optimizer():
    return torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))], lr=1.0)


def rates(optimizer, scheduler, n):
    """Return the rates of the next n steps."""
    used = []
    for _ in range(n):
        used.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return used


def resumed(schedule, states, scheduler_last):
    of_optimizer, of_scheduler = copy.deepcopy(states)
    optimizer = build_optimizer()
    if not scheduler_last:
        scheduler = schedule(optimizer)
    optimizer.load_state_dict(of_optimizer)
    if scheduler_last:
        scheduler = schedule(optimizer)
    scheduler.load_state_dict(of_scheduler)
    return scheduler.get_last_lr()[0], rates(optimizer, scheduler, STEPS - STOP)


for name, schedule in SCHEDULES.items():
    optimizer = build_optimizer()
    scheduler = schedule(optimizer)
    rates(optimizer, scheduler, STOP)
    states = copy.deepcopy((optimizer.state_dict(), scheduler.state_dict()))
    right = rates(optimizer, scheduler, STEPS - STOP)

    _, first = resumed(schedule, states, scheduler_last=False)
    assert all(math.isclose(a, b) for a, b in zip(first, right)), name
    shown, last = resumed(schedule, states, scheduler_last=True)
    print(f"{name:18}", *(f"{right[n]:.4f}" for n in (0, 1, 40)), "  ",
          *(f"{last[n]:.4f}" for n in (0, 1, 40)))
    assert math.isclose(shown, right[0]), "get_last_lr() is the right one"
    ratios = [a / b for a, b in zip(last, right)]
    if name == "CosineAnnealingLR":
        assert all(math.isclose(ratio, 1) for ratio in ratios)
    elif name == "LambdaLR":
        assert ratios[0] < 0.11 and all(math.isclose(ratio, 1) for ratio in ratios[1:])
    else:
        assert all(ratio < 0.11 for ratio in ratios), ratios
PY
"$work/venv/bin/python" -W ignore "$work/resume.py"
