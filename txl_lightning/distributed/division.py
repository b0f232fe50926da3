"""Work divided over the processes of `torch.distributed`; without it, everything is done here."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

import torch.distributed as dist

T = TypeVar("T")


def rank_and_world_size() -> tuple[int, int]:
    """r and W of this process; 0 and 1 on its own."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return 0, 1


def gathered(part: T) -> list[T]:
    """The parts of all ranks, in their order, on every rank. All ranks must call it."""
    _, world_size = rank_and_world_size()
    if world_size == 1:
        return [part]
    parts: list[T] = [part] * world_size
    dist.all_gather_object(parts, part)
    return parts


@contextmanager
def processes() -> Iterator[None]:
    """The process group that a launcher asks for (RANK and WORLD_SIZE, as torchrun sets them), if none is there.

    Its backend is gloo: what the ranks exchange here are losses in main memory.
    """
    starts_here = dist.is_available() and not dist.is_initialized() and int(os.environ.get("WORLD_SIZE", "1")) > 1
    if starts_here:
        dist.init_process_group("gloo")
    try:
        yield
    finally:
        if starts_here:
            dist.destroy_process_group()
