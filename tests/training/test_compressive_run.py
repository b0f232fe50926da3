"""Training with a compressed memory: two losses, gradients apart, chunks of columns, resume."""

import csv
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.training.recorded_run import recorded_losses, recorded_run
from tests.training.small_run import bare_module, tiny_config
from txl_lightning import TransformerXL, TransformerXLConfig
from txl_lightning.config.schemas import plain
from txl_lightning.data.streams import OrderedStreams
from txl_lightning.model.compression import CompressiveMemory
from txl_lightning.runs.storage import read_file
from txl_lightning.training.module import LanguageModelModule, alike, choose
from txl_lightning.training.run import train

COMPRESSIVE = ("memory=compressive", "memory.rate=2")
CONFIG = TransformerXLConfig(
    **{"vocab_size": 20, "n_layer": 2, "d_model": 8, "n_head": 2, "d_head": 4, "d_inner": 8, "dropout": 0.0},
    **{"mem_len": 6, "compressed_len": 3, "compression": "conv", "compression_rate": 2},
)
STREAMS = OrderedStreams(
    torch.randint(20, (90,), generator=torch.Generator().manual_seed(1)).numpy(), batch_size=3, segment_len=6
)


def module_of(compile: bool = False, **options: Any) -> LanguageModelModule:
    torch.manual_seed(0)
    return bare_module(TransformerXL(replace(CONFIG, **options)), compile=compile)


def gradients(module: LanguageModelModule) -> dict[str, Tensor]:
    """Gradients of the third segment, after the module clipped them."""
    for i in range(3):
        module.zero_grad()
        module.add_gradients(STREAMS[i])
    module.on_before_optimizer_step(torch.optim.SGD(module.parameters()))
    return {name: parameter.grad for name, parameter in module.model.named_parameters() if parameter.grad is not None}


def test_the_compression_loss_changes_no_gradient_of_the_transformer_not_even_by_clipping() -> None:
    with_loss = gradients(module_of())
    module = module_of()
    nll, memory = 0.0, None
    for i in range(3):
        nll, memory = module.model.score(STREAMS[i].tokens, STREAMS[i].targets, memory)
    nll.mean().backward()
    torch.nn.utils.clip_grad_norm_(module.parameters(), 1e-2)
    expected = {name: p.grad for name, p in module.model.named_parameters() if p.grad is not None}
    assert with_loss.keys() - expected.keys() == {f"compressor.functions.{n}.convolution.weight" for n in range(2)}
    assert all(torch.equal(with_loss[name], gradient) for name, gradient in expected.items())
    compressor = [grad for name, grad in with_loss.items() if name not in expected]
    norm = torch.stack([grad.norm() for grad in compressor]).norm()
    assert 0 < float(norm) <= 1e-2 * 1.0001


def test_the_loss_of_the_tokens_is_kept_apart_and_the_memory_holds_no_graph() -> None:
    module, totals = module_of(), []
    module.manual_backward = totals.append  # type: ignore[assignment]
    for i in range(3):
        module.add_gradients(STREAMS[i])
    assert module.compression_loss is not None
    assert totals[-1].item() == pytest.approx(float(module.loss + module.compression_loss))
    assert module.compression_loss > 0
    memory = module.training_memory.memory
    assert isinstance(memory, CompressiveMemory)
    assert memory.compression_loss is None


@pytest.mark.parametrize("loss", ["tokens", "compressor"])
def test_a_step_whose_gradient_is_not_finite_is_skipped(loss: str) -> None:
    module = module_of()
    module.add_gradients(STREAMS[0])
    before = module.training_memory.memory
    module.add_gradients(STREAMS[1])
    name = "encoding.u" if loss == "tokens" else "compressor.functions.1.convolution.weight"
    module.model.get_parameter(name).grad.fill_(float("nan"))  # type: ignore[union-attr]
    module.trainer = SimpleNamespace(precision_plugin=None)  # type: ignore[assignment]
    module.on_before_optimizer_step(torch.optim.SGD(module.parameters()))
    assert bool(module.step_skipped)
    assert torch.equal(module.training_memory.memory.states, before.states)
    assert all(parameter.grad is None for parameter in module.parameters())


def test_a_memory_is_chosen_on_the_device() -> None:
    memories, memory = [], None
    for segment in list(STREAMS)[:-1]:  # the last one is shorter
        _, memory = module_of().model.score(segment.tokens, segment.targets, memory)
        memories.append(memory)
    assert not alike(memories[0], memories[1])
    assert alike(memories[-2], memories[-1])
    for condition, expected in ((True, memories[-2]), (False, memories[-1])):
        chosen = choose(torch.tensor(condition), memories[-2], memories[-1])
        assert isinstance(chosen, CompressiveMemory)
        assert torch.equal(chosen.states, expected.states)


