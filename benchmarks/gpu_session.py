"""Show what a GPU does with this project, in less than ten minutes (`benchmarks/gpu.sh`).

The parts, each a process with its log in the output folder:

    tests       the tests that need a GPU
    bench       training, evaluation and one-token steps beside Hugging Face's TransfoXL, where its environment exists
    steps/…     `txl train` at the sizes of the paper's enwik8 base model, 512/512: bfloat16, float32, compiled, kernels
    gradients   the tests of the attention kernels: outputs and gradients beside the plain scores, as many as compile in
                the time
    training    the fastest of these for the remaining time, on characters of wikipedia-2015, with its curve

Each part has a limit, and none takes the time that is kept for the training. `summary.json` is rewritten after every
part, so that a session that is cut short leaves what it has measured.
"""

from __future__ import annotations

import argparse
import csv
import datetime
import os
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import torch

from benchmarks.bench import OTHERS, ROOT
from txl_lightning.distributed.processes import JobProcess, execute
from txl_lightning.files import write_json
from txl_lightning.jobs import Jobs
from txl_lightning.reporting.machine import processor

GRACE_SECONDS = 45  # for a stopped part to save and end
LEAST_TRAINING_SECONDS = 120
START_SECONDS = 50  # of a training: imports, corpus, compilation from the cache, final evaluation
SHOWN = ("tokens_per_second", "mfu", "peak_memory_bytes")
ARMS = {  # options of the measured steps
    "bfloat16": (),
    "float32": ("trainer.precision=32-true",),
    "compiled": ("trainer.compile=true",),
}
BASE = (
    *("experiment=paper/enwik8_base", "evaluation.max_segments=50"),
    *("trainer.val_max_segments=50", "checkpoint.every_n_steps=1000000"),
)
SPEED_ALONE = ("checkpoint.enabled=false", "evaluation.max_segments=5", "trainer.val_max_segments=5")  # little else
TINY = (
    *("profile=smoke", "data=python-stdlib", "trainer.num_threads=1"),
    *("data.batch_size=4", "data.segment_len=8", "evaluation.batch_size=2", "evaluation.max_segments=2"),
    *("trainer=cpu", "trainer.precision=32-true"),
)


@dataclass
class GpuSession:
    """Parts that were run, and the time that is left.

    Args:
        output: folder of all results.
        seconds: time for all parts.
        dry_run: tiny sizes on the CPU.
        parts: record of every part that ended.
        kept: seconds that are not given to a part, for the training.
    """

    output: Path
    seconds: float
    dry_run: bool
    parts: list[dict[str, Any]] = field(default_factory=list)
    kept: float = LEAST_TRAINING_SECONDS
    started: float = field(default_factory=time.monotonic)

    @property
    def left(self) -> float:
        """Seconds that are left, without those that are kept and those that a stopped part needs to end."""
        return self.started + self.seconds - GRACE_SECONDS - self.kept - time.monotonic()

    def run(self, name: str, words: Sequence[str], most: float = 1e9) -> dict[str, Any]:
        """Run `python WORDS…` for at most `most` seconds and return its record, which is kept in `summary.json`."""
        log = self.output / f"{name.replace('/', '-')}.log"
        limit = min(most, self.left)
        record: dict[str, Any] = {"part": name, "command": " ".join(["python", *words]), "limit": round(limit)}
        if limit <= 0:
            record["status"] = "left out: no time"
        else:
            print(f"gpu.sh: {name}, at most {limit:.0f} s …", file=sys.stderr, flush=True)
            begun = time.monotonic()
            record["status"] = _run(TimedPart(name, [sys.executable, *words]), log, limit)
            record["seconds"] = round(time.monotonic() - begun, 1)
        self.parts.append(record)
        self.write()
        return record

    def write(self) -> None:
        """Write `summary.json`."""
        gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
        machine = {"gpu": gpu, "cpu": processor(), "torch": torch.__version__, "cuda": torch.version.cuda}
        facts = {"date": datetime.datetime.now().isoformat(timespec="seconds"), "dry_run": self.dry_run, **machine}
        write_json(self.output / "summary.json", {**facts, "parts": self.parts})


@dataclass(frozen=True)
class TimedPart:
    """One part as a job."""

    name: str
    words: list[str]
    needs: tuple[str, ...] = ()
    alone: bool = True


def _run(part: TimedPart, log: Path, limit: float) -> str:
    """Run a process; after the limit ask it to end, and kill it if it does not. Return how it ended."""
    status: list[int | None] = []
    log.write_text("")
    jobs = Jobs(
        [part],
        start=lambda part, slot: JobProcess(execute, part.words, log=log),
        end=lambda part, ended: status.append(ended.status),
        grace_seconds=GRACE_SECONDS,
        first_signal=signal.SIGTERM,
        limit=limit,
    )
    jobs.run()
    return f"{'stopped after its time, ' if jobs.stopped else ''}exit {status[0]}"


