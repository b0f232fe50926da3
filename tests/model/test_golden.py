"""Losses of a short training in float64: a refactor leaves them as they are, on any CPU.

After a deliberate change write them again with `python tests/model/test_golden.py`.
"""

import json
from pathlib import Path

import pytest
import torch

from txl_lightning import TransformerXL, TransformerXLConfig

GOLDEN = Path(__file__).with_name("golden.json")
CURVES = {
    "relative": {},
    "relative, dropout": {"dropout": 0.1, "attention_dropout": 0.1},
    "relative, pre-norm, untied biases": {"pre_norm": True, "untie_biases": True},
}
VOCABULARY = 13
STREAMS = 3
SEGMENT = 8
STEPS = 20


def loss_curve(**options: object) -> list[float]:
    """Mean loss of every step of Adam on streams of arithmetic, the memory carried along."""
    sizes = {
        "n_layer": 2,
        "d_model": 16,
        "n_head": 2,
        "d_head": 8,
        "d_inner": 32,
        "mem_len": 8,
    }
    config = TransformerXLConfig(VOCABULARY, **{**sizes, "dropout": 0.0, **options})
    with torch.random.fork_rng():
        torch.manual_seed(0)
        # Initial weights too: random float32 numbers differ between CPUs.
        torch.set_default_dtype(torch.float64)
        try:
            model = TransformerXL(config)
        finally:
            torch.set_default_dtype(torch.float32)
        optimizer = torch.optim.Adam(
            model.parameters(),
            lr=1e-2,
            eps=1e-5,
        )
        time = torch.arange(STEPS * SEGMENT + 1)
        stream = torch.stack([(3 * time + 5 * b + time // 7) % VOCABULARY for b in range(STREAMS)])
        memory = None
        losses = []
        for start in range(0, STEPS * SEGMENT, SEGMENT):
            window = stream[:, start : start + SEGMENT + 1]
            nll, memory = model.score(
                window[:, :-1],
                window[:, 1:],
                memory,
            )
            optimizer.zero_grad()
            nll.mean().backward()
            optimizer.step()
            losses.append(nll.mean().item())
    return losses


@pytest.mark.parametrize("name", CURVES)
def test_losses_of_a_short_training_are_golden(name):
    golden = json.loads(GOLDEN.read_text())[name]
    assert loss_curve(**CURVES[name]) == pytest.approx(golden, rel=1e-9)


if __name__ == "__main__":
    torch.set_num_threads(1)
    curves = {name: loss_curve(**options) for name, options in CURVES.items()}
    GOLDEN.write_text(json.dumps(curves, indent=1) + "\n")
