"""Encodings and term subsets, with and without memory."""

import pytest
import torch

from tests.model.tiny_model import ENCODINGS, random_stream, score_segments, tiny_model


@pytest.mark.parametrize("options", ENCODINGS.values(), ids=str)
def test_every_encoding_uses_its_memory_and_keeps_it_as_it_was_computed(
    options: dict[str, object],
) -> None:
    model = tiny_model(**options, mem_len=4)
    stream = random_stream(2, 9)
    inputs: list[torch.Tensor] = []
    for layer in model.layers:
        layer.register_forward_pre_hook(lambda _, arguments: inputs.append(arguments[0]))
    with_memory, memory = score_segments(model, stream, 4)
    kept = [*inputs[-2:]]
    assert torch.equal(memory.states, torch.stack(kept)), (
        "the inputs of the layers in the last segment, nothing added"
    )
    without, _ = model.score(stream[:, 4:8], stream[:, 5:9])
    assert not torch.allclose(with_memory[:, 4:], without)