@pytest.mark.parametrize("options", [{}, {"compression": "dilated", "mem_len": 8}])
def test_compiled_training_compiles_full_memories_only_and_computes_the_same(options: dict[str, object]) -> None:
    """Slots that were never written would be compressed as well, and change the gradient of the compressor."""
    plain_module, compiled = module_of(**options), module_of(compile=True, **options)
    lengths = []

    def score(tokens: Tensor, targets: Tensor, memory: CompressiveMemory) -> object:
        lengths.append((memory.length, memory.n_compressed))
        return compiled.model.score(tokens, targets, memory)

    compiled.score = score
    for i in range(4):
        for module in (plain_module, compiled):
            module.zero_grad()
            module.add_gradients(STREAMS[i])
            module.on_before_optimizer_step(torch.optim.SGD(module.parameters()))
        for (name, ours), expected in zip(compiled.named_parameters(), plain_module.parameters(), strict=True):
            assert torch.equal(ours.grad, expected.grad), (i, name)  # type: ignore[arg-type]
    assert set(lengths) == {(compiled.model.config.memory_slots, 3)}


@pytest.mark.parametrize("compression", ["conv", pytest.param("most_used", marks=pytest.mark.slow)])
def test_chunks_of_columns_change_nothing(tmp_path: Path, compression: str) -> None:
    found, curves = {}, {}
    for chunks in (1, 4):
        options = (*COMPRESSIVE, f"memory.compression={compression}", f"trainer.column_chunks={chunks}")
        options = (*options, "trainer.val_every_n_steps=12", "evaluation.max_segments=2")
        config = tiny_config(
            tmp_path, *options, "trainer.precision=64-true", "logger=csv", "trainer.log_every_n_steps=1"
        )
        (tmp_path / str(chunks)).mkdir()
        recorded_run(plain(config), str(tmp_path / str(chunks)), {})
        found[chunks] = [loss for _, loss in recorded_losses(tmp_path / str(chunks))]
        curves[chunks] = compression_curve(tmp_path / str(chunks))
    assert found[1] == pytest.approx(found[4], abs=1e-10)
    assert curves[1] == pytest.approx(curves[4], abs=1e-10)
    assert curves[1][0] == 0.0
    assert min(curves[1][1:]) > 0.0


def compression_curve(directory: Path) -> list[float]:
    with (directory / "metrics.csv").open(newline="") as file:
        return [float(row["train/compression_loss"]) for row in csv.DictReader(file) if row["train/compression_loss"]]


@pytest.mark.parametrize(
    ("compression", "loss"),
    [("dilated", "reconstruction"), pytest.param("conv", "autoencoding", marks=pytest.mark.slow)],
)
def test_a_resumed_run_equals_an_uninterrupted_one_bit_for_bit(tmp_path: Path, compression: str, loss: str) -> None:
    options = (
        *(*COMPRESSIVE, f"memory.compression={compression}", f"memory.compression_loss={loss}", "model.dropout=0.2"),
        *("optimizer.schedule=constant", "evaluation.max_segments=2", "logger=csv", "trainer.log_every_n_steps=1"),
        "trainer.val_every_n_steps=20",
    )
    train(tiny_config(tmp_path, *options, "trainer.max_steps=14"), tmp_path / "whole")
    train(tiny_config(tmp_path, *options, "trainer.max_steps=5"), tmp_path / "second")
    metrics = train(tiny_config(tmp_path, *options, "trainer.max_steps=14", "resume=auto"), tmp_path / "second")
    assert metrics["steps"] == 14
    whole, resumed = (read_file(tmp_path / name / "checkpoints/last.ckpt") for name in ("whole", "second"))
    assert any(name.startswith("model.compressor.") for name in whole["state_dict"])
    assert all(torch.equal(tensor, resumed["state_dict"][name]) for name, tensor in whole["state_dict"].items())
    memory, expected = (contents["training_memory"]["memory"] for contents in (resumed, whole))
    assert torch.equal(memory.pop("states"), expected.pop("states"))
    assert memory == expected == {"filled": 16, "first_column": 0, "n_compressed": 8}
    curves = [compression_curve(tmp_path / name) for name in ("whole", "second")]
    assert curves[0] == curves[1]
    assert len(curves[0]) == 14
