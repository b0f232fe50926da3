"""One callback a concern: curves, the progress bar, what a checkpoint says of its run."""

from __future__ import annotations

import json
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

from txl_lightning.data.streams import Segment
from txl_lightning.errors import UserError
from txl_lightning.training.metrics import figures
from txl_lightning.training.module import LanguageModelModule


class TrainingCurves(Callback):
    """Logs loss, bpc or ppl, learning rate, gradient norm, memory length and tokens/s every n steps.

    The loss is the mean over the tokens since the last time. Nothing is read from the device in between.
    """

    def __init__(self, every_n_steps: int) -> None:
        self.every_n_steps = every_n_steps
        self.tokens = 0
        self.latest: dict[str, float] = {}
        self._reset()

    def _reset(self) -> None:
        self._nll_sum: torch.Tensor | float = 0.0
        self._tokens = 0
        self._since = time.perf_counter()

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Start the clock."""
        self._reset()

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Segment, batch_idx: int
    ) -> None:
        """Count the batch, and log when it is time."""
        assert isinstance(pl_module, LanguageModelModule)
        n_tokens = batch.targets.numel()
        self.tokens += n_tokens * trainer.world_size
        self._nll_sum = self._nll_sum + outputs["loss"].detach() * n_tokens
        self._tokens += n_tokens
        if trainer.global_step % self.every_n_steps and trainer.global_step != trainer.max_steps:
            return
        memory = pl_module.training_memory.memory
        nll = float(self._nll_sum) / self._tokens
        if not math.isfinite(nll):
            raise UserError(f"the training loss is {nll} at step {trainer.global_step}: lower optimizer.lr")
        self.latest = {f"train/{name}": value for name, value in figures(nll, pl_module.level).items()} | {
            "train/tokens_per_second": self._tokens * trainer.world_size / (time.perf_counter() - self._since),
            "train/learning_rate": trainer.optimizers[0].param_groups[0]["lr"],
            "train/gradient_norm": float(pl_module.gradient_norm),
            "train/memory_length": float(getattr(memory, "filled", 0)),
        }
        for logger in trainer.loggers:
            logger.log_metrics({**self.latest, "tokens": self.tokens}, step=trainer.global_step)
        self._reset()

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Validation is not part of tokens/s."""
        self._reset()

    def state_dict(self) -> dict[str, Any]:
        """Tokens seen so far."""
        return {"tokens": self.tokens}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on counting."""
        self.tokens = state_dict["tokens"]


class ValidationCurve(Callback):
    """Writes every validation as a line of `validation.jsonl`: steps, tokens, seconds, nll and bpc or ppl."""

    def __init__(self, path: Path, curves: TrainingCurves) -> None:
        self.path, self.curves = path, curves
        self.started = time.perf_counter()

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Start the clock; keep only lines of the past, which a resumed run has in its own directory."""
        self.started = time.perf_counter()
        if self.path.exists() and trainer.is_global_zero:
            lines = self.path.read_text().splitlines()
            past = [line for line in lines if json.loads(line)["steps"] <= trainer.global_step]
            self.path.write_text("".join(line + "\n" for line in past))

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Append one line."""
        assert isinstance(pl_module, LanguageModelModule)
        if trainer.state.fn != TrainerFn.FITTING or not trainer.is_global_zero:
            return
        row: dict[str, float] = {"steps": trainer.global_step, "tokens": self.curves.tokens}
        row["seconds"] = round(time.perf_counter() - self.started, 2)
        row |= {name: value for name, value in pl_module.figures.items() if name.startswith("val/")}
        with self.path.open("a") as file:
            file.write(json.dumps(row) + "\n")


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
            self._bar.set_postfix_str(self._text(trainer), refresh=False)
            self._bar.update(trainer.global_step - self._bar.n)

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Close the bar."""
        if self._bar is not None:
            self._bar.close()

    def on_exception(self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException) -> None:
        """Close the bar, so that the error has a line of its own."""
        self.on_train_end(trainer, pl_module)

    def _text(self, trainer: L.Trainer) -> str:
        latest = self.curves.latest
        shown = [f"{name} {latest['train/' + name]:.3f}" for name in ("nll", "bpc", "ppl") if "train/" + name in latest]
        for name in ("val/bpc", "val/ppl"):
            if name in trainer.callback_metrics:
                shown.append(f"{name} {float(trainer.callback_metrics[name]):.3f}")
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


class RandomState(Callback):
    """Puts torch's random state into every checkpoint and back, so that dropout goes on as it would have."""

    def __init__(self) -> None:
        self._loaded: dict[str, Any] | None = None

    def state_dict(self) -> dict[str, Any]:
        """The generators of the processor and of all GPUs."""
        return {"cpu": torch.get_rng_state(), "cuda": torch.cuda.get_rng_state_all()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Kept until training starts."""
        self._loaded = state_dict

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """After everything that draws numbers before the first step."""
        if self._loaded is not None:
            torch.set_rng_state(self._loaded["cpu"].cpu())
            if len(self._loaded["cuda"]) == torch.cuda.device_count():
                torch.cuda.set_rng_state_all([state.cpu() for state in self._loaded["cuda"]])


class RunRecord(Callback):
    """Writes into every checkpoint what is needed to use it alone: configuration and vocabulary."""

    def __init__(self, config: dict[str, Any], vocabulary: dict[str, Any]) -> None:
        self.record = {"config": config, "vocabulary": vocabulary}

    def on_save_checkpoint(self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]) -> None:
        """Plain containers only, so that loading runs no code."""
        checkpoint["txl_lightning"] = self.record
