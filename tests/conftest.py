"""One thread, reproducible examples, signals as a terminal has them; shapes are checked with `--shapes`."""

import signal
from pathlib import Path

import jaxtyping
import pytest
import torch
from hypothesis import settings

ROOT = Path(__file__).parents[1]
MODEL = ROOT / "txl_lightning/model"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--shapes`: it costs two thirds of the time of tests/model, so only `make test-shapes` gives it."""
    parser.addoption("--shapes", action="store_true", help="check every annotated shape of the model")


def pytest_configure(config: pytest.Config) -> None:
    """Check shapes from here on: the package is not imported yet."""
    if config.getoption("--shapes"):
        jaxtyping.install_import_hook(modules_with_checked_shapes(), "beartype.beartype")


def modules_with_checked_shapes() -> list[str]:
    """Return the modules of the model."""
    names = []
    for path in sorted(MODEL.glob("[!_]*")):  # a name stands for all modules below it
        names.append(".".join(path.relative_to(ROOT).with_suffix("").parts))
    return names


torch.set_num_threads(1)

# Ignored or blocked by who started the tests (`&` in a script, nohup, an init process), and so in all that they start.
# SIGHUP stays: who uses nohup wants the tests to go on; `tests.forked` restores it.
signal.pthread_sigmask(signal.SIG_SETMASK, ())
signal.signal(signal.SIGINT, signal.default_int_handler)
for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGCHLD):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, signal.SIG_DFL)

settings.register_profile("ci", derandomize=True, deadline=None)
settings.load_profile("ci")
