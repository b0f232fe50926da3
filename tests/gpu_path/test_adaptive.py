"""The adaptive softmax as a GPU runs it: gradients, operations and bytes, no wait."""

from __future__ import annotations

import pytest
import torch

from tests.devices.arms import make, tokens, unread_clusters
from tests.gpu_path.counting import Launches
from txl_lightning.config.architecture import Architecture
from txl_lightning.model import embedding
from txl_lightning.model.embedding import TokenEmbedding, TokenSoftmax, negative_log_likelihood

WT103 = Architecture(267_735, d_model=410, cutoffs=(20_000, 40_000, 200_000))
TABLE_BYTES = 267_735 * 410 * 2
B = 60
T = 150


def test_a_step_at_wt103_base_size_within_its_budget():
    """Gradients as large as the table: one of the softmax, one of the embedding, and their sum in place."""
    with torch.device("meta"):
        table = TokenEmbedding(WT103).bfloat16()
        softmax = TokenSoftmax(table).bfloat16()
        window = torch.zeros(B, T, dtype=torch.long)
    with unread_clusters(), Launches() as launches:
        hidden = table(window)
        softmax(hidden, window, table).mean().backward()
    assert launches.sizes[TABLE_BYTES] <= 3
    assert launches.n <= 137
    assert launches.written <= 19.4e9


def test_only_probabilities_of_half_size_are_kept(monkeypatch):
    monkeypatch.setattr(embedding, "is_eager_on_cpu", lambda tensor: False)
    kept = []
    logits = torch.randn(25, 300, dtype=torch.bfloat16, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(
        lambda x: kept.append(x) or x,
        lambda x: x,
    ):
        negative_log_likelihood(logits, torch.randint(300, (25,)))
    assert (
        sum(x.nbytes for x in kept if x.is_floating_point() and x.ndim == 2 and x.shape[1] > 1)
        == logits.nbytes
    )


@pytest.mark.parametrize(
    "arm", ["adaptive softmax", "adaptive embedding", "lstm, adaptive embedding"]
)
def test_targets_on_the_cpu_spare_the_wait_and_change_nothing(arm):
    model = make(arm).eval()
    window = tokens()
    before = window[:, :-1]
    after = window[:, 1:]
    nll_BT, _ = model.score(before, after)
    assert torch.equal(model.score(before, after, known_targets_BT=after.clone())[0], nll_BT)
    model = model.to("meta")
    before = before.to("meta")
    on_device = after.to("meta")
    model.score(before, on_device, known_targets_BT=after)  # a read of a tensor on meta would raise
    with pytest.raises((RuntimeError, NotImplementedError), match="meta"):
        model.score(before, on_device)
