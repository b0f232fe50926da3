"""Adaptive embedding and softmax against plain ones with the same weights."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from tests.model.tiny_model import tiny_model
from txl_lightning.config.architecture import Architecture
from txl_lightning.model import embedding as module
from txl_lightning.model.embedding import TokenEmbedding, TokenSoftmax, negative_log_likelihood


def make(tie_projections: str = "all", **options: object) -> tuple[TokenEmbedding, TokenSoftmax]:
    embedding = TokenEmbedding(Architecture(12, d_model=8, **options)).double()
    softmax = TokenSoftmax(embedding, tie_projections).double()
    generator = torch.Generator().manual_seed(0)
    for parameter in [*embedding.parameters(), *softmax.parameters()]:
        parameter.data = torch.randn(parameter.shape, generator=generator, dtype=torch.float64) / 2
    return embedding, softmax


def plain_log_probabilities(
    hidden: Tensor, embedding: TokenEmbedding, softmax: TokenSoftmax, tie: str
) -> Tensor:
    """Grave et al.'s definition for one vector, one token after the other."""
    edges = embedding.edges

    def projected(i: int) -> Tensor:
        if not embedding.projections:
            return hidden
        own = tie == "none" or (tie == "all_but_first" and i == 0)
        shared = embedding.projections[i if embedding.div_val > 1 else 0]
        return (softmax.projections[str(i)] if own else shared).T @ hidden

    def row(token: int, i: int) -> Tensor:
        return (
            embedding.tables[i][token - edges[i]]
            if embedding.div_val > 1
            else embedding.tables[0][token]
        )

    head = [row(t, 0) @ projected(0) + softmax.bias[t] for t in range(edges[1])]
    head += [
        softmax.cluster_weight[i] @ projected(0) + softmax.cluster_bias[i]
        for i in range(len(edges) - 2)
    ]
    head_log = torch.stack(head).log_softmax(0)
    columns = list(head_log[: edges[1]])
    for i in range(1, len(edges) - 1):
        tail = [row(t, i) @ projected(i) + softmax.bias[t] for t in range(edges[i], edges[i + 1])]
        columns += list(head_log[edges[1] + i - 1] + torch.stack(tail).log_softmax(0))
    return torch.stack(columns)


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
    targets=st.lists(st.integers(0, 11), min_size=1, max_size=6),
    seed=st.integers(0, 99),
)
def test_it_is_a_plain_softmax_in_values_and_gradients(options, targets, seed):
    tie = options["tie_projections"]
    embedding, softmax = make(**options)
    generator = torch.Generator().manual_seed(seed)
    hidden = torch.randn(
        1, len(targets), 8, generator=generator, dtype=torch.float64
    ).requires_grad_()
    targets_BT = torch.tensor([targets])
    nll = softmax(hidden, targets_BT, embedding)
    plain = torch.stack([plain_log_probabilities(h, embedding, softmax, tie) for h in hidden[0]])
    expected = -plain.gather(1, targets_BT[0][:, None])[:, 0]
    torch.testing.assert_close(nll[0], expected, rtol=0, atol=1e-11)
    torch.testing.assert_close(
        softmax.log_probabilities(hidden, embedding)[0], plain, rtol=0, atol=1e-11
    )

    inputs = [hidden, *embedding.parameters(), *softmax.parameters()]
    weights = torch.randn(len(targets), generator=generator, dtype=torch.float64)
    ours, theirs = (
        torch.autograd.grad(y, inputs, weights, materialize_grads=True) for y in (nll[0], expected)
    )
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-10)


@pytest.mark.parametrize("options", [{"div_val": 2}, {"d_embed": 4}, {}], ids=str)
@pytest.mark.parametrize("token", [-13, -1, 12, 99])
def test_a_token_outside_the_vocabulary_is_refused(options, token):
    """A marked token (-1 - token) of a model that tells documents apart is one for any other model."""
    embedding, _ = make(cutoffs=(4, 9), **options)
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
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_losses_and_their_gradients_are_torchs(dtype, on_cpu, monkeypatch):
    """Both as a CPU and as a GPU compute them."""
    monkeypatch.setattr(module, "is_eager_on_cpu", lambda tensor: on_cpu)
    logits = 5 * torch.randn(25, 4000, dtype=dtype)
    targets = torch.randint(4000, (25,))
    cotangent = torch.randn(25)
    ours = logits.clone().requires_grad_()
    torchs = logits.clone().requires_grad_()
    nll = negative_log_likelihood(ours + 0, targets)
    expected = F.cross_entropy(
        torchs.to(torch.promote_types(dtype, torch.float32)), targets, reduction="none"
    )
    torch.testing.assert_close(nll, expected)
    for losses in (nll, expected):
        losses.backward(cotangent.to(losses.dtype))
    torch.testing.assert_close(ours.grad, torchs.grad)
