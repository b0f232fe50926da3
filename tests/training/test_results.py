"""Numbers that a run writes, computed a second time: metrics.json, validation.jsonl, metrics.csv."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
import pytest
import torch

from tests.training.small_run import logged_rows, patch_module, tiny_config, with_losses
from txl_lightning.data.corpus import load_corpus
from txl_lightning.evaluation.trained import load_trained
from txl_lightning.reporting.code import code_version
from txl_lightning.training.module import LanguageModelModule
from txl_lightning.training.run import train

M, STEPS, TOKENS = 12, 40, 32  # memory, steps, tokens of a step
LR, MIN_LR, WARMUP = 0.01, 0.002, 10
EVALUATION: dict[str, Any] = {
    "mem_len": 16,
    "ext_len": 2,
    "same_length": True,
    "clamp_len": 14,
}
OPTIONS = (
    f"trainer.max_steps={STEPS}",
    "trainer.log_every_n_steps=7",
    "trainer.val_every_n_steps=20",
    "trainer.val_max_segments=3",
    "trainer.stream_groups=2",
    f"memory.mem_len={M}",
    "model.dropout=0.1",
    "logger=csv",
    "data.level=char",
    f"optimizer.lr={LR}",
    f"optimizer.min_lr={MIN_LR}",
    f"optimizer.warmup_steps={WARMUP}",
    "evaluation.segment_len=6",
    "evaluation.max_segments=5",
    *(f"evaluation.{name}={value}" for name, value in EVALUATION.items()),
)


class Recorded:
    """A run on a clock that advances 1 s a batch and 100 s a validation, with losses and norms of every step."""

    def __init__(self, directory: Path, patch: pytest.MonkeyPatch) -> None:
        self.clock = 0.0
        self.nll: list[float] = []  # of each of the two groups of a step
        self.norms: list[float] = []
        patch.setattr("time.perf_counter", lambda: self.clock)
        patch_module(patch, "training_step", after=self.trained)
        patch_module(patch, "configure_gradient_clipping", before=self.clipped)
        patch_module(patch, "on_validation_epoch_end", before=self.validated)
        with_losses(patch, {20: 0.5})  # the best, so that the scored weights are not the last
        lines = [f"Zeile {i}: das Quadrat von {i} wäre {i * i}\n" for i in range(60)]
        (directory / "text.txt").write_text(
            "".join(lines),
            encoding="utf-8",
        )
        self.config = tiny_config(directory, *OPTIONS)
        self.run = directory / "run"
        self.metrics = train(self.config, self.run)
        self.rows = logged_rows(self.run / "csv")

    def trained(self, module: LanguageModelModule) -> None:
        self.clock += 1
        self.nll.append(float(module.loss))

    def clipped(self, module: LanguageModelModule) -> None:
        gradients = [p.grad.double() for p in module.parameters() if p.grad is not None]
        self.norms.append(float(torch.nn.utils.get_total_norm(gradients)))

    def validated(self, module: LanguageModelModule) -> None:
        self.clock += 100

    def curve(self, name: str) -> dict[int, float]:
        """Return a column of `metrics.csv` by step."""
        return {int(row["step"]): float(row[name]) for row in self.rows if name in row}


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Recorded]:
    with pytest.MonkeyPatch.context() as patch:
        yield Recorded(tmp_path_factory.mktemp("recorded"), patch)


def naive_loss(checkpoint: Path, tokens: np.ndarray, n_segments: int) -> dict[str, float]:
    """Mean loss and number of the targets: two streams, segments of 6, two tokens of extended context."""
    trained = load_trained(checkpoint)
    model = trained.model.with_lengths(**EVALUATION)
    n = len(tokens) // 2
    streams = torch.from_numpy(tokens[: 2 * n].astype(np.int64)).view(
        2,
        n,
    )
    memory = None
    losses = []
    n_bytes = 0
    for first in range(0, 6 * n_segments, 6):
        seen = streams[:, max(0, first - 2) : first + 6]
        targets = streams[:, first + 1 : first + 7]
        with torch.no_grad():
            nll, memory = model.score(seen, targets, memory)
        losses.append(nll.double())
        for token in targets.flatten().tolist():
            n_bytes += len(trained.vocabulary.symbols[token].encode())
    all_losses = torch.cat(losses, dim=1)
    bits = float(all_losses.sum()) / math.log(2)
    return {
        "nll": float(all_losses.mean()),
        "bpc": bits / all_losses.numel(),
        "bpb": bits / n_bytes,
        "tokens": all_losses.numel(),
    }


def test_metrics_json(recorded: Recorded) -> None:
    metrics = recorded.metrics
    assert json.loads((recorded.run / "metrics.json").read_text()) == metrics
    best = recorded.run / "checkpoints/best.ckpt"
    corpus = load_corpus(recorded.config.data)
    expected: dict[str, Any] = {
        "steps": STEPS,
        "tokens": STEPS * TOKENS,
        "seconds": 2.0 * STEPS + 2 * 100,  # up to the end of training
        "peak_memory_bytes": pytest.approx(metrics["peak_memory_bytes"]),
        "weights": "best",
        "weights_step": 20,
        "parameters": sum(weight.numel() for weight in load_trained(best).model.parameters()),
        "processes": 1,
        "corpus": {"name": "text.txt", "level": "char", "sha256": corpus.checksum},
        **code_version(),
    }
    expected["evaluation"] = {
        **EVALUATION,
        "protocol": "carried",
        "segment_len": 6,
        "streams_start": "without context",
        "batch_size": 2,
        "max_segments": 5,
    }
    for split, name in (("valid", "val"), ("test", "test")):
        for unit, value in naive_loss(best, corpus.splits[split], 5).items():
            expected[f"{name}/{unit}"] = pytest.approx(value, rel=1e-5)
    assert metrics == expected


def test_validation_jsonl(recorded: Recorded) -> None:
    lines = (recorded.run / "validation.jsonl").read_text().splitlines()
    first, last = (json.loads(line) for line in lines)
    corpus = load_corpus(recorded.config.data)
    losses = naive_loss(
        recorded.run / "checkpoints/last.ckpt",
        corpus.splits["valid"],
        3,
    )
    expected: dict[str, Any] = {
        f"val/{unit}": pytest.approx(value, rel=1e-5) for unit, value in losses.items()
    }
    expected |= {"steps": STEPS, "tokens": STEPS * TOKENS, "seconds": 280.0}
    assert last == expected
    assert (first["steps"], first["seconds"]) == (20, 140.0)
    assert recorded.curve("val/nll") == {20: first["val/nll"], STEPS: last["val/nll"]}
    assert recorded.curve("test/nll") == pytest.approx({STEPS: recorded.metrics["test/nll"]})


def test_curves_of_training(recorded: Recorded) -> None:
    """Time of validation is not part of tokens/s."""
    before = 0
    for step in (7, 14, 21, 28, 35, 40):
        rate = LR * step / WARMUP
        if step >= WARMUP:
            share = (1 + math.cos(math.pi * step / STEPS)) / 2
            rate = MIN_LR + (LR - MIN_LR) * share
        nll = mean(recorded.nll[2 * before : 2 * step])
        expected = {
            "train/nll": nll,
            "train/bpc": nll / math.log(2),
            "train/gradient_norm": recorded.norms[step - 1],
            "train/memory_length": min(M, 8 * step),
            "train/learning_rate": rate,
            "train/tokens_per_second": TOKENS / 2,
            "tokens": TOKENS * step,
        }
        row = {name: recorded.curve(name)[step] for name in expected}
        assert row == pytest.approx(expected, rel=1e-5)
        before = step
    at_the_end = recorded.curve("train/peak_memory_bytes")[STEPS]
    assert recorded.metrics["peak_memory_bytes"] >= at_the_end > 1e7
