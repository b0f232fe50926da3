"""Freed blocks are kept for the next tensors: Linux clears each page that it lends again."""

import platform
import subprocess
import sys

import pytest

PAGE_FAULTS = """
import resource, sys, torch
from txl_lightning.ranks import keep_freed_memory
if sys.argv[1] == "kept":
    keep_freed_memory()
for _ in range(20):
    torch.ones(10_000_000)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    torch.ones(10_000_000)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def page_faults(which: str) -> int:
    """Return the number of pages that Linux lent for 20 tensors of 40 MB, after as many others."""
    command = [sys.executable, "-c", PAGE_FAULTS, which]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the setting is glibc's")
def test_a_large_block_is_lent_once() -> None:
    kept = page_faults("kept")
    returned = page_faults("returned")
    assert returned > 10 * (kept + 1)
