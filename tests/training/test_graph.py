"""A replayed step on the CPU: the memory stays in one place, the numbers are the same, and who forbids it is named."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.training.small_run import add_gradients, bare_module, tiny_config
from txl_lightning import TransformerXL, TransformerXLConfig
from txl_lightning.data.streams import Batch
from txl_lightning.training.checks import options_without_effect
from txl_lightning.training.compilation import StaticMemory, why_no_graph
from txl_lightning.training.module import LanguageModelModule
from txl_lightning.training.run import train

SIZES = {"vocab_size": 11, "n_layer": 2, "d_model": 8, "n_head": 2, "d_head": 4, "d_inner": 12, "mem_len": 6}


def trained(static_memory: StaticMemory | None, steps: int = 8) -> tuple[list[Tensor], list[int]]:
    """Losses, gradients' norms and weights, and the address of the memory after each step."""
    torch.manual_seed(3)
    model = TransformerXL(TransformerXLConfig(**SIZES, dropout=0.2, attention_dropout=0.2)).train()  # type: ignore[arg-type]
    module, numbers, places = bare_module(model, compile=True), [], []
    module.static_memory = static_memory

    def score(tokens: Tensor, targets: Tensor, memory: Any) -> Any:  # uncompiled: the same operations
        places.append(memory.states.data_ptr())
        return model.score(tokens, targets, memory)

    module.score = score
    made = module.configure_optimizers()
    optimizer, schedule = made["optimizer"], made["lr_scheduler"]["scheduler"]
    tokens = torch.randint(11, (3, 4 * steps + 1))
    for number in range(steps):
        window = tokens[:, 4 * number : 4 * number + 5]
        optimizer.zero_grad()
        add_gradients(module, Batch(window[:, :-1], window[:, 1:], number))
        module.configure_gradient_clipping(optimizer)
        numbers += [module.loss, module.gradient_norm.detach(), torch.tensor(optimizer.param_groups[0]["lr"])]
        optimizer.step()
        schedule.step()
    return [*numbers, module.training_memory.value.states, *model.parameters()], places


def test_steps_with_the_memory_in_one_place_are_the_same_to_the_bit() -> None:
    """Dropout, the learning rate and the memory move on from step to step."""
    (without, _), (with_place, places) = trained(None), trained(StaticMemory())
    assert all(torch.equal(one, other) for one, other in zip(without, with_place, strict=True))
    assert len(set(places)) == 1
    assert len({float(loss) for loss in with_place[:24:3]}) == 8


def test_what_a_replay_overwrites_is_no_memory() -> None:
    """A memory of a checkpoint is put where the graph reads it, and one of another shape elsewhere."""
    model = TransformerXL(TransformerXLConfig(**SIZES))  # type: ignore[arg-type]
    place, memory = StaticMemory(), model.start_memory(3, static=True)
    kept = place.put(memory)
    result = replace(memory, states=memory.states + 1)
    assert place.put(result).states is kept.states
    result.states.zero_()
    assert (kept.states == 1).all()
    assert place.put(kept).states is kept.states
    assert place.put(model.start_memory(2, static=True)).batch_size == 2


COMPILED = ("trainer.compile=true", "trainer.graph=true", "trainer.accelerator=gpu")
FORBIDDEN = {
    "trainer.compile=true": "trainer.compile=false",
    "trainer.accelerator=gpu": "trainer.accelerator=cpu",
    "trainer.callbacks": "trainer.callbacks=[{_target_: lightning.pytorch.callbacks.Timer}]",
    "trainer.stream_groups": "trainer.stream_groups=2",
    "memory.gradient_segments": "memory.gradient_segments=1",
    "several processes": "trainer.devices=2",
}


def test_one_line_says_what_forbids_the_graph(tmp_path: Path) -> None:
    for reason, word in FORBIDDEN.items():
        said = options_without_effect(tiny_config(tmp_path, *COMPILED, word))
        (line,) = [line for line in said if line.startswith("trainer.graph=true has no effect")]
        assert reason in line
    assert why_no_graph(tiny_config(tmp_path, *COMPILED)) is None
    assert options_without_effect(tiny_config(tmp_path, *COMPILED)) == []


def test_a_run_whose_step_is_replayed_trains_saves_and_resumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the CPU torch does not capture: the run shows that everything around it works."""
    made = LanguageModelModule.__init__

    def with_place(module: LanguageModelModule, *args: Any, **options: Any) -> None:
        made(module, *args, **options)
        module.static_memory = StaticMemory() if module.config.trainer.graph else None

    monkeypatch.setattr(LanguageModelModule, "__init__", with_place)
    losses = []
    for graph in ("false", "true"):
        words = (f"trainer.graph={graph}", "model.dropout=0.1", "resume=auto")
        for steps in (6, 9):
            found = train(tiny_config(tmp_path, *words, f"trainer.max_steps={steps}"), tmp_path / graph)
        losses.append({name: value for name, value in found.items() if "nll" in name})
    assert losses[0] == losses[1] != {}
