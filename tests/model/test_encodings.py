"""Encodings and term subsets, with and without memory."""

import pytest
import torch

from tests.covering import product_of
from tests.model.tiny_model import ENCODINGS, SUBSETS, random_stream, score_segments, tiny_model


@pytest.mark.parametrize(("terms", "encoding", "mem_len"), product_of(SUBSETS, ["relative", "shaw"], [4, 4, 0]))
def test_every_subset_of_terms_trains_with_and_without_memory(terms: str, encoding: str, mem_len: int) -> None:
    model = tiny_model(encoding=encoding, terms=terms, mem_len=mem_len, table_len=9, dropout=0.1).train()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    stream, memory = random_stream(2, 13), None
    for start in (0, 4, 8):
        nll, memory = model.score(stream[:, start : start + 4], stream[:, start + 1 : start + 5], memory)
        assert nll.shape == (2, 4)
        assert bool(nll.isfinite().all())
        assert memory.states.shape == (2, 2, min(mem_len, start + 4), 8)
        optimizer.zero_grad()
        nll.mean().backward()
        optimizer.step()
    # Where softmax cancels u or v, the gradient is zero, not None.
    unreached = [name for name, parameter in model.named_parameters() if parameter.grad is None]
    assert unreached == []


@pytest.mark.parametrize("options", ENCODINGS.values(), ids=str)
def test_every_encoding_uses_its_memory_and_keeps_it_as_it_was_computed(options: dict[str, object]) -> None:
    model, stream = tiny_model(**options, mem_len=4), random_stream(2, 9)
    inputs: list[torch.Tensor] = []
    for layer in model.layers:
        layer.register_forward_pre_hook(lambda _, arguments: inputs.append(arguments[0]))
    with_memory, memory = score_segments(model, stream, 4)
    kept = [*inputs[-2:]]
    assert torch.equal(memory.states, torch.stack(kept)), "the inputs of the layers in the last segment, nothing added"
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