def train_words(session: GpuSession, name: str, steps: int, *overrides: str) -> list[str]:
    """Return the command of a training in the folder `name`, on wikipedia-2015 or, without it, the standard library."""
    at_hand = "TXL_DATA" in os.environ and (Path(os.environ["TXL_DATA"]) / "wikipedia-2015").exists()
    corpus = ("data=wikipedia-2015", "data.level=char") if at_hand else ("data=python-stdlib",)
    options = ("logger=csv", f"trainer.max_steps={steps}", f"trainer.log_every_n_steps={max(1, steps // 15)}")
    return [
        *("-m", "txl_lightning.cli", "train", *(TINY if session.dry_run else (*BASE, *corpus)), *options),
        *("trainer.progress_bar=false", f"hydra.run.dir={session.output / name}", *overrides),
    ]


def speeds(directory: Path) -> dict[str, float]:
    """Return the median speed and MFU of a training and its peak memory, without the first third of the log.

    The first steps compile, fill the memory and choose kernels; a third is rounded up, so that the first never counts.
    """
    path = directory / "metrics.csv"
    rows = list(csv.DictReader(path.read_text().splitlines())) if path.exists() else []
    rows = [row for row in rows if row.get("train/tokens_per_second")]
    rows = rows[-(-len(rows) // 3) :]
    names = [name for name in SHOWN if rows and rows[0].get(f"train/{name}")]
    return {name: median(float(row[f"train/{name}"]) for row in rows) for name in names}


def bench_words(session: GpuSession) -> list[str]:
    """Return the command of `make bench` for training on this device."""
    words = ["-m", "benchmarks.bench", "--output", str(session.output / "bench.json")]
    if session.dry_run:
        return [*words, "--only", "tiny", "--rounds", "1", "--against", str(ROOT)]
    if not OTHERS.exists():
        without = f"{OTHERS.relative_to(ROOT)} is missing, so ours is measured alone; `make bench` makes it"
        print(f"gpu.sh: {without}", file=sys.stderr, flush=True)
    return [*words, "--only", "base,words,evaluation,token", "--device", "cuda", "--rounds", "3"]


def measure(session: GpuSession) -> None:
    """Run all parts."""
    pytest = ["-m", "pytest", "-p", "no:cacheprovider"]
    tests = [*pytest, "-q", "-m", "gpu", "tests/devices", f"--junitxml={session.output / 'tests.xml'}"]
    session.run("tests", tests, 120)
    session.run("bench", bench_words(session), 120)
    options: dict[str, tuple[str, ...]] = {"float32": ()} if session.dry_run else ARMS
    measured: dict[str, float] = {}
    for name, overrides in options.items():
        part = f"steps/{name}"
        words = train_words(session, part, 15 if session.dry_run else 150, *SPEED_ALONE, *overrides)
        record = session.run(part, words, 100)
        record |= speeds(session.output / part)
        measured[name] = record.get("tokens_per_second", 0.0)
    few = ["-k", "every_kernel"] if session.dry_run else []
    session.run("gradients", [*pytest, "-v", "-m", "not slow", *few, "tests/model/kernels"], 150)
    session.kept = 0
    fastest = max(measured, key=lambda name: measured[name])
    steps = n_steps(session, measured[fastest])
    every = f"trainer.val_every_n_steps={max(1, steps // 5)}"
    record = session.run("training", train_words(session, "training", steps, every, *options[fastest]))
    record |= {"arm": fastest, **speeds(session.output / "training")}
    session.write()


def n_steps(session: GpuSession, tokens_per_second: float) -> int:
    """Return how many steps fit into the remaining time, validation included."""
    if session.dry_run:
        return 15
    tokens = 0.85 * tokens_per_second * max(0.0, session.left - START_SECONDS)
    return max(100, int(tokens / (22 * 512)))


def table(parts: Sequence[dict[str, Any]]) -> str:
    """Return a line for each part: how it ended, seconds, tokens/s, MFU, bytes of peak memory."""
    return "\n".join(
        f"{part['part']:16} {part['status']:30} "
        + ", ".join(f"{name} {part[name]:,.4g}" for name in ("seconds", *SHOWN) if name in part)
        for part in parts
    )


def main() -> int:
    """Run the session; return 1 if a part failed, 2 without a GPU."""
    parser = argparse.ArgumentParser("benchmarks/gpu.sh", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--output", type=Path, help="folder of the results; default: outputs/gpu-DATE-TIME")
    parser.add_argument("--minutes", type=float, default=9.5, help="time for everything")
    parser.add_argument("--dry-run", action="store_true", help="tiny sizes on the CPU")
    options = parser.parse_args()
    if not options.dry_run and not torch.cuda.is_available():
        print("gpu.sh: torch finds no GPU; --dry-run runs tiny sizes on the CPU", file=sys.stderr)
        return 2
    default = ROOT / "outputs" / f"gpu-{datetime.datetime.now():%Y%m%d-%H%M%S}"
    session = GpuSession((options.output or default).resolve(), 60 * options.minutes, options.dry_run)
    session.output.mkdir(parents=True, exist_ok=True)
    measure(session)
    print(table(session.parts))
    print(session.output)
    return int(any(part["status"].startswith("exit ") and part["status"] != "exit 0" for part in session.parts))


if __name__ == "__main__":
    sys.exit(main())
