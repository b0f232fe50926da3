"""One thread, reproducible examples, signals as a terminal has them; shapes are checked with `--shapes`."""

import signal
from pathlib import Path

import jaxtyping
import pytest
import torch
from hypothesis import settings

ROOT = Path(__file__).parents[1]
MODEL = ROOT / "txl_lightning/model"

# Tests with the marker `numerics`: folders, files, and tests of a file. About 60 s of CPU time.
NUMERICS = (
    "tests/model/",
    "tests/variants/",
    "tests/gpu_path/test_attention.py",
    "tests/data/test_streams.py",
    "tests/training/test_module.py",
    "tests/training/test_optimizers.py",
    "tests/evaluation/test_losses.py",
    "tests/evaluation/test_protocol.py",
    "tests/recl/test_effective_context.py",
    # One resumed run, and commands from end to end.
    "tests/training/test_run.py::test_every_arm_trains_is_resumed_and_loaded",
    "tests/evaluation/test_evaluate.py::test_a_checkpoint_scores_what_its_run_did",
    "tests/evaluation/test_generate.py::test_every_kind_of_model_continues_a_prompt",
    "tests/evaluation/test_attention.py::test_the_maps_of_every_head",
    "tests/recl/test_command.py::test_losses_are_those_of_single_windows",
    "tests/checkpoints/convert/test_convert_command.py::test_there_and_back_again_is_the_same_model",
)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--shapes`: it costs two thirds of the time of tests/model, so only `make test-shapes` gives it."""
    parser.addoption(
        "--shapes", action="store_true", help="check every annotated shape of the model"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Check shapes from here on: the package is not imported yet."""
    if config.getoption("--shapes"):
        jaxtyping.install_import_hook(modules_with_checked_shapes(), "beartype.beartype")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of NUMERICS."""
    for item in items:
        if item.nodeid.startswith(NUMERICS):
            item.add_marker(pytest.mark.numerics)


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
