"""Training steps and validation on the meta device: a tensor left on the CPU, or read by it, raises."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.devices.arms import cases, prepared, tokens, unread_clusters
from tests.host_reads import AnsweredReads
from tests.training.small_run import add_gradients
from txl_lightning.data.streams import Batch
from txl_lightning.training.module import LanguageModelModule


@pytest.fixture(autouse=True)
def _without_kernels_or_data(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Allow fused Adam on meta, whose kernel only checks the devices there; replace the read of the softmax."""
    module = sys.modules[torch.optim.Optimizer.__module__]
    monkeypatch.setattr(
        module, "_get_fused_kernels_supported_devices", lambda: ["cpu", "cuda", "meta"]
    )
    library = torch.library.Library("aten", "IMPL", "Meta")
    for name in ("_fused_adam_", "_fused_adamw_"):
        library.impl(name, _check_devices)
    with unread_clusters():
        yield
    library._destroy()


def _check_devices(*lists: list[Tensor], found_inf: Tensor | None = None, **options: Any) -> None:
    for tensor in [
        *(tensor for tensors in lists for tensor in tensors),
        *([] if found_inf is None else [found_inf]),
    ]:
        assert tensor.is_meta


def segment(number: int) -> Batch:
    window = tokens("meta")
    return Batch(
        window[:, :-1],
        window[:, 1:],
        number,
    )


def train(module: LanguageModelModule, optimizer: torch.optim.Optimizer, n_groups: int = 1) -> None:
    """Two steps as Lightning does them."""
    for number in (1, 2):
        batch = segment(number)
        optimizer.zero_grad()
        add_gradients(module, batch, n_groups)
        module.configure_gradient_clipping(optimizer)
        optimizer.step()


@pytest.mark.parametrize("arm", cases())
def test_every_arm_trains(arm):
    module, optimizer = prepared(arm, segment(0))
    train(module, optimizer)
    state = [value for values in optimizer.state.values() for value in values.values()]
    assert state
    assert all(
        value.is_meta for value in [*state, module.loss, module.gradient_norm, module.finite]
    )


OPTIONS = [{"loss": "half"}, {"loss": "random_half"}, {"n_groups": 2}]
OPTIONS += [{"optimizer": "adamw"}, {"optimizer": "muon"}]
SEVERAL = [
    {"segment_len": 2},
    {"segment_len": 2, "loss": "random_half", "n_groups": 2},
]  # segments in a step
TRAINED = [
    *product(["relative, memory", "qrnn"], OPTIONS),
    *product(["relative, memory"], SEVERAL),
]


@pytest.mark.parametrize(("arm", "options"), TRAINED)
def test_every_option_trains(arm, options):
    module, optimizer = prepared(arm, segment(0), **options)
    train(module, optimizer, options.get("n_groups", 1))


@pytest.mark.parametrize("arm", cases())
def test_validation_waits_only_for_its_result(arm):
    module, _ = prepared(arm, segment(0))
    module.eval()
    with torch.no_grad():
        for number in (0, 1, 2):
            module.validation_step(segment(number), number)
    with AnsweredReads():
        module.on_validation_epoch_end()
    assert {"val/nll", "val/tokens"} <= set(module.metrics)
