"""The command `txl` in this process: the same as typed, without the seconds that importing torch takes."""

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


class Ended(NamedTuple):
    """Exit status, standard output and standard error of a command."""

    status: int
    out: str
    err: str


def run_txl(*words: str, directory: Path | None = None) -> Ended:
    """Run `txl WORDS…` in `directory` (default: the current one) and leave this process as it was.

    Warnings are shown on standard error, as the command would show them, not raised.
    """
    out, err = io.StringIO(), io.StringIO()
    status: object = 0
    with _as_before(directory), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        sys.argv = ["txl", *words]
        try:
            main()
        except SystemExit as ended:
            status = ended.code
    return Ended(status if isinstance(status, int) else 0 if status is None else 1, out.getvalue(), err.getvalue())


def success(*words: str, directory: Path | None = None) -> Ended:
    """Run `txl WORDS…`, which must end with status 0."""
    done = run_txl(*words, directory=directory)
    assert done.status == 0, done.err
    return done


def refusal(*words: str, directory: Path | None = None) -> str:
    """Run `txl WORDS…`, which must end with status 2 and one line alone, and return the line."""
    done = run_txl(*words, directory=directory)
    assert (done.status, done.out, done.err.count("\n")) == (2, "", 1), done
    return done.err


@contextlib.contextmanager
def _as_before(directory: Path | None) -> Iterator[None]:
    here, threads, logger = Path.cwd(), torch.get_num_threads(), logging.getLogger()
    of_process = patch.dict(os.environ), patch.object(sys, "argv"), torch.random.fork_rng([]), warnings.catch_warnings()
    of_logger = patch.object(logger, "handlers", [*logger.handlers]), patch.object(logger, "level", logger.level)
    with contextlib.ExitStack() as kept:
        for context in (*of_process, *of_logger):
            kept.enter_context(context)
        kept.callback(os.chdir, here)
        kept.callback(torch.set_num_threads, threads)
        os.chdir(directory or here)
        warnings.resetwarnings()
        for kind in (DeprecationWarning, PendingDeprecationWarning, ImportWarning, ResourceWarning):
            warnings.simplefilter("ignore", kind)
        yield
