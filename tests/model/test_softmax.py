"""Adaptive embedding and softmax against plain ones with the same weights."""

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from tests.model.tiny_model import assert_close, assert_same_gradients, tiny_model
from txl_lightning.config.architecture import Architecture
from txl_lightning.model import embedding as module
from txl_lightning.model.embedding import TokenEmbedding, TokenSoftmax, negative_log_likelihood


def make(tie_projections: str = "all", **options: object) -> tuple[TokenEmbedding, TokenSoftmax]:
    embedding = TokenEmbedding(Architecture(12, d_model=8, **options)).double()
    softmax = TokenSoftmax(embedding, tie_projections).double()
    generator = torch.Generator().manual_seed(0)
    for parameter in [*embedding.parameters(), *softmax.parameters()]:
        torch.nn.init.normal_(parameter, std=0.5, generator=generator)
    return embedding, softmax


def plain_log_probabilities(
    hidden: Tensor, embedding: TokenEmbedding, softmax: TokenSoftmax, tie: str
) -> Tensor:
    """Grave et al.'s definition for one vector, one cluster after the other."""
    logits = []
    for i, (first, end) in enumerate(pairwise(embedding.edges)):
        table = i if embedding.div_val > 1 else 0
        vector = hidden
        if embedding.projections:
            projection = embedding.projections[table]
            if tie == "none" or (tie == "all_but_first" and i == 0):
                projection = softmax.projections[str(i)]
            vector = projection.T @ hidden
        rows = embedding.tables[table]
        if embedding.div_val == 1:
            rows = rows[first:end]
        logits.append(rows @ vector + softmax.bias[first:end])
        if i == 0 and embedding.n_clusters > 1:
            logits[0] = torch.cat(
                [logits[0], softmax.cluster_weight @ vector + softmax.cluster_bias]
            )
    head = logits[0].log_softmax(0)
    parts = [head[: embedding.edges[1]]]
    for i in range(1, embedding.n_clusters):
        cluster = head[embedding.edges[1] + i - 1]
        parts.append(cluster + logits[i].log_softmax(0))
    return torch.cat(parts)


OPTIONS = st.fixed_dictionaries(
    {
        "cutoffs": st.sampled_from([(), (4,), (3, 7), (1, 2, 9)]),
        "d_embed": st.sampled_from([None, 4, 8]),
        "div_val": st.sampled_from([1, 2]),
        "tie_projections": st.sampled_from(["all_but_first", "all", "none"]),
    }
).filter(lambda o: (o["d_embed"] or 8) // o["div_val"] ** len(o["cutoffs"]) >= 1)


@settings(max_examples=50)
@given(
    options=OPTIONS,
    targets=st.lists(
        st.integers(0, 11),
        min_size=1,
        max_size=6,
    ),
    seed=st.integers(0, 99),
)
def test_it_is_a_plain_softmax_in_values_and_gradients(options, targets, seed):
    embedding, softmax = make(**options)
    torch.manual_seed(seed)
    hidden = torch.randn(
        1,
        len(targets),
        8,
        dtype=torch.float64,
        requires_grad=True,
    )
    plain = []
    for h in hidden[0]:
        plain.append(plain_log_probabilities(h, embedding, softmax, options["tie_projections"]))
    log_probabilities = torch.stack(plain)
    targets_BT = torch.tensor([targets])
    expected = -log_probabilities.gather(1, targets_BT.T)[:, 0]
    nll = softmax(hidden, targets_BT, embedding)[0]
    inputs = [
        hidden,
        *embedding.parameters(),
        *softmax.parameters(),
    ]
    assert_same_gradients(nll, expected, inputs, 1e-10)
    assert_close(
        softmax.log_probabilities(hidden, embedding)[0],
        log_probabilities,
        1e-11,
    )


@pytest.mark.parametrize(
    "options",
    [{"div_val": 2}, {"d_embed": 4}, {}],
    ids=str,
)
@pytest.mark.parametrize(
    "token",
    [-13, -1, 12, 99],
)
def test_a_token_outside_the_vocabulary_is_refused(options, token):
    """A marked token (-1 - token) of a model that tells documents apart is one for any other model."""
    embedding, _ = make(
        cutoffs=(4, 9),
        **options,
    )
    with pytest.raises(IndexError):
        embedding(torch.tensor([[0, token]]))


def test_a_cluster_without_a_token_gets_a_gradient_of_zeros():
    """A gradient of None on one rank only would make the ranks take different optimizer steps."""
    model = tiny_model(cutoffs=(4, 8), div_val=2)
    tokens = torch.tensor([[0, 1, 9, 2]])
    model.score(tokens[:, :-1], tokens[:, 1:])[0].sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    assert model.embedding.tables[1].grad.count_nonzero() == 0
    assert model.embedding.tables[2].grad.count_nonzero() > 0


def test_a_second_derivative_of_the_losses_is_refused():
    logits = torch.randn(3, 5, requires_grad=True)
    loss = negative_log_likelihood(logits, torch.tensor([0, 1, 2])).sum()
    with pytest.raises(RuntimeError, match="no second derivative"):
        torch.autograd.grad(loss, logits, create_graph=True)


@pytest.mark.parametrize("on_cpu", [True, False])
@pytest.mark.parametrize(
    "dtype",
    [torch.float64, torch.float32, torch.bfloat16],
)
def test_losses_and_their_gradients_are_torchs(dtype, on_cpu, monkeypatch):
    """Both as a CPU and as a GPU compute them."""
    monkeypatch.setattr(module, "is_eager_on_cpu", lambda tensor: on_cpu)
    logits = (5 * torch.randn(25, 4000, dtype=dtype)).requires_grad_()
    targets = torch.randint(4000, (25,))
    nll = negative_log_likelihood(logits + 0, targets)
    precise = logits.to(torch.promote_types(dtype, torch.float32))
    expected = F.cross_entropy(precise, targets, reduction="none")
    torch.testing.assert_close(nll, expected)
    cotangent = torch.randn_like(nll)
    ours = torch.autograd.grad(nll, logits, cotangent)
    torchs = torch.autograd.grad(expected, logits, cotangent)
    torch.testing.assert_close(ours, torchs)
