"""The program `txl`: help, versions, completion; every command is a Hydra application."""

from __future__ import annotations

import os
import platform
import signal
import sys
from difflib import get_close_matches
from importlib.metadata import version
from typing import NoReturn

from txl_lightning import __version__
from txl_lightning.errors import UserError, cores
from txl_lightning.registry import COMMANDS, load_guests

LIBRARIES = (
    "torch",
    "lightning",
    "hydra-core",
    "omegaconf",
    "wandb",
    "numpy",
    "tokenizers",
)


def usage() -> str:
    """Return the text for `txl --help`: every command with its purpose."""
    lines = ["usage: txl COMMAND [overrides]", ""]
    for row in COMMANDS.values():
        lines += [f"  txl {row.usage}", f"        {row.summary}"]
    lines += ["  txl env", "        versions and machine, for a report of a problem", ""]
    lines.append("txl COMMAND --help lists a command's options, txl --version says the version.")
    return "\n".join(lines)


def environment() -> str:
    """Return the versions of this package and its libraries, and the machine."""
    from txl_lightning.reporting import gpus, processor

    versions = [f"{name} {version(name)}" for name in LIBRARIES]
    lines = (
        f"txl_lightning {__version__} in {os.path.dirname(__file__)}",
        f"Python {platform.python_version()}",
        platform.platform(),
        f"{processor()}, {cores()} cores",
        *gpus(),
        ", ".join(versions),
    )
    return "\n".join(lines)


def main() -> None:
    """Run the command line `txl COMMAND …` in `sys.argv`.

    Exit status: 0 on success, 2 with one line on bad input, 1 if a job in a multirun failed, and 128 + the signal's
    number if a signal ended the command (130 after Ctrl-C).
    """
    try:
        run(sys.argv[1:])
    except BrokenPipeError:
        # A reader that stops reading, such as `head`, is no error. Python would complain again when it ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except KeyboardInterrupt as stopped:  # its argument is the signal, which `Jobs.run` names
        lines = (f"txl {sys.argv[1]}: interrupted", *stopped.args[1:])
        print(*lines, sep="; ", file=sys.stderr)
        sys.exit(128 + (stopped.args or (signal.SIGINT,))[0])


def run(words: list[str]) -> None:
    """Run the command that was typed, or show help, versions or completions."""
    name = words[0] if words else ""
    if name == "env":
        print(environment(), flush=True)
    elif "--version" in words:
        print(f"txl_lightning {__version__}", flush=True)
    elif name == "-sc":  # Hydra's completion script knows no commands
        complete(words)
    else:
        try:
            load_guests()
        except UserError as error:
            refuse(str(error))
        if name in ("", "-h", "--help", "help"):
            print(usage(), flush=True)
            sys.exit(0 if name else 2)
        if name not in COMMANDS:
            allowed = f"must be one of {', '.join(COMMANDS)}"
            for near in get_close_matches(name, COMMANDS, n=1):
                allowed = f"did you mean {near}?"
            refuse(f"unknown command {name!r}, {allowed}")
        # Hydra takes a quarter of a second to import. Help needs none of it.
        from txl_lightning.application import run_command

        run_command(COMMANDS[name], words[1:])


def refuse(line: str) -> NoReturn:
    """End the program with a line on stderr."""
    print(f"txl: {line}", file=sys.stderr)
    sys.exit(2)


def complete(words: list[str]) -> None:
    """Answer Hydra's completion script: the commands, or the typed command's options.

    The script hands over the typed line in COMP_LINE.
    """
    program, _, line = os.environ.get("COMP_LINE", "txl train ").partition(" ")
    name, space, rest = line.lstrip().partition(" ")
    if not space or name not in COMMANDS:
        print(*COMMANDS, flush=True)
        return
    from txl_lightning.application import completions

    os.environ["COMP_LINE"] = f"{program} {rest}"
    print(*completions(COMMANDS[name], words), flush=True)


if __name__ == "__main__":
    main()
