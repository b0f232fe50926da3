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


def refusal(*words: str, directory: Path | None = None) -> str:
    """Run `txl WORDS…`, which must end with status 2 and one line alone, and return the line."""
    done = run_txl(*words, directory=directory)
    assert (done.status, done.out, done.err.count("\n")) == (2, "", 1), done
    return done.err


@contextlib.contextmanager
def _as_before(directory: Path | None) -> Iterator[None]:
    arguments, variables, here, threads = sys.argv, dict(os.environ), Path.cwd(), torch.get_num_threads()
    logger, random_state = logging.getLogger(), torch.get_rng_state()
    handlers, level = list(logger.handlers), logger.level
    try:
        os.chdir(directory or here)
        with warnings.catch_warnings():
            warnings.resetwarnings()
            for kind in (DeprecationWarning, PendingDeprecationWarning, ImportWarning, ResourceWarning):
                warnings.simplefilter("ignore", kind)
            yield
    finally:
        logger.handlers, logger.level = handlers, level
        os.chdir(here)
        os.environ.clear()
        os.environ.update(variables)
        torch.set_num_threads(threads)
        torch.set_rng_state(random_state)
        sys.argv = arguments
