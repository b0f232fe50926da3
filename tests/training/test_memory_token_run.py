"""A run with memory tokens: resumed bit for bit, in chunks of columns, compiled or not."""

from contextlib import nullcontext
from pathlib import Path

import pytest
import torch

from tests.training.small_run import bare_module, tiny_config
from tests.training.test_compressive_run import STREAMS
from txl_lightning import TransformerXL, TransformerXLConfig
from txl_lightning.runs.storage import read_file
from txl_lightning.training.module import LanguageModelModule
from txl_lightning.training.run import train

SIZES = {"vocab_size": 20, "n_layer": 2, "d_model": 8, "n_head": 2, "d_head": 4, "d_inner": 8, "dropout": 0.0}
TOKENS = ("memory=tokens", "memory.n_tokens=3")
ARMS = {
    "tokens": TOKENS,
    "and states": (*TOKENS, "memory.segments=1", "memory.write_tokens=false", "memory.tokens_see_states=true"),
}


@pytest.mark.parametrize("arm", ["tokens", pytest.param("and states", marks=pytest.mark.slow)])
def test_a_resumed_run_equals_an_uninterrupted_one_bit_for_bit(tmp_path: Path, arm: str) -> None:
    options = (
        *(*ARMS[arm], "model.dropout=0.2", "optimizer.schedule=constant", "evaluation.max_segments=2"),
        *("logger=csv", "trainer.log_every_n_steps=1", "trainer.val_every_n_steps=20"),
    )
    train(tiny_config(tmp_path, *options, "trainer.max_steps=14"), tmp_path / "whole")
    train(tiny_config(tmp_path, *options, "trainer.max_steps=5"), tmp_path / "second")
    train(tiny_config(tmp_path, *options, "trainer.max_steps=14", "resume=auto"), tmp_path / "second")
    whole, resumed = (read_file(tmp_path / name / "checkpoints/last.ckpt") for name in ("whole", "second"))
    assert "model.memory_tokens.initial" in whole["state_dict"]
    assert all(torch.equal(tensor, resumed["state_dict"][name]) for name, tensor in whole["state_dict"].items())
    memory, expected = (contents["training_memory"]["memory"] for contents in (resumed, whole))
    assert memory.keys() == expected.keys() == {"states", "filled", "tokens_nBD", "first_column"}
    assert all(torch.equal(torch.as_tensor(memory[name]), torch.as_tensor(value)) for name, value in expected.items())
    tokens = memory["tokens_nBD"]
    assert (tokens.shape, tokens.untyped_storage().nbytes()) == ((3, 4, 64), tokens.nbytes)


def module_of(**trainer: object) -> LanguageModelModule:
    torch.manual_seed(0)
    return bare_module(TransformerXL(TransformerXLConfig(**SIZES, mem_len=6, n_tokens=3)), **trainer)


def test_chunks_of_columns_and_a_static_memory_change_nothing() -> None:
    modules = [module_of(), module_of(stream_groups=3), module_of(compile=True)]
    modules[2].score = modules[2].model.score
    modules[1]._gradients_of_this_rank = nullcontext  # type: ignore[method-assign]
    for i in range(4):
        for module in modules:
            module.zero_grad()
            module.add_gradients(STREAMS[i])
        for others in zip(*(module.parameters() for module in modules), strict=True):
            for other in others[1:]:
                torch.testing.assert_close(other.grad, others[0].grad, rtol=1e-4, atol=1e-6)
