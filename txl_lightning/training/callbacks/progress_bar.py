"""Progress of a training run on stderr."""

from __future__ import annotations

import math
import sys
import time
from typing import Any, TextIO

import lightning as L
from lightning.pytorch.callbacks import ProgressBar as LightningProgressBar
from tqdm import tqdm

from txl_lightning.runs.metrics import shown_units
from txl_lightning.training.callbacks.training_curves import TrainingCurves
from txl_lightning.training.module import LanguageModelModule


class ProgressBar(LightningProgressBar):
    """Shows steps done, loss, ppl or bpc, bpb, tokens/s and time left: a bar, or ten lines without a terminal."""

    def __init__(self, curves: TrainingCurves) -> None:
        super().__init__()
        self.curves = curves
        self._enabled = True
        self._bar: tqdm | None = None

    def disable(self) -> None:
        self._enabled = False

    def enable(self) -> None:
        self._enabled = True

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if self._enabled:
            on_terminal = sys.stderr.isatty()
            self._bar = tqdm(
                total=int(trainer.max_steps),
                initial=trainer.global_step,
                unit="step",
                file=sys.stderr if on_terminal else _Lines(sys.stderr),
                dynamic_ncols=on_terminal,
                mininterval=0.5 if on_terminal else 0.0,
                maxinterval=10.0 if on_terminal else math.inf,
                miniters=1 if on_terminal else math.ceil(trainer.max_steps / 10),
            )
            use_monotonic_clock(self._bar)

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if self._bar is not None:
            assert isinstance(pl_module, LanguageModelModule)
            self._bar.set_postfix_str(self._text(pl_module.metrics), refresh=False)
            self._bar.update(trainer.global_step - self._bar.n)

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if self._bar is not None:
            self._bar.close()

    def on_exception(self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException) -> None:
        # Otherwise the error would begin in the middle of the bar's line.
        self.on_train_end(trainer, pl_module)

    def _text(self, metrics: dict[str, float]) -> str:
        latest = self.curves.latest
        shown = [f"{name} {latest['train/' + name]:.3f}" for name in ("nll", "bpc", "ppl") if "train/" + name in latest]
        shown += [f"val/{unit} {metrics[f'val/{unit}']:.3f}" for unit in shown_units(metrics, "val/")]
        if "train/tokens_per_second" in latest:
            shown.append(f"{latest['train/tokens_per_second']:,.0f} tokens/s")
        return ", ".join(shown)


def use_monotonic_clock(bar: tqdm) -> None:
    """Let a bar measure time with a clock that never jumps (a private attribute of tqdm, which reads the wall clock).

    A wall clock that is set back would stop the bar and make its rate and time left negative.
    """
    bar._time = time.monotonic
    bar.start_t = bar.last_print_t = bar._time()


class _Lines:
    """Stream for tqdm that writes each state of the bar on a line of its own."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream

    def write(self, text: str) -> None:
        text = text.strip()
        if text:
            self.stream.write(text + "\n")

    def flush(self) -> None:
        self.stream.flush()
