"""Encodings and term subsets, with and without memory."""

import pytest
import torch

from tests.model.tiny_model import ENCODINGS, random_stream, score_segments, tiny_model


@pytest.mark.parametrize("options", ENCODINGS.values(), ids=str)
def test_every_encoding_uses_its_memory_and_keeps_it_as_it_was_computed(
    options: dict[str, object],
) -> None:
    model, stream = tiny_model(**options, mem_len=4), random_stream(2, 9)
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


@pytest.mark.parametrize("encoding", ["shaw", "al_rfou"])
def test_trained_tables_repeat_their_farthest_row(encoding: str) -> None:
    short, long = (tiny_model(encoding=encoding, table_len=n, mem_len=0) for n in (3, 7))
    state = short.state_dict()
    for name, tensor in state.items():
        if name in ("encoding.table", "encoding.distance_bias"):
            state[name] = torch.cat([tensor[:, :1].expand(-1, 4, *tensor.shape[2:]), tensor], dim=1)
    long.load_state_dict(state)
    tokens = random_stream(2, 7)
    torch.testing.assert_close(short(tokens)[0], long(tokens)[0], rtol=0, atol=1e-12)
