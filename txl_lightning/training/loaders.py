"""Batches in ordered streams: what a loader may yield, stream groups, and a resumed run's position."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor
from torch.utils.data import DataLoader, RandomSampler

from txl_lightning.data.datamodule import StreamsDataModule
from txl_lightning.data.streams import Batch, Streams, part_of_streams
from txl_lightning.errors import UserError

EXPECTED = (
    "a loader yields Batch(tokens, targets, number), (tokens, targets) or {tokens: …, targets: …}, "
    "integers of shape [B, T] each"
)


class StreamGroups:
    """A rank's streams, yielded group by group: G batches for every segment, to accumulate gradients over.

    Args:
        streams: the rank's streams.
        n_groups: G, at most the number of streams.
    """

    def __init__(self, streams: Streams, n_groups: int) -> None:
        self.streams = streams
        self.n_groups = n_groups

    def __len__(self) -> int:
        return len(self.streams) * self.n_groups

    def __iter__(self) -> Iterator[Batch]:
        n_streams = len(self.streams.own)
        for segment in self.streams:
            for group in range(self.n_groups):
                first, end = part_of_streams(n_streams, group, self.n_groups)
                yield segment.streams(first, end)._replace(group=group)

    def state_dict(self) -> dict[str, int]:
        """Return the streams' position."""
        return self.streams.state_dict()

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Restore the streams' position."""
        self.streams.load_state_dict(state)


class GroupedStreamsDataModule(StreamsDataModule):
    """DataModule whose training streams are yielded in groups.

    Attributes:
        n_groups: groups that each rank's streams are split into.
    """

    n_groups = 1

    def train_dataloader(self) -> Any:
        streams = self.streams("train")
        if self.n_groups == 1:
            return streams
        return StreamGroups(streams, self.n_groups)


def groups_of(loader: Any) -> int:
    """Return how many batches a training loader yields for every segment."""
    return getattr(loader, "n_groups", 1)


def check_loader(loader: Any, world_size: int, in_order: bool) -> None:
    """Check that a loader yields whole batches, and the rank's streams.

    Args:
        loader: training, validation or test loader.
        world_size: number of processes.
        in_order: the model carries a memory from batch to batch.

    Raises:
        UserError: a DataLoader would join or shuffle batches, or the streams are divided over other ranks.
    """
    streams = getattr(loader, "streams", loader)
    if isinstance(streams, Streams) and streams.world_size != world_size:
        divided = f"Streams(…, rank=rank, world_size={streams.world_size})"
        raise UserError(
            f"{divided}: the Trainer has {world_size} processes, each with its part of the streams"
        )
    if not isinstance(loader, DataLoader):
        return
    if in_order and isinstance(loader.sampler, RandomSampler):
        raise UserError(
            "DataLoader(shuffle=True): must be False, every row continues its row of the batch before"
        )
    if loader.batch_sampler is not None and isinstance(next(iter(loader.dataset), None), Batch):
        raise UserError(
            f"DataLoader(batch_size={loader.batch_size}): must be batch_size=None, each item is a batch"
        )


def as_batch(batch: Any, number: int) -> Batch:
    """Return a loader's batch as a `Batch`.

    Args:
        batch: a `Batch`, a pair of tokens and targets, or a mapping with these names.
        number: the segment's number, for batches that do not say it.

    Raises:
        UserError: it is something else.
    """
    if isinstance(batch, Batch):
        return batch
    pair: Any = batch
    if isinstance(batch, Mapping):
        pair = (batch.get("tokens"), batch.get("targets"))
    if isinstance(pair, (tuple, list)) and len(pair) == 2:
        tokens, targets = pair
        if _is_tokens(tokens) and _is_tokens(targets):
            return Batch(tokens.long(), targets.long(), number)
    raise UserError(f"a batch is a {type(batch).__name__}: {EXPECTED}")


def _is_tokens(value: Any) -> bool:
    return isinstance(value, Tensor) and value.ndim == 2 and not value.is_floating_point()


def move_to(progress: Any, processed: int) -> None:
    """Move Lightning's batch counts, so that `processed` of them were trained."""
    distance = processed - progress.processed
    for name in ("ready", "started", "processed", "completed"):
        setattr(progress, name, getattr(progress, name) + distance)


def restore_position(loader: Any, n_batches: int) -> bool:
    """Let a loader's next iteration begin after `n_batches` in its epoch; return whether it can.

    Args:
        loader: training loader.
        n_batches: batches trained in the epoch; 0 after its last one.
    """
    if not isinstance(loader, (Streams, StreamGroups)):
        return hasattr(loader, "load_state_dict")  # Lightning has loaded its state
    state = loader.state_dict()
    position = n_batches // groups_of(loader)
    length = len(loader) // groups_of(loader)
    if state["position"] % length != position:  # also with another length
        loader.load_state_dict({**state, "position": position})
    return True
