"""Every route of attention beside the formula of section 3.3: outputs and gradients."""

from __future__ import annotations

from typing import Any
from unittest.mock import Mock

import pytest
import torch
from torch import Tensor, nn

from tests.model.attention_problems import (
    DEVICE,
    Problem,
    heads,
    heads_and_gradients,
    judge,
)
from tests.model.tiny_model import SUBSETS, assert_close, random_stream, score_segments, tiny_model
from txl_lightning import CachedTransformerXL
from txl_lightning.model import attention
from txl_lightning.model.attention import (
    AttentionInputs,
    attend,
    attend_as_written,
    attend_with_kernel,
)
from txl_lightning.model.layers import Dropout

LENGTHS = [
    Problem(T=1, M=40, filled=40, B=1),
    Problem(T=1, M=0, filled=0),
    Problem(T=16, M=0, filled=0),
    Problem(T=9, M=60, filled=17),
    Problem(T=9, M=60, filled=60),
    Problem(T=40, M=24, filled=3, attention_len=9),
    Problem(T=40, M=24, filled=24, attention_len=24),
    Problem(documents=True),
    Problem("ac", documents=True),
]
TABLES = [Problem(terms, table=True) for terms in ("abcd", "abd", "cd", "d")]
PROBLEMS = [Problem(terms) for terms in SUBSETS] + TABLES + LENGTHS
NO_DROPOUT = Dropout(0.0)
EXACT = {"rtol": 1e-11, "atol": 1e-11}
FEW = [Problem("abd"), *TABLES, *LENGTHS]
SINGLE = {"rtol": 1e-4, "atol": 1e-4}


def compare(problem: Problem, route: Any, compute: Any = heads_and_gradients) -> None:
    """Compare what a route computes with the judge; a GPU computes in float32."""
    expected = compute(problem, judge, torch.float64)
    dtype = torch.float64
    tolerances = EXACT
    if DEVICE == "cuda":
        dtype = torch.float32
        tolerances = SINGLE
    results = compute(
        problem,
        lambda inputs: route(inputs, NO_DROPOUT),
        dtype,
    )
    results = {name: x.double() for name, x in results.items()}
    torch.testing.assert_close(results, expected, **tolerances)


@pytest.mark.parametrize("problem", PROBLEMS, ids=str)
@pytest.mark.parametrize("route", [attend_as_written, attend_with_kernel])
def test_the_formula_as_written_and_torchs_kernel(route, problem):
    compare(problem, route)


@pytest.mark.parametrize("problem", FEW, ids=str)
def test_blocks_of_queries_in_training(problem, monkeypatch):
    sizes = {torch.float64: 8, torch.float32: 8}
    monkeypatch.setattr(attention, "TRAINING_BLOCK", sizes)
    compare(problem, attend)


@pytest.mark.parametrize("problem", FEW, ids=str)
def test_blocks_of_queries_without_gradient(problem, monkeypatch):
    monkeypatch.setattr(attention, "EVALUATION_BLOCK", 4)
    compare(problem, attend, heads)


@pytest.mark.skipif(DEVICE == "cuda", reason="groups are for the CPU")
@pytest.mark.parametrize(
    "problem",
    [
        Problem(T=9, M=60, filled=60),
        Problem("cd", table=True, T=9, M=60, filled=17),
    ],
    ids=str,
)
def test_groups_of_heads_with_mostly_memory(problem, monkeypatch):
    written = Mock(side_effect=attend_as_written)
    monkeypatch.setattr(attention, "EVALUATION_BLOCK", 4)
    monkeypatch.setattr(attention, "GROUP_BYTES", 1)
    monkeypatch.setattr(attention, "attend_as_written", written)
    compare(problem, attend, heads)
    groups = [len(call.args[0].q_HBTE) for call in written.call_args_list]
    assert groups == [1] * problem.H


@pytest.mark.skipif(DEVICE == "cuda", reason="blocks are for the CPU")
def test_blocks_in_bfloat16(monkeypatch):
    monkeypatch.setattr(attention, "TRAINING_BLOCK", {torch.bfloat16: 8})
    expected = heads_and_gradients(Problem(), judge, torch.bfloat16)
    results = heads_and_gradients(
        Problem(),
        lambda x: attend(x, NO_DROPOUT),
        torch.bfloat16,
    )
    for name, value in expected.items():
        largest = value.abs().max().item()
        torch.testing.assert_close(
            results[name],
            value,
            rtol=0.05,
            atol=0.05 * largest,
        )


def test_a_step_on_the_cpu_computes_the_scores_on_the_page(monkeypatch):
    scores = Mock(side_effect=attention.scores)
    monkeypatch.setattr(attention, "scores", scores)
    tiny_model(n_layer=3).train()(torch.zeros(1, 5, dtype=torch.int64))
    assert scores.call_count == 3


