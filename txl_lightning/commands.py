"""The `txl` commands: one row per command.

A new command is a module with `run`, a dataclass with its options and a row here, or in a user's file. It needs a file
in `conf/` only if its options have groups.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from txl_lightning.errors import require


@dataclass(frozen=True)
class Command:
    """One command. Its modules are imported when it runs, so a table of commands is quick to import.

    Attributes:
        usage: words after `txl`, for the help text. The first one is the command's name.
        module: has `run(options, directory) -> list[str]`; the returned lines are printed at the end.
        options: dotted name of the options' dataclass.
        summary: the command's purpose in one line.
        resume: override that continues a stopped job, whose loss a multirun minimizes; empty if a job starts anew. Such
            a command writes its `config.yaml` itself, after its checks.
        shared_by_ranks: whether the processes that torchrun or SLURM starts run the command together.
    """

    usage: str
    module: str
    options: str
    summary: str
    resume: str = ""
    shared_by_ranks: bool = False

    @property
    def name(self) -> str:
        """Name as typed."""
        return self.usage.split()[0]

    @property
    def schema(self) -> type:
        """Dataclass with the options."""
        module, _, class_name = self.options.rpartition(".")
        return getattr(import_module(module), class_name)

    @property
    def run(self) -> Callable[[Any, Path], list[str]]:
        """The command's function: takes options and run directory, returns the lines to print."""
        return import_module(self.module).run


COMMANDS: dict[str, Command] = {}  # by name


def register_measurement(row: Command) -> None:
    """Add a command to `txl`, from the package or from a user's file.

    Raises:
        OptionError: another command has the name.
    """
    known = COMMANDS.setdefault(row.name, row)
    allowed = f"is the name of another command, in {known.module}"
    require(known.module == row.module, "name", row.name, allowed)


ROWS = (
    Command(
        "train [overrides]",
        module="txl_lightning.training.run",
        options="txl_lightning.config.schemas.Config",
        summary="train one model; -m for a multirun (txl train -m memory=on,off)",
        resume="resume=auto",
        shared_by_ranks=True,
    ),
    Command(
        "evaluate checkpoint=PATH",
        module="txl_lightning.evaluation.perplexity",
        options="txl_lightning.evaluation.options.EvaluateOptions",
        summary="loss of a checkpoint (nll, ppl, bpc, bpb), any lengths; sweep of attention lengths",
    ),
    Command(
        "recl checkpoints=[A,B,…]",
        module="txl_lightning.recl.command",
        options="txl_lightning.recl.options.ReclOptions",
        summary="relative effective context length (RECL) of several models, with gain curves",
        shared_by_ranks=True,
    ),
    Command(
        "attention checkpoint=PATH",
        module="txl_lightning.evaluation.attention",
        options="txl_lightning.evaluation.options.AttentionOptions",
        summary="attention weights of every head, averaged over a split and on a piece of text",
    ),
    Command(
        "speed",
        module="txl_lightning.evaluation.speed",
        options="txl_lightning.evaluation.options.SpeedOptions",
        summary="time per token: vanilla sliding window against state reuse (Table 9)",
    ),
    Command(
        "generate checkpoint=PATH prompt=TEXT",
        module="txl_lightning.evaluation.generate",
        options="txl_lightning.evaluation.options.GenerateOptions",
        summary="sample text from a model, shown as it is sampled; context=N continues test tokens",
    ),
    Command(
        "convert source=PATH source_format=FORMAT target=PATH target_format=FORMAT",
        module="txl_lightning.evaluation.convert",
        options="txl_lightning.evaluation.options.ConvertOptions",
        summary="convert checkpoints: original, huggingface, txl; from the TensorFlow code's too",
    ),
)
for row in ROWS:
    register_measurement(row)
