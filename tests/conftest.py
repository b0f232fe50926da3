"""One thread, checked shapes, reproducible examples, signals as a terminal has them."""

import signal
from pathlib import Path

import jaxtyping
import torch
from hypothesis import settings

# Before the package is imported anywhere: from here on every annotated shape of the model is checked. Not in Triton's
# kernels, which are compiled from their source with the names around it.
PACKAGE = Path(__file__).parents[1] / "txl_lightning"
CHECKED = [path.relative_to(PACKAGE.parent).with_suffix("") for path in PACKAGE.glob("model/**/*.py")]
jaxtyping.install_import_hook(
    [".".join(path.parts) for path in CHECKED if path.name != "relative"], "beartype.beartype"
)

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
