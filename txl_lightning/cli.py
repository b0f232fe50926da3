"""The command `txl`: one row per command.

A new command is a module with `run`, a dataclass of its options and a row here, or in a user's file (see `guests`); it
needs a file in `conf/` only if its options have groups.
"""

from __future__ import annotations

import os
import platform
import sys
from importlib.metadata import distribution

from txl_lightning import __version__
from txl_lightning.command_line import COMMANDS, Command, ended_by_ctrl_c, register_measurement, show
from txl_lightning.errors import UserError, cores
from txl_lightning.registry import load_guests

ROWS = (
    Command(
        "train [overrides]",
        module="txl_lightning.training.run",
        options="txl_lightning.config.schemas.Config",
        summary="train one model; -m for a multirun (txl train -m memory=on,off)",
        config="config",
        directory="own",
        objective="val/nll",
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
        text_options=("prompt",),
    ),
    Command(
        "convert source=PATH source_format=FORMAT target=PATH target_format=FORMAT",
        module="txl_lightning.runs.convert",
        options="txl_lightning.runs.ConvertOptions",
        summary="convert checkpoints: original, huggingface, txl; from the TensorFlow code's too",
        directory="none",
    ),
)
for row in ROWS:
    register_measurement(row)
INDENT = 35
NAMED = ("torch", "lightning", "hydra-core", "omegaconf", "wandb", "numpy", "datasets", "tokenizers", "safetensors")


def usage() -> str:
    """Return the text of `txl --help`: every command with its purpose."""
    lines = ["usage: txl COMMAND [overrides]", ""]
    for row in COMMANDS.values():
        words = f"  txl {row.usage}"
        room = words.ljust(INDENT) if len(words) < INDENT else f"{words}\n{'':{INDENT}}"
        lines.append(f"{room}  {row.summary}")
    lines += [f"{'  txl env':{INDENT}}  versions and machine, for a report of a problem", ""]
    return "\n".join([*lines, "txl COMMAND --help lists the options of a command, txl --version says the version."])


def environment() -> str:
    """Return versions, of this package and of those on which results depend, machine and variables."""
    from txl_lightning.reporting import gpus, processor

    versions = [f"{found.metadata['Name']} {found.version}" for found in map(distribution, NAMED)]  # not imported
    names = [name for name in sorted(os.environ) if name.startswith(("TXL_", "OMP_", "MKL_", "CUDA_", "HYDRA_"))]
    lines = [f"txl_lightning {__version__} in {os.path.dirname(__file__)}", f"Python {sys.version.split()[0]}"]
    lines += [platform.platform(), f"{processor()}, {cores()} cores", *gpus(), ", ".join(versions)]
    return "\n".join([*lines, *(f"{name}={os.environ[name]}" for name in names)])


def main() -> None:
    """Run the command line `txl COMMAND …` in `sys.argv`.

    Exit status: 0 on success, 2 with one line on bad input, 128 + the number of the signal that ended it (130 after
    Ctrl-C), for a multirun the number of failed jobs (at most 100). `sys.argv` and the environment stay as they were.
    """
    words = sys.argv[1:] or [""]
    if "--version" in words or words[0] == "env":
        show(environment() if words[0] == "env" else f"txl_lightning {__version__}")
        sys.exit(0)
    if words[0] == "-sc":  # Hydra's script, which completes options, knows no commands
        program, _, line = os.environ.get("COMP_LINE", "txl train ").partition(" ")
        name, space, rest = line.lstrip().partition(" ")
        if not space or name not in COMMANDS:
            show(" ".join(COMMANDS))
            sys.exit(0)
        words, os.environ["COMP_LINE"] = [name, *words], f"{program} {rest}"
    try:
        with ended_by_ctrl_c():
            load_guests()
    except UserError as error:
        print(f"txl: {error}", file=sys.stderr)
        sys.exit(2)
    if words[0] in ("", "-h", "--help", "help"):
        show(usage())
        sys.exit(0 if words[0] else 2)
    if words[0] not in COMMANDS:
        print(f"txl: unknown command {words[0]!r}: must be one of {', '.join(COMMANDS)}", file=sys.stderr)
        sys.exit(2)
    with ended_by_ctrl_c():
        # Import Hydra late: it takes a quarter of a second, and neither help nor an unknown command needs it.
        from txl_lightning.command_line.hydra_app import run_command
    run_command(COMMANDS[words[0]], words[1:])


if __name__ == "__main__":
    main()
