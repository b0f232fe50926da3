"""Compare the package's Muon with torch's at equal trials: `python -m benchmarks.muon FOLDER`.

`torch.optim.Muon` takes a parameter as one matrix and iterates in bfloat16, one matrix after the
other. The package's splits the parameter that holds queries, keys and values into three matrices
and iterates over all matrices with equal shape at once. Both train `experiment=laptop_search` with the
same rates and seeds; AdamW trains everything else. Prints every run's validation loss and
speed, and writes both to FOLDER/muon.json.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from torch import nn

from txl_lightning import compose, train
from txl_lightning.config.schemas import OptimizerConfig
from txl_lightning.training import optimizers

RATES = [3e-3, 6e-3, 12e-3]
SEEDS = [1, 2]


class TorchMuonWithAdam(torch.optim.Optimizer):
    """`torch.optim.Muon` for the layers' matrices, AdamW for the rest."""

    def __init__(self, model: nn.Module, config: OptimizerConfig, fused: bool = False) -> None:
        matrices = [parameter for parameter, _ in optimizers.matrices_of_layers(model)]
        names = set(matrices)
        others = [parameter for parameter in model.parameters() if parameter not in names]
        self.muon = torch.optim.Muon(
            matrices, lr=config.lr, weight_decay=0.0, adjust_lr_fn="match_rms_adamw"
        )
        betas = (config.betas[0], config.betas[1])
        self.adam = torch.optim.AdamW(
            others, lr=config.lr, betas=betas, weight_decay=0.0, fused=fused
        )
        super().__init__([*self.muon.param_groups, *self.adam.param_groups], {})

    def step(self, closure: Any = None) -> Any:
        """Update all parameters that have a gradient."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self.muon.param_groups = self.param_groups[:1]
        self.adam.param_groups = self.param_groups[1:]
        self.muon.step()
        self.adam.step()
        return loss


def measure(name: str, rate: float, seed: int, folder: Path) -> dict[str, Any]:
    """Train one run and return its validation loss and speed."""
    config = compose(
        "experiment=laptop_search",
        f"optimizer.lr={rate}",
        f"seed={seed}",
        "trainer.num_threads=1",
        "trainer.progress_bar=false",
        "logger=none",
    )
    metrics = train(config, folder / f"{name}-{rate}-{seed}")
    return {
        "optimizer": name,
        "lr": rate,
        "seed": seed,
        "val_nll": metrics["val/nll"],
        "seconds": metrics["seconds"],
    }


def main() -> None:
    """Run all trials in turns."""
    folder = Path(sys.argv[1])
    ours = optimizers.MuonWithAdam
    results = []
    for seed in SEEDS:
        for rate in RATES:
            for name, optimizer in (("package", ours), ("torch", TorchMuonWithAdam)):
                optimizers.MuonWithAdam = optimizer  # type: ignore[misc, assignment]
                results.append(measure(name, rate, seed, folder))
                print(json.dumps(results[-1]), flush=True)
    (folder / "muon.json").write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
