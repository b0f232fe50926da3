"""Training with a compressed memory: two losses, gradients apart, chunks of columns, resume."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.training.small_run import bare_module
from txl_lightning import TransformerXL, TransformerXLConfig
from txl_lightning.data.streams import OrderedStreams
from txl_lightning.model.compression import CompressiveMemory
from txl_lightning.training.module import LanguageModelModule

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
def test_a_gradient_that_is_not_finite_is_noted(loss: str) -> None:
    module = module_of()
    for i in range(2):
        module.add_gradients(STREAMS[i])
        module.on_before_optimizer_step(torch.optim.SGD(module.parameters()))
        assert bool(module.finite)
    name = "encoding.u" if loss == "tokens" else "compressor.functions.1.convolution.weight"
    module.model.get_parameter(name).grad.fill_(float("nan"))  # type: ignore[union-attr]
    module.on_before_optimizer_step(torch.optim.SGD(module.parameters()))
    assert not bool(module.finite)
