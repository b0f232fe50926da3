"""Without a GPU, Triton's kernels run in its interpreter; the variable must be set before triton is imported."""

import os

import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")