def test_elsewhere_torchs_kernel_computes(monkeypatch):
    kernel = Mock(side_effect=attend_as_written)
    monkeypatch.setattr(attention, "attend_with_kernel", kernel)
    monkeypatch.setattr(attention, "is_eager_on_cpu", lambda tensor: False)
    tiny_model(n_layer=3)(torch.zeros(1, 3, dtype=torch.int64))
    assert kernel.call_count == 3


def test_probabilities_that_are_computed_again_are_dropped_alike(monkeypatch):
    problem = Problem(
        T=20,
        M=4,
        filled=4,
        H=2,
        E=4,
    )

    def with_dropout(inputs):
        torch.manual_seed(2)
        return attend(inputs, Dropout(0.4))

    monkeypatch.setattr(attention, "TRAINING_BLOCK", {torch.float64: 7})
    again = heads_and_gradients(problem, with_dropout, torch.float64)
    monkeypatch.setattr(
        attention,
        "checkpoint",
        lambda f, *args, **options: f(*args),
    )
    stored = heads_and_gradients(problem, with_dropout, torch.float64)
    assert_close(again, stored, 0)


def test_no_probabilities_are_stored():
    sizes = {}

    def note(tensor):
        storage = tensor.untyped_storage()
        sizes[storage.data_ptr()] = storage.nbytes()
        return tensor

    T = 512
    M = 512
    problem = Problem(
        T=T,
        M=M,
        filled=M,
        H=2,
        E=4,
    )
    tensors = problem.tensors(torch.float32)
    for tensor in tensors.values():
        tensor.requires_grad_()
    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        attend(problem.inputs(tensors), Dropout(0.1))
    probabilities = 2 * 2 * T * (M + T) * 4
    mask = T * (M + T) * 4
    assert sum(sizes.values()) < mask + probabilities / 16


class LowRank(nn.Module):
    """A projection with a low-rank addition, as LoRA wraps it: x Wᵀ + x Aᵀ Bᵀ."""

    def __init__(self, projection: nn.Linear) -> None:
        super().__init__()
        self.projection = projection
        self.weight = projection.weight  # which alone is not what the module computes
        n_outputs, n_inputs = projection.weight.shape
        self.A = torch.ones(2, n_inputs).double()
        self.B = torch.linspace(-0.3, 0.3, 2 * n_outputs).double().view(-1, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.projection(x) + x @ self.A.T @ self.B.T


def wrap(layer: nn.Module, merged: nn.Module, name: str) -> None:
    wrapper = LowRank(layer.get_submodule(name))
    layer.set_submodule(name, wrapper)
    merged.get_submodule(name).weight.data += wrapper.B @ wrapper.A


def hook(layer: nn.Module, merged: nn.Module, name: str) -> None:
    layer.get_submodule(name).register_forward_hook(lambda module, inputs, output: 2.0 * output)
    merged.get_submodule(name).weight.data *= 2.0


PROJECTIONS = ["attention.qkv", "attention.position", "attention.output", "feed_forward.3"]


@pytest.mark.parametrize(
    ("change", "name"),
    [*((wrap, name) for name in PROJECTIONS), (hook, "attention.qkv")],
)
def test_a_changed_projection_equals_merged_weights_with_and_without_the_cache(change, name):
    model = tiny_model(mem_len=6)
    merged = tiny_model(mem_len=6)
    for layer, merged_layer in zip(model.layers, merged.layers, strict=True):
        change(layer, merged_layer, name)
    stream = random_stream(2, 13)
    with torch.no_grad():
        expected, _ = score_segments(merged, stream, 4)
        for scorer in (model, CachedTransformerXL(model)):
            losses, _ = score_segments(scorer, stream, 4)
            assert_close(losses, expected, 1e-10)


HOOKS = {
    "_forward_hooks": "register_forward_hook",
    "_forward_pre_hooks": "register_forward_pre_hook",
    "_backward_hooks": "register_full_backward_hook",
    "_backward_pre_hooks": "register_full_backward_pre_hook",
}


@pytest.mark.parametrize("table", HOOKS)
def test_a_projection_with_a_hook_is_not_plain(table):
    """Fails when torch renames a table of hooks: then `is_plain` would overlook them."""
    projection = tiny_model().layers[0].attention.qkv
    assert attention.is_plain(projection)
    getattr(projection, HOOKS[table])(lambda *arguments: None)
    assert len(getattr(projection, table)) == 1
    assert not attention.is_plain(projection)


def test_a_kernel_replaces_attention_with_the_documented_arguments():
    model = tiny_model(mem_len=6)
    stream = random_stream(2, 9)
    expected, _ = score_segments(model, stream, 8)
    calls = []

    def kernel(q, k, r, u, v, values, visible, dropout, bias, terms):
        calls.append(terms)
        inputs = AttentionInputs(
            q,
            k,
            values,
            r,
            u,
            v,
            bias,
            terms,
            visible,
        )
        return attend_as_written(inputs, dropout)

    for layer in model.layers:
        layer.attention.kernel = kernel
    losses, _ = score_segments(model, stream, 8)
    assert calls == ["abcd", "abcd"]
    assert_close(losses, expected, 1e-12)
