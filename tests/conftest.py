"""One thread, checked shapes, reproducible examples; Triton's interpreter where there is no GPU."""

import os

import jaxtyping
import torch
from hypothesis import settings

# Before anything imports triton, whose own functions are made for the interpreter or for a GPU at its import.
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")

# Before the package is imported anywhere: from here on every annotated shape of the model is checked.
# But not Triton's kernels, whose functions are text for its compiler.
hook = jaxtyping.install_import_hook("txl_lightning.model", "beartype.beartype").hook
of_the_model = hook.should_instrument
hook.should_instrument = lambda module: of_the_model(module) and not module.endswith(".triton_kernels")

torch.set_num_threads(1)

settings.register_profile("ci", derandomize=True, deadline=None)
settings.load_profile("ci")
