#!/usr/bin/env bash
# torch 2.13.0: an optimizer that was given the names of its parameters.
#
# Guess: state_dict() holds param_names, and load_state_dict uses them: the state of
#   "first.weight" goes to "first.weight", or a difference of names is an error.
# Instead: states are given out by position. Parameters in another order get each
#   other's moments, and the names of the new optimizer are replaced by the saved ones,
#   so that afterwards its groups name the wrong parameters. Only the number of
#   parameters is compared; other shapes fail in the next step, equal ones never.
# Why it matters: layers of a Transformer have equal shapes. A module that was moved up
#   in the code, or groups for weight decay that are made in another way, give a resumed
#   run the second moments of other layers, and it learns on with wrong step sizes for
#   about as long as those last. The model's own state is matched by name and is right.
#
# Seen, Adam, two layers of equal shape, gradients 1 and 100: moments of "first" before
#   saving 0.1, after loading in the other order 10; its name is then "second.weight"
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3.11 -m venv "$work/venv"
"$work/venv/bin/pip" install -q torch==2.13.0
cat > "$work/order.py" <<'PY'
import torch
from torch import nn


def model_and_optimizer(order):
    layers = {name: nn.Linear(4, 4, bias=False) for name in ("first", "second")}
    named = [(f"{name}.weight", layers[name].weight) for name in order]
    return layers, torch.optim.Adam(named, lr=0.1)


def moment(layers, optimizer, name):
    return optimizer.state[layers[name].weight]["exp_avg"].mean().item()


layers, optimizer = model_and_optimizer(["first", "second"])
layers["first"].weight.grad = torch.full((4, 4), 1.0)
layers["second"].weight.grad = torch.full((4, 4), 100.0)
optimizer.step()
state = optimizer.state_dict()
assert state["param_groups"][0]["param_names"] == ["first.weight", "second.weight"]
before = {name: moment(layers, optimizer, name) for name in layers}

layers, optimizer = model_and_optimizer(["second", "first"])
assert optimizer.param_groups[0]["param_names"] == ["second.weight", "first.weight"]
optimizer.load_state_dict(state)
after = {name: moment(layers, optimizer, name) for name in layers}
print("before", before, "after", after)
assert abs(before["first"] - 0.1) < 1e-6 and abs(before["second"] - 10) < 1e-4
assert after == {"first": before["second"], "second": before["first"]}

[group] = optimizer.param_groups
assert group["params"][1] is layers["first"].weight
print("name of first.weight:", group["param_names"][1])
assert group["param_names"] == ["first.weight", "second.weight"]
PY
"$work/venv/bin/python" -W ignore "$work/order.py"
