"""The program `txl`: help, versions, completion; every command is a Hydra application."""

from __future__ import annotations

import os
import platform
import signal
import sys
from importlib.metadata import distribution

from txl_lightning import __version__
from txl_lightning.commands import COMMANDS
from txl_lightning.errors import UserError, cores
from txl_lightning.registry import load_guests

INDENT = 35
LIBRARIES = (
    "torch",
    "lightning",
    "hydra-core",
    "omegaconf",
    "wandb",
    "numpy",
    "datasets",
    "tokenizers",
    "safetensors",
)
VARIABLES = ("TXL_", "OMP_", "MKL_", "CUDA_", "HYDRA_")


def usage() -> str:
    """Return the text for `txl --help`: every command with its purpose."""
    lines = ["usage: txl COMMAND [overrides]", ""]
    for row in COMMANDS.values():
        words = f"  txl {row.usage}"
        if len(words) >= INDENT:
            lines.append(words)
            words = ""
        lines.append(f"{words:{INDENT}}  {row.summary}")
    lines.append(f"{'  txl env':{INDENT}}  versions and machine, for a report of a problem")
    lines.append("")
    lines.append(
        "txl COMMAND --help lists the options of a command, txl --version says the version."
    )
    return "\n".join(lines)


def environment() -> str:
    """Return the versions of this package and its libraries, the machine and the variables."""
    from txl_lightning.reporting import gpus, processor

    lines = [f"txl_lightning {__version__} in {os.path.dirname(__file__)}"]
    lines.append(f"Python {sys.version.split()[0]}")
    lines.append(platform.platform())
    lines.append(f"{processor()}, {cores()} cores")
    lines.extend(gpus())
    installed = [distribution(name) for name in LIBRARIES]
    lines.append(
        ", ".join(f"{library.metadata['Name']} {library.version}" for library in installed)
    )
    for name in sorted(os.environ):
        if name.startswith(VARIABLES):
            lines.append(f"{name}={os.environ[name]}")
    return "\n".join(lines)


def show(text: str) -> None:
    """Print a text. A reader that stops reading, such as `head`, is no error."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        # Python would complain about the pipe again when it ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def main() -> None:
    """Run the command line `txl COMMAND …` in `sys.argv`.

    Exit status: 0 on success, 2 with one line on bad input, 1 if a job in a multirun failed, and 128 + the signal's
    number if a signal ended the command (130 after Ctrl-C).
    """
    words = sys.argv[1:]
    command = words[0] if words else ""
    if command == "env":
        show(environment())
    elif "--version" in words:
        show(f"txl_lightning {__version__}")
    elif command == "-sc":  # Hydra's completion script knows no commands
        complete(words)
    else:
        run(command, words[1:])


def run(name: str, words: list[str]) -> None:
    """Run one command with the words typed after its name, or show the help."""
    try:
        load_guests()
        if name in ("", "-h", "--help", "help"):
            show(usage())
            sys.exit(0 if name else 2)
        if name not in COMMANDS:
            from difflib import get_close_matches

            near = get_close_matches(name, COMMANDS, n=1)
            if near:
                raise UserError(f"unknown command {name!r}, did you mean {near[0]}?")
            raise UserError(f"unknown command {name!r}: must be one of {', '.join(COMMANDS)}")
        # Importing Hydra takes a quarter second. Help does not need it.
        from txl_lightning.application import run_command
    except UserError as error:
        print(f"txl: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("txl: interrupted", file=sys.stderr)
        sys.exit(128 + signal.SIGINT)
    run_command(COMMANDS[name], words)


def complete(words: list[str]) -> None:
    """Answer Hydra's completion script: the commands, or the typed command's options.

    The script hands over the typed line in COMP_LINE.
    """
    program, _, line = os.environ.get("COMP_LINE", "txl train ").partition(" ")
    name, space, rest = line.lstrip().partition(" ")
    if not space or name not in COMMANDS:
        show(" ".join(COMMANDS))
        return
    from txl_lightning.application import completions

    show(completions(COMMANDS[name], words, f"{program} {rest}"))


if __name__ == "__main__":
    main()
