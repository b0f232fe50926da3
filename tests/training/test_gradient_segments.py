"""Gradients through the memory: a step of several segments is one long segment with the same mask."""

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.model.tiny_model import (
    ENCODINGS,
    assert_close,
    random_stream,
    score_segments,
    tiny_model,
    unmarked,
)
from tests.training.small_run import add_gradients, bare_module
from txl_lightning import TransformerXL
from txl_lightning.data.streams import Batch
from txl_lightning.training.module import LanguageModelModule
from txl_lightning.training.scoring import scored_positions

T = 3


def batch_of(stream: Tensor) -> Batch:
    return Batch(
        stream[:, :-1],
        unmarked(stream)[:, 1:],
        number=0,
    )


def module_of(model: TransformerXL, **options: Any) -> LanguageModelModule:
    module = bare_module(model, segment_len=T, **options)
    module.trainer.global_step = 5
    return module


def gradients(model: torch.nn.Module) -> dict[str, Tensor]:
    found = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    return found


ARMS = {
    **{name: options for name, options in ENCODINGS.items() if name not in ("absolute", "al_rfou")},
    "same length": {"mem_len": 5, "same_length": True},
    "pre-norm": {"pre_norm": True, "untie_biases": True},
    "documents": {"memory_reset": "document"},
}
FAST = ("relative", "same length", "documents")


@pytest.mark.parametrize(
    "arm", [pytest.param(n, marks=() if n in FAST else pytest.mark.full) for n in ARMS]
)
@pytest.mark.parametrize("groups", [1, 2])
def test_a_step_of_several_segments_has_the_gradient_of_one_long_segment(arm, groups):
    model = tiny_model(**{"mem_len": 50, **ARMS[arm]})
    stream = random_stream(2, 4 * T + 1)
    if arm == "documents":
        stream[0, 5] = ~stream[0, 5]
    loss = add_gradients(
        module_of(model),
        batch_of(stream),
        groups,
    )
    found = gradients(model)
    expected = score_segments(model, stream, 4 * T)[0].mean()
    expected.backward()
    assert_close(
        [loss, found],
        [expected.detach(), gradients(model)],
        1e-10,
    )


def test_the_memory_after_a_step_has_the_states_of_single_segments_and_no_gradient():
    model = tiny_model(mem_len=4, ext_len=2)
    module = module_of(model)
    memory = None
    steps = batch_of(random_stream(2, 8 * T)).split(2 * T, 2)
    for number, step in enumerate(steps):  # the last one has two segments, of 3 and 2
        add_gradients(module, step._replace(number=number))
        for segment in step.split(T, 2):
            _, memory = model.score(
                segment.tokens,
                segment.targets,
                memory,
            )
        stored = module.training_memory.value
        assert torch.equal(stored.states, memory.states)
        assert stored.filled == memory.filled
        assert not stored.keeps_gradient
        assert not stored.states.requires_grad
    assert "keeps_gradient" not in stored.state_dict()


@pytest.mark.parametrize("loss", ["half", "random_half"])
def test_every_segment_of_a_step_counts_its_half(loss):
    model = tiny_model(mem_len=50)
    stream = random_stream(2, 2 * T + 1)
    module = module_of(model, loss=loss)
    add_gradients(module, batch_of(stream))
    nll, _ = score_segments(
        model,
        stream,
        2 * T,
    )
    counted = []
    for i, segment in enumerate(nll.split(T, dim=1)):
        counted.append(segment[:, scored_positions(loss, T, 1, 2 * 5 + i)])
    assert float(module.loss) == pytest.approx(torch.cat(counted, 1).mean().item(), abs=1e-12)
