"""One callback a concern: curves, the progress bar, what a checkpoint says of its run."""

from __future__ import annotations

import math
import sys
import time
from pathlib import Path
from typing import Any, TextIO

import lightning as L
import torch
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.callbacks import ProgressBar as LightningProgressBar
from lightning.pytorch.trainer.states import TrainerFn
from tqdm import tqdm

from txl_lightning.data.streams.ordered import Segment
from txl_lightning.distributed.ranks import Ranks
from txl_lightning.runs.metrics import loss_metrics
from txl_lightning.training.callbacks.curve_file import CurveFile
from txl_lightning.training.loggers.choice import log
from txl_lightning.training.module import LanguageModelModule


class TrainingCurves(Callback):
    """Logs loss, bpc or ppl, learning rate, gradient norm, memory length and tokens/s every n steps.

    The loss is the mean over the tokens of all ranks since the last time, without those of skipped steps.

    Args:
        every_n_steps: n.
        ranks: the processes of the run.

    Attributes:
        tokens: seen by all ranks since the run began, earlier sessions included.
        seconds: of training and validation since then.
        latest: what was logged last.
    """

    def __init__(self, every_n_steps: int, ranks: Ranks) -> None:
        self.every_n_steps, self.ranks = every_n_steps, ranks
        self.tokens = 0
        self.latest: dict[str, float] = {}
        self._nll_sum: torch.Tensor | float = 0.0
        self._tokens = self._tokens_before = 0
        self._seconds_before = 0.0
        self._started = self._since = time.perf_counter()

    @property
    def seconds(self) -> float:
        """Wall-clock time of this run, its earlier sessions up to their last checkpoint included."""
        return self._seconds_before + time.perf_counter() - self._started

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Start the clock."""
        self._started = self._since = time.perf_counter()
        self._tokens_before = self._tokens

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Segment, batch_idx: int
    ) -> None:
        """Count the batch, and log when it is time."""
        assert isinstance(pl_module, LanguageModelModule)
        n_tokens = batch.targets.numel()
        self.tokens += n_tokens * self.ranks.world_size
        if not pl_module.step_skipped:
            self._nll_sum = self._nll_sum + pl_module.loss * n_tokens
            self._tokens += n_tokens
        if trainer.global_step % self.every_n_steps == 0 or trainer.global_step == trainer.max_steps:
            self._log(trainer, pl_module)

    def _log(self, trainer: L.Trainer, module: LanguageModelModule) -> None:
        nll_sum, tokens, n_recent = self.ranks.total(
            float(self._nll_sum), self._tokens, self._tokens - self._tokens_before
        )
        values = loss_metrics(nll_sum / tokens, module.level) if tokens else {}
        memory = module.training_memory.memory
        self.latest = {f"train/{name}": value for name, value in values.items()} | {
            "train/tokens_per_second": n_recent / (time.perf_counter() - self._since),
            "train/learning_rate": trainer.optimizers[0].param_groups[0]["lr"],
            "train/gradient_norm": float(module.gradient_norm),
            "train/memory_length": float(getattr(memory, "filled", 0)),
        }
        log(trainer, {**self.latest, "tokens": self.tokens})
        self._nll_sum, self._tokens = 0.0, 0
        self.restart_clock()

    def restart_clock(self) -> None:
        """What was done since the last time something was logged is not part of tokens/s."""
        self._since, self._tokens_before = time.perf_counter(), self._tokens

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Validation is not part of tokens/s."""
        self.restart_clock()

    def state_dict(self) -> dict[str, Any]:
        """Tokens and seconds so far, and what every rank has summed since the last time."""
        since = self.ranks.gather((float(self._nll_sum), self._tokens))
        return {"tokens": self.tokens, "seconds": self.seconds, "since": since}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on counting."""
        self.tokens, self._seconds_before = state_dict["tokens"], state_dict["seconds"]
        sums, W = state_dict["since"], self.ranks.world_size
        if len(sums) == W:
            self._nll_sum, self._tokens = sums[self.ranks.rank]
        elif self.ranks.rank == 0:
            self._nll_sum, self._tokens = (sum(part) for part in zip(*sums, strict=True))


class ValidationCurve(Callback):
    """Writes every validation as a line of `validation.jsonl`: steps, tokens, seconds, nll and bpc or ppl."""

    def __init__(self, path: Path, curves: TrainingCurves) -> None:
        self.file, self.curves = CurveFile(path), curves

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Keep only lines of the past."""
        if trainer.is_global_zero:
            self.file.keep_until(trainer.global_step)

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Log, and append one line."""
        assert isinstance(pl_module, LanguageModelModule)
        if trainer.state.fn != TrainerFn.FITTING or not trainer.is_global_zero:
            return
        values = {name: value for name, value in pl_module.figures.items() if name.startswith("val/")}
        log(trainer, {**values, "tokens": self.curves.tokens})
        row = {"steps": trainer.global_step, "tokens": self.curves.tokens}
        self.file.append({**row, "seconds": round(self.curves.seconds, 2), **values})

    def on_test_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Log what the test split gave."""
        assert isinstance(pl_module, LanguageModelModule)
        values = {name: value for name, value in pl_module.figures.items() if name.startswith("test/")}
        log(trainer, {**values, "tokens": self.curves.tokens})


class ProgressBar(LightningProgressBar):
    """Steps done, loss, ppl or bpc, tokens/s and time left: one moving line, or ten lines without a terminal."""

    def __init__(self, curves: TrainingCurves) -> None:
        super().__init__()
        self.curves = curves
        self._enabled = True
        self._bar: tqdm | None = None

    def disable(self) -> None:
        """Called by Lightning on every rank but the first."""
        self._enabled = False

    def enable(self) -> None:
        """The inverse of `disable`."""
        self._enabled = True

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Open the bar."""
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

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Move on."""
        if self._bar is not None:
            assert isinstance(pl_module, LanguageModelModule)
            self._bar.set_postfix_str(self._text(pl_module.figures), refresh=False)
            self._bar.update(trainer.global_step - self._bar.n)

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Close the bar."""
        if self._bar is not None:
            self._bar.close()

    def on_exception(self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException) -> None:
        """Close the bar, so that the error has a line of its own."""
        self.on_train_end(trainer, pl_module)

    def _text(self, figures: dict[str, float]) -> str:
        latest = self.curves.latest
        shown = [f"{name} {latest['train/' + name]:.3f}" for name in ("nll", "bpc", "ppl") if "train/" + name in latest]
        for name in ("val/bpc", "val/ppl"):
            if name in figures:
                shown.append(f"{name} {figures[name]:.3f}")
        if "train/tokens_per_second" in latest:
            shown.append(f"{latest['train/tokens_per_second']:,.0f} tokens/s")
        return ", ".join(shown)


class _Lines:
    """A stream for tqdm that ends each state of the bar with a line break instead of overwriting it."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream

    def write(self, text: str) -> None:
        text = text.strip()
        if text:
            self.stream.write(text + "\n")

    def flush(self) -> None:
        self.stream.flush()


class RunRecord(Callback):
    """Writes into every checkpoint what is needed to use it alone: configuration and vocabulary.

    Args:
        record: `config`, `vocabulary` and, if W&B draws the curves, `wandb_id`, in plain containers.
    """

    def __init__(self, record: dict[str, Any]) -> None:
        self.record = record

    def on_save_checkpoint(self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]) -> None:
        """Plain containers only, so that loading runs no code."""
        checkpoint["txl_lightning"] = self.record
