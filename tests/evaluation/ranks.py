"""Several ranks of one run as threads of one process: each takes its part and gets the parts of all."""

import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier, local
from typing import Any, TypeVar

import pytest

Result = TypeVar("Result")


def on_ranks(world_size: int, measure: Callable[[], Result]) -> list[Result]:
    """Return the result of `measure` on every rank, in their order."""
    own, barrier, parts = local(), Barrier(world_size), [None] * world_size

    def all_gather(part: Any) -> list[Any]:
        parts[own.rank] = part
        barrier.wait(timeout=60)
        gathered = list(parts)
        barrier.wait(timeout=60)
        return gathered

    def on_rank(rank: int) -> Result:
        own.rank = rank
        return measure()

    with pytest.MonkeyPatch.context() as patch:
        for name, module in list(sys.modules.items()):
            if name.startswith("txl_lightning.evaluation") and hasattr(module, "all_gather"):
                patch.setattr(module, "all_gather", all_gather)
                patch.setattr(module, "rank_and_world_size", lambda: (own.rank, world_size))
        with ThreadPoolExecutor(world_size) as threads:
            return list(threads.map(on_rank, range(world_size)))
