"""Memory that a training segment takes for its backward pass, counted from the saved tensors."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from itertools import count, takewhile
from typing import Any

import torch

from txl_lightning.config.schemas import Config, from_plain, plain
from txl_lightning.runs.models import make_model

N_SYMBOLS = 256  # of the vocabulary: bytes
STEP = 8  # tokens by which segments grow


def saved_bytes(config: Config) -> int:
    """Return the bytes that autograd saves for one training segment in float32: all tensors but the weights, each once.

    The memory of the model is full, and the segment has the batch of the config.
    """
    return _saved_bytes(json.dumps(plain(replace(config, seed=1))))


@cache
def _saved_bytes(config_json: str) -> int:
    config = from_plain(json.loads(config_json))
    model: Any = make_model(config, N_SYMBOLS)
    memory = model.start_memory(config.data.batch_size, static=True)
    tokens_BT = torch.zeros(config.data.batch_size, config.data.segment_len, dtype=torch.long)
    saved: dict[int, int] = {}

    def note(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        saved[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        model.score(tokens_BT, tokens_BT, replace(memory, filled=memory.length))
    return sum(saved.values()) - sum(saved.get(p.data_ptr(), 0) for p in model.parameters())


def longest_segment(config: Config) -> int:
    """Return the longest segment, a multiple of 8, that takes no more memory without recurrence than `config` with it.

    It is at least as long as the segments of `config`.
    """

    def without(segment_len: int) -> Config:
        data, memory = replace(config.data, segment_len=segment_len), replace(config.memory, mem_len=0)
        return replace(config, data=data, memory=memory)

    own, available = config.data.segment_len, saved_bytes(config)
    longer = count(own // STEP * STEP + STEP, STEP)
    return max(takewhile(lambda length: saved_bytes(without(length)) <= available, longer), default=own)
