"""The LightningModule carries memories: apart, in order, and as values."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from txl_lightning import Memory, TransformerXL, TransformerXLConfig
from txl_lightning.config.schemas import OptimizerConfig
from txl_lightning.data.streams import OrderedStreams, Segment
from txl_lightning.model.inference.cached import CachedTransformerXL
from txl_lightning.training.module import LanguageModelModule

CONFIG = TransformerXLConfig(vocab_size=20, n_layer=2, d_model=8, n_head=2, d_head=4, d_inner=8, mem_len=6, dropout=0.0)


@pytest.fixture
def module() -> LanguageModelModule:
    torch.manual_seed(0)
    lengths = {"mem_len": 9, "same_length": True}
    return LanguageModelModule(
        TransformerXL(CONFIG), OptimizerConfig(name="adam", lr=1e-3), 10, evaluation_lengths=lengths
    )


@pytest.fixture
def streams() -> OrderedStreams:
    tokens = torch.randint(20, (90,), generator=torch.Generator().manual_seed(1)).numpy()
    return OrderedStreams(tokens, batch_size=3, segment_len=6)


def test_training_carries_the_memory_and_starts_afresh_at_an_epoch(
    module: LanguageModelModule, streams: OrderedStreams
) -> None:
    first_epoch = [module.training_step(segment, i).item() for i, segment in enumerate(streams)]
    memory, expected = None, []
    for segment in streams:
        nll, memory = module.model.score(segment.tokens, segment.targets, memory)
        expected.append(nll.mean().item())
    assert first_epoch == expected
    assert [module.training_step(segment, i).item() for i, segment in enumerate(streams)] == expected


@pytest.mark.parametrize(("length", "counted"), [(6, slice(3, 6)), (5, slice(2, 5)), (1, slice(0, 1))])
def test_half_loss_is_of_the_last_half_in_training_only(
    module: LanguageModelModule, length: int, counted: slice
) -> None:
    tokens = torch.arange(2 * (length + 1)).view(2, -1) % 20
    segment = Segment(tokens[:, :-1], tokens[:, 1:], number=0)
    nll, _ = module.model.score(segment.tokens, segment.targets)
    assert module.training_step(segment, 0).item() == pytest.approx(nll.mean().item())
    module.half_loss = True
    assert module.training_step(segment, 0).item() == pytest.approx(nll[:, counted].mean().item())
    module.evaluation_lengths = {}
    module.validation_step(segment, 0)
    assert float(module.losses["val"].compute()[0]) == pytest.approx(nll.mean().item())


def test_validation_has_lengths_and_a_memory_of_its_own(module: LanguageModelModule, streams: OrderedStreams) -> None:
    module.training_step(streams[0], 0)
    training_memory = module.training_memory.memory
    assert training_memory is not None
    before = training_memory.states.clone()
    with torch.no_grad():
        for i, segment in enumerate(streams):
            module.validation_step(segment, i)
    evaluation_memory = module.evaluation_memory.memory
    assert evaluation_memory is not None
    assert (training_memory.length, evaluation_memory.filled) == (6, 9)
    assert module.training_memory.memory is training_memory
    assert torch.equal(training_memory.states, before)
    assert module.model.config == CONFIG


def test_validation_caches_keys_and_values_and_has_the_losses_of_the_model(
    module: LanguageModelModule, streams: OrderedStreams
) -> None:
    for change in (0.0, 0.1):  # each validation has the weights of its time
        with torch.no_grad():
            module.model.layers[0].feed_forward[0].weight.add_(change)
            memory, expected = None, []
            for i, segment in enumerate(streams):
                module.validation_step(segment, i)
                model = module.model.with_lengths(**module.evaluation_lengths)
                nll, memory = model.score(segment.tokens, segment.targets, memory)
                expected.append(nll.double().sum())
        assert isinstance(module._evaluation_score.__self__, CachedTransformerXL)
        nll, tokens, _ = module.losses["val"].compute()
        assert float(nll) == pytest.approx(float(sum(expected) / tokens), rel=1e-6)
        module._evaluation_end("val")


@pytest.mark.parametrize("mem_len", [0, 6])
def test_a_validation_that_has_begun_adds_no_weights(streams: OrderedStreams, mem_len: int) -> None:
    model = TransformerXL(replace(CONFIG, mem_len=mem_len))
    module = LanguageModelModule(model, OptimizerConfig(name="adam", lr=1e-3), 10)
    names = list(module.state_dict())
    module.validation_step(streams[0], 0)
    assert list(module.state_dict()) == names


def test_segments_out_of_order_are_refused(module: LanguageModelModule, streams: OrderedStreams) -> None:
    module.training_step(streams[0], 0)
    with pytest.raises(RuntimeError, match="expected segment 1, got segment 2"):
        module.training_step(streams[2], 1)


def test_no_memory_is_a_buffer_or_in_the_state_dict(module: LanguageModelModule, streams: OrderedStreams) -> None:
    module.training_step(streams[0], 0)
    module.validation_step(streams[0], 0)
    memory = module.training_memory.memory
    assert isinstance(memory, Memory)
    shapes = {tuple(memory.states.shape), tuple(memory.states[0].shape)}
    held = [*module.buffers(), *module.state_dict().values()]
    assert not [tensor for tensor in held if tuple(tensor.shape) in shapes]
    assert [name for name, _ in module.named_buffers() if "memory" in name] == []


def test_the_memory_returns_from_a_checkpoint(module: LanguageModelModule, streams: OrderedStreams) -> None:
    checkpoint: dict[str, object] = {}
    for i in range(2):
        module.training_step(streams[i], i)
    module.on_save_checkpoint(checkpoint)
    expected = module.training_step(streams[2], 2).item()
    other = LanguageModelModule(module.model, module.optimizer_config, 10)
    other.on_load_checkpoint(checkpoint)
    assert other.training_step(streams[2], 2).item() == expected


def test_compiled_training_compiles_the_full_memory_only(streams: OrderedStreams) -> None:
    """How much of a memory is filled is a number that compiled code depends on."""
    module = LanguageModelModule(
        TransformerXL(replace(CONFIG, mem_len=9)), OptimizerConfig(name="adam", lr=1e-3), 10, compile=True
    )
    scored, filled = module.model.score, []

    def score(tokens: Tensor, targets: Tensor, memory: Memory) -> object:
        filled.append(memory.filled)
        return scored(tokens, targets, memory)

    module.score = score
    for i in range(4):
        module.training_step(streams[i], i)
    assert filled == [9, 9]  # segments of 6: the first begins with 0 states, the second with 6


def test_compiled_training_does_not_compile_the_last_segment_of_an_epoch(streams: OrderedStreams) -> None:
    model = TransformerXL(replace(CONFIG, mem_len=0))
    module = LanguageModelModule(model, OptimizerConfig(name="adam", lr=1e-3), 10, compile=True)
    scored, lengths = model.score, []

    def score(tokens: Tensor, targets: Tensor, memory: Memory | None) -> object:
        lengths.append(tokens.shape[1])
        return scored(tokens, targets, memory)

    module.score = score
    for _epoch in range(2):
        for i, segment in enumerate(streams):
            module.training_step(segment, i)
    assert [segment.tokens.shape[1] for segment in streams] == [6, 6, 6, 6, 5]
    assert lengths == [6] * 8


def test_clipping_is_by_global_norm_and_the_norm_is_kept(module: LanguageModelModule, streams: OrderedStreams) -> None:
    module.training_step(streams[0], 0).backward()
    norm = torch.stack([p.grad.norm() for p in module.parameters()]).norm()
    module.optimizer_config.clip_norm = float(norm) / 2
    module.configure_gradient_clipping(torch.optim.SGD(module.parameters()))
    clipped = torch.stack([p.grad.norm() for p in module.parameters()]).norm()
    assert float(module.gradient_norm) == pytest.approx(float(norm))
    assert float(clipped) == pytest.approx(float(norm) / 2, rel=1e-4)


def test_bytes_are_counted_without_float64_which_some_devices_lack(module: LanguageModelModule) -> None:
    module.byte_lengths_V = torch.tensor([1, 3, -1])
    counted = module._count_bytes(torch.tensor([[0, -2, 1]]))
    assert isinstance(counted, torch.Tensor)
    assert (counted.dtype, float(counted)) == (torch.float32, 7)
    assert math.isnan(module._count_bytes(torch.tensor([[0, 2]])))
