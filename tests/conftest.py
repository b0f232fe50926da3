"""One thread, checked shapes, reproducible examples, signals as a terminal has them."""

import signal
from pathlib import Path

import jaxtyping
import torch
from hypothesis import settings

# Before the package is imported anywhere: from here on every annotated shape of the model is checked. A name stands for
# all below it.
ROOT = Path(__file__).parents[1]
MODULES = [path for pattern in ("[!_]*", "kernels/[!_]*") for path in ROOT.glob(f"txl_lightning/model/{pattern}")]
CHECKED = [path.relative_to(ROOT).with_suffix("") for path in MODULES if path.stem != "kernels"]
jaxtyping.install_import_hook([".".join(path.parts) for path in CHECKED], "beartype.beartype")

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
