"""torch's flex_attention against eager attention: forward on the CPU, gradients too on a GPU."""

from dataclasses import replace

import pytest
import torch

from tests.model.kernels.attention_problem import DEVICE, Problem, assert_equals_eager
from tests.model.tiny_model import random_stream, tiny_model
from txl_lightning.errors import OptionError

pytestmark = pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")  # on the CPU


@pytest.mark.parametrize(
    "problem",
    [
        Problem(),
        Problem(T=1, M=40, filled=40),
        Problem(T=140, M=3, filled=0, clamp_len=9),
        Problem(T=40, M=120, filled=100, attention_len=24),
        *(Problem(terms=terms) for terms in ("", "a", "bd", "acd", "cd")),
        *(Problem(terms=terms, encoding="shaw") for terms in ("abcd", "d")),
        Problem(encoding="alibi", qk_norm=True),
        Problem(encoding="rope", E=6),
    ],
    ids=str,
)
def test_flex_is_eager_attention(problem: Problem) -> None:
    on_gpu = DEVICE == "cuda"  # its kernels need heads of 16
    assert_equals_eager(replace(problem, E=16) if on_gpu else problem, "flex", gradients=on_gpu)


@pytest.mark.skipif(DEVICE != "cuda", reason="the CPU has small heads")
def test_small_heads_on_a_gpu_are_refused() -> None:
    with pytest.raises(OptionError, match=r"attention=flex: needs model\.d_head >= 16"):
        Problem(E=8).run("flex", torch.float32)


@pytest.mark.skipif(DEVICE != "cpu", reason="a GPU has gradients")
def test_gradients_on_the_cpu_are_refused() -> None:
    with pytest.raises(OptionError, match="attention=flex: has no gradients on the CPU; use eager"):
        Problem().run("flex", torch.float32)


def test_dropout_of_probabilities_is_refused() -> None:
    model = tiny_model(attention_dropout=0.1, d_head=16).to(DEVICE)
    model.use_attention("flex")
    stream = random_stream(1, 5).to(DEVICE)
    with pytest.raises(OptionError, match="attention=flex: has no dropout of attention probabilities"):
        model.score(stream[:, :-1], stream[:, 1:])
    with torch.no_grad():
        model.eval().score(stream[:, :-1], stream[:, 1:])
