"""The command `txl` in this process: as typed, without the seconds that importing torch takes."""

import contextlib
import io
import logging
import os
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple
from unittest.mock import patch

import torch

from txl_lightning.cli import main

IGNORED_WARNINGS = (DeprecationWarning, PendingDeprecationWarning, ImportWarning, ResourceWarning)


class Ended(NamedTuple):
    """Exit status, standard output and standard error of a command."""

    status: int
    out: str
    err: str


def run_txl(*words: str, directory: Path | None = None) -> Ended:
    """Run `txl WORDS…` in `directory` (default: the current one) and restore this process.

    Warnings are shown on standard error, as the command would show them, not raised.
    """
    out = io.StringIO()
    err = io.StringIO()
    status = 0
    with (
        _process_restored(directory),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        patch.object(sys, "argv", ["txl", *words]),
    ):
        try:
            main()
        except SystemExit as ended:
            status = _exit_status(ended)
    return Ended(status, out.getvalue(), err.getvalue())


def success(*words: str, directory: Path | None = None) -> Ended:
    """Run `txl WORDS…`, which must end with status 0."""
    done = run_txl(*words, directory=directory)
    assert done.status == 0, done.err
    return done


def refusal(*words: str, directory: Path | None = None) -> str:
    """Run `txl WORDS…`, which must end with status 2 and a single line, and return the line."""
    done = run_txl(*words, directory=directory)
    assert done.status == 2, done
    assert done.out == ""
    assert done.err.count("\n") == 1, done.err
    return done.err


def _exit_status(ended: SystemExit) -> int:
    if ended.code is None:
        return 0
    if isinstance(ended.code, int):
        return ended.code
    return 1


@contextlib.contextmanager
def _process_restored(directory: Path | None) -> Iterator[None]:
    working_directory = Path.cwd()
    threads = torch.get_num_threads()
    logger = logging.getLogger()
    with (
        patch.dict(os.environ),
        patch.object(logger, "handlers", list(logger.handlers)),
        patch.object(logger, "level", logger.level),
        torch.random.fork_rng([]),
        warnings.catch_warnings(),
    ):
        warnings.resetwarnings()
        for kind in IGNORED_WARNINGS:
            warnings.simplefilter("ignore", kind)
        if directory is not None:
            os.chdir(directory)
        try:
            yield
        finally:
            os.chdir(working_directory)
            torch.set_num_threads(threads)
