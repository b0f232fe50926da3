"""One thread, checked shapes, reproducible examples, signals as a terminal has them."""

import signal

import jaxtyping
import torch
from hypothesis import settings

# Before the package is imported anywhere: from here on every annotated shape of the model is checked.
jaxtyping.install_import_hook("txl_lightning.model", "beartype.beartype")

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
