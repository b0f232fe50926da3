"""Numbers that a run writes, computed a second time: metrics.json, validation.jsonl, metrics.csv."""

from __future__ import annotations

import json
import math
import resource
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.training.small_run import logged_rows, patch_module, tiny_config
from txl_lightning.config.schemas import Config
from txl_lightning.data.corpus import load_corpus
from txl_lightning.evaluation.trained import load_trained
from txl_lightning.reporting.code import code_version
from txl_lightning.training.checkpoints import RunCheckpoint
from txl_lightning.training.module import LanguageModelModule
from txl_lightning.training.run import train

T, M, STEPS = 8, 12, 60  # an epoch has 56 steps, so that the memory starts again at step 57
EVERY, LR, MIN_LR, WARMUP = 7, 0.01, 0.002, 10
CURVES = (
    *("train/nll", "train/bpc", "train/gradient_norm", "train/memory_length"),
    *("train/learning_rate", "train/tokens_per_second", "tokens"),
)
OPTIONS = (
    *(
        f"trainer.max_steps={STEPS}",
        f"trainer.log_every_n_steps={EVERY}",
        "trainer.val_every_n_steps=20",
    ),
    *(f"memory.mem_len={M}", "model.dropout=0.1", "logger=csv", "data.level=char"),
    *(f"optimizer.lr={LR}", f"optimizer.min_lr={MIN_LR}", f"optimizer.warmup_steps={WARMUP}"),
    *(
        "evaluation.mem_len=16",
        "evaluation.segment_len=6",
        "evaluation.same_length=true",
        "evaluation.clamp_len=14",
    ),
    *(
        "evaluation.ext_len=2",
        "trainer.val_max_segments=3",
        "evaluation.max_segments=5",
        "trainer.stream_groups=2",
    ),
)


class Recorded:
    """A run of 60 steps on a clock that advances 2 s a step and 100 s a validation, and the values of every step."""

    def __init__(self, directory: Path, patch: pytest.MonkeyPatch) -> None:
        self.nll: list[float] = []
        self.norms: list[float] = []
        self.tokens: list[int] = []
        now = 0.0
        step = LanguageModelModule.training_step

        def training_step(module: LanguageModelModule, batch: Any, i: int) -> Any:
            nonlocal now
            now += 1  # each of two groups
            loss = step(module, batch, i)
            if batch.group == 0:
                self.nll.append(0.0)
                self.tokens.append(0)
            self.nll[-1] += float(module.loss) / 2
            self.tokens[-1] += batch.targets.numel()
            return loss

        def clipped(module: LanguageModelModule) -> None:
            self.norms.append(
                math.sqrt(sum(float(p.grad.double().pow(2).sum()) for p in module.parameters()))
            )

        def validated(module: LanguageModelModule) -> None:
            nonlocal now
            now += 100
            module.restart_clock()

        def monitored(checkpoint: RunCheckpoint, trainer: Any) -> dict[str, torch.Tensor]:
            losses = candidates(checkpoint, trainer)
            if trainer.global_step == 40:  # the best, so that the scored weights are not the last
                losses["val/nll"] = torch.tensor(0.5)
            return losses

        candidates = RunCheckpoint._monitor_candidates
        patch.setattr(RunCheckpoint, "_monitor_candidates", monitored)

        patch.setattr(LanguageModelModule, "training_step", training_step)
        patch_module(patch, "configure_gradient_clipping", before=clipped)
        patch_module(patch, "on_validation_epoch_end", after=validated)
        patch.setattr("time.perf_counter", lambda: now)
        text = "".join(f"Zeile {i}: das Quadrat von {i} wäre {i * i}\n" for i in range(60))
        (directory / "text.txt").write_text(text, encoding="utf-8")
        self.config: Config = tiny_config(directory, *OPTIONS)
        self.run, self.text = directory / "run", text
        self.metrics = train(self.config, self.run)
        self.rows = [{k: float(v) for k, v in row.items()} for row in logged_rows(self.run / "csv")]
        self.validations = [
            json.loads(line) for line in (self.run / "validation.jsonl").read_text().splitlines()
        ]

    def curve(self, name: str) -> dict[int, float]:
        """Return a column of `metrics.csv` by step."""
        return {int(row["step"]): row[name] for row in self.rows if name in row}


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Recorded]:
    with pytest.MonkeyPatch.context() as patch:
        yield Recorded(tmp_path_factory.mktemp("recorded"), patch)


