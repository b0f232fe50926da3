"""Choice of the attention kernel, and the measurements that stay eager with every choice."""

import pytest
import torch

from tests.model.tiny_model import random_stream, tiny_model
from txl_lightning import CachedTransformerXL
from txl_lightning.errors import OptionError
from txl_lightning.model import attention
from txl_lightning.model.kernels import choice


def test_auto_is_the_fastest_that_was_measured_on_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu = torch.device("cpu")
    assert choice.kernel_on(cpu, "auto") == "eager"
    assert choice.kernel_on(torch.device("meta"), "auto") == "eager"
    monkeypatch.setitem(choice.FASTEST, "cpu", "flex")
    assert choice.kernel_on(cpu, "auto") == "flex"
    assert choice.kernel_on(cpu, "eager") == "eager"


@pytest.mark.parametrize("fastest", ["flex", "triton"])
def test_auto_is_eager_where_the_fastest_cannot_compute_the_attention(
    fastest: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(choice.FASTEST, "cpu", fastest)
    monkeypatch.setattr(choice, "_has_triton", lambda: True)
    assert choice.kernel_on(torch.device("cpu"), "auto", dropout=0.1) == ("eager" if fastest == "flex" else "triton")
    model, stream = tiny_model(attention_dropout=0.1), random_stream(2, 6)  # in float64
    model.use_attention("auto")
    model.score(stream[:, :-1], stream[:, 1:])[0].sum().backward()
    monkeypatch.setattr(choice, "_has_triton", lambda: False)
    assert choice.kernel_on(torch.device("cpu"), "auto") == ("flex" if fastest == "flex" else "eager")


def test_names_and_packages_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(OptionError, match="attention=fast: must be one of eager, flex, triton, auto"):
        tiny_model().use_attention("fast")
    monkeypatch.setattr(choice, "find_spec", lambda name: None)
    with pytest.raises(OptionError, match="attention=triton: needs the package triton"):
        tiny_model().use_attention("triton")
    tiny_model().use_attention("flex")


def test_a_kernel_is_neither_in_the_weights_nor_in_the_config() -> None:
    model, other = tiny_model(), tiny_model()
    other.use_attention("flex")
    assert model.state_dict().keys() == other.state_dict().keys()
    assert model.config == other.config


def test_cached_inference_is_eager(monkeypatch: pytest.MonkeyPatch) -> None:
    def fused(*args: object) -> None:
        raise AssertionError("fused")

    monkeypatch.setattr(attention, "attend_fused", fused)
    model, stream = tiny_model().eval(), random_stream(2, 6)
    model.use_attention("flex")
    with torch.no_grad():
        CachedTransformerXL(model).score(stream[:, :-1], stream[:, 1:])
        with pytest.raises(AssertionError, match="fused"):
            model.with_lengths(mem_len=2).score(stream[:, :-1], stream[:, 1:])
