"""Cost of checkpoints: the same training steps with and without them, in turns (part of `make bench`)."""

from __future__ import annotations

import argparse
import datetime
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import torch
from hydra import compose, initialize_config_dir

from benchmarks.page import PAGE, aligned, spread, write_section
from txl_lightning.config.composition import register_schemas
from txl_lightning.config.schemas import CONF, typed
from txl_lightning.reporting.machine import processor
from txl_lightning.training.run import train

OPTIONS = (
    "model=txl_laptop",
    "data.batch_size=16",
    "data.segment_len=64",
    "optimizer.lr=1e-3",
    "logger=none",
    "trainer.progress_bar=false",
    "trainer.val_every_n_steps=null",
    "evaluation.max_segments=1",
)


def measure(every: int, steps: int, rounds: int, threads: int, *overrides: str) -> list[dict[str, Any]]:
    """Time training steps with a checkpoint every `every` steps and without, `rounds` times each.

    Seconds are those of `metrics.json`: first step to last, with the final checkpoint, without start and evaluation.

    Returns:
        For each round `with` and `without` (seconds), their `ratio`, and the `bytes` of a checkpoint.
    """
    register_schemas()
    results: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as scratch, initialize_config_dir(str(CONF), version_base="1.3"):
        for i in range(rounds):
            seconds = {}
            for saves in (True, False) if i % 2 else (False, True):
                options = (f"checkpoint.enabled={saves}", f"checkpoint.every_n_steps={every}")
                lengths = (f"trainer.max_steps={steps}", f"trainer.num_threads={threads}")
                config = typed(compose("config", overrides=[*OPTIONS, *options, *lengths, *overrides]))
                run = Path(scratch) / f"{i}{saves}"
                seconds["with" if saves else "without"] = train(config, run)["seconds"]
            size = (Path(scratch) / f"{i}True" / "checkpoints" / "last.ckpt").stat().st_size
            results.append({**seconds, "ratio": seconds["with"] / seconds["without"], "bytes": size})
    return results


def section(results: Sequence[dict[str, Any]], every: int, steps: int, threads: int) -> str:
    """Return the section of BENCHMARKS.md."""
    ratios = [result["ratio"] for result in results]
    row = [f"{median(result[name] for result in results):.2f}" for name in ("without", "with")]
    header = ["checkpoints", "seconds without", "seconds with", "with / without (min–max)", "MB a checkpoint"]
    rows = [header, [f"every {every} of {steps} steps", *row, spread(ratios), f"{results[0]['bytes'] / 1e6:.1f}"]]
    return "\n".join(
        [
            "## What checkpoints cost",
            "",
            "`txl train model=txl_laptop`, 16 streams, segments of 64, with and without checkpoints, in turns. Each",
            "checkpoint is written whole, flushed to disk and checksummed.",
            f"Medians of {len(results)} rounds; the ratio is the median of the ratios within a round.",
            "",
            aligned(rows),
            "",
            f"- date: {datetime.date.today().isoformat()}",
            f"- CPU: {processor()}, {threads} threads; torch {torch.__version__}",
            "- command: `python -m benchmarks.checkpoint_cost`",
        ]
    )


def main() -> None:
    """Measure, print and write the section."""
    parser = argparse.ArgumentParser("python -m benchmarks.checkpoint_cost", allow_abbrev=False)
    parser.add_argument("--every", type=int, default=100, help="steps between checkpoints")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--markdown", type=Path, default=PAGE, help="file whose section is rewritten")
    parser.add_argument("--output", type=Path, help="file for everything measured, as JSON")
    options = parser.parse_args()
    results = measure(options.every, options.steps, options.rounds, options.threads)
    text = section(results, options.every, options.steps, options.threads)
    print(text)
    if options.output:
        options.output.write_text(json.dumps(results, indent=2) + "\n")
    write_section(options.markdown, "checkpoints", text)


if __name__ == "__main__":
    main()
