"""A setting of the C library: freed blocks stay with the process."""

import ctypes
import platform

KEPT_BYTES = 1 << 30
M_TRIM_THRESHOLD = -1  # numbers of glibc's mallopt(3)
M_MMAP_THRESHOLD = -3


def keep_freed_memory() -> None:
    """Let glibc keep up to 1 GiB of freed blocks for the next tensors.

    By default it returns each large block to Linux, which fills it with zeros before it lends it again: with logits of
    33 MB a training step on a CPU took 10 % longer (BENCHMARKS.md). Other systems and C libraries are left alone.
    """
    if platform.libc_ver()[0] != "glibc":
        return
    libc = ctypes.CDLL(None)
    libc.mallopt(M_TRIM_THRESHOLD, KEPT_BYTES)
    libc.mallopt(M_MMAP_THRESHOLD, KEPT_BYTES)
