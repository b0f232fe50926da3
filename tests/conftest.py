"""One thread, checked shapes, reproducible examples."""

import jaxtyping
import torch
from hypothesis import settings

# Before the package is imported anywhere: from here on every annotated shape of the model is checked.
jaxtyping.install_import_hook("txl_lightning.model", "beartype.beartype")

torch.set_num_threads(1)

settings.register_profile("ci", derandomize=True, deadline=None)
settings.load_profile("ci")