def naive_loss(checkpoint: Path, tokens: Any, segments: int) -> dict[str, float]:
    """Mean loss and number of the targets: two streams, segments of 6, two tokens of extended context."""
    contents = load_trained(checkpoint)
    model = contents.model.with_lengths(mem_len=16, ext_len=2, same_length=True, clamp_len=14)
    n = len(tokens) // 2
    streams = torch.tensor([tokens[:n].tolist(), tokens[n : 2 * n].tolist()])
    sums, memory, targets = 0.0, None, []
    with torch.no_grad():
        for first in range(0, min(6 * segments, n - 1), 6):
            end = min(first + 6, n - 1)
            seen, following = streams[:, max(0, first - 2) : end], streams[:, first + 1 : end + 1]
            nll, memory = model.score(seen, following, memory)
            sums += float(nll.double().sum())
            targets += following.flatten().tolist()
    n_bytes = sum(len(contents.vocabulary.symbols[token].encode()) for token in targets)
    bits = sums / math.log(2)
    return {
        "nll": sums / len(targets),
        "bpc": bits / len(targets),
        "bpb": bits / n_bytes,
        "tokens": len(targets),
    }


def test_metrics_json(recorded: Recorded) -> None:
    metrics, folder = recorded.metrics, recorded.run / "checkpoints"
    assert json.loads((recorded.run / "metrics.json").read_text()) == metrics
    corpus = load_corpus(recorded.config.data)
    expected: dict[str, Any] = {
        "steps": STEPS,
        "tokens": sum(recorded.tokens),
        "seconds": 2.0 * STEPS + 3 * 100,  # up to the end of training
        "peak_memory_bytes": metrics["peak_memory_bytes"],
        "weights": "best",
        "weights_step": 40,
        "parameters": sum(p.numel() for p in load_trained(folder / "last.ckpt").model.parameters()),
        "processes": 1,
        "evaluation": {
            **{
                "protocol": "carried",
                "mem_len": 16,
                "ext_len": 2,
                "same_length": True,
                "clamp_len": 14,
            },
            **{
                "segment_len": 6,
                "streams_start": "without context",
                "batch_size": 2,
                "max_segments": 5,
            },
        },
        "corpus": {"name": "text.txt", "level": "char", "sha256": corpus.checksum},
        **code_version(),
    }
    for split, name in (("valid", "val"), ("test", "test")):
        loss = naive_loss(folder / "best.ckpt", corpus.splits[split], 5)
        assert loss["tokens"] == 60
        expected |= {
            f"{name}/{unit}": pytest.approx(value, rel=1e-5) for unit, value in loss.items()
        }
    assert metrics == expected
    kilobytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert metrics["peak_memory_bytes"] == pytest.approx(
        kilobytes * (1 if sys.platform == "darwin" else 1024), rel=0.2
    )


def test_validation_jsonl(recorded: Recorded) -> None:
    rows = recorded.validations
    assert [row["steps"] for row in rows] == [20, 40, 60]
    assert [row["tokens"] for row in rows] == [sum(recorded.tokens[:step]) for step in (20, 40, 60)]
    assert [row["seconds"] for row in rows] == [140.0, 280.0, 420.0]
    corpus = load_corpus(recorded.config.data)
    expected = naive_loss(recorded.run / "checkpoints/last.ckpt", corpus.splits["valid"], 3)
    assert {name: rows[2][f"val/{name}"] for name in expected} == pytest.approx(expected, rel=1e-5)
    assert set(rows[2]) == {"steps", "tokens", "seconds", *(f"val/{name}" for name in expected)}
    for name in ("val/nll", "val/bpc", "val/bpb", "val/tokens", "tokens"):
        in_csv = recorded.curve(name)
        assert [in_csv[step] for step in (20, 40, 60)] == pytest.approx(
            [row[name] for row in rows]
        ), name
    assert recorded.curve("test/nll") == pytest.approx({60: recorded.metrics["test/nll"]})
    assert recorded.curve("test/tokens") == {60: 60}


def test_curves_of_training(recorded: Recorded) -> None:
    """A validation ends an interval of tokens/s, which counts from it or from the last entry."""
    nll = 0.0
    n_tokens = 0
    since = 0
    for step in range(1, STEPS + 1):
        nll += recorded.nll[step - 1] * recorded.tokens[step - 1]
        n_tokens += recorded.tokens[step - 1]
        if step % EVERY == 0 or step == STEPS:
            row = {name: recorded.curve(name)[step] for name in CURVES}
            rate = LR * step / WARMUP
            if step >= WARMUP:
                rate = MIN_LR + (LR - MIN_LR) * (1 + math.cos(math.pi * step / STEPS)) / 2
            in_epoch = step if step <= 56 else step - 56
            expected = {
                "train/nll": nll / n_tokens,
                "train/bpc": nll / n_tokens / math.log(2),
                "train/gradient_norm": recorded.norms[step - 1],
                "train/memory_length": min(M, T * in_epoch),
                "train/learning_rate": rate,
                "train/tokens_per_second": sum(recorded.tokens[since:step]) / (2 * (step - since)),
                "tokens": sum(recorded.tokens[:step]),
            }
            assert row == pytest.approx(expected, rel=1e-5)
            nll = 0.0
            n_tokens = 0
            since = step
        if step in (20, 40):
            since = step
    at_the_end = recorded.curve("train/peak_memory_bytes")[STEPS]
    assert recorded.metrics["peak_memory_bytes"] >= at_the_end > 1e7
