"""Token embedding and the softmax tied to it: one table, or narrower tables for rarer words.

Adaptive input: Baevski & Auli 2019; adaptive softmax: Grave et al. 2017.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from txl_lightning.config.architecture import Architecture
from txl_lightning.errors import OptionError
from txl_lightning.model.gpu import aligned, aligned_product, is_eager_on_cpu
from txl_lightning.model.layers import draw_normal
from txl_lightning.model.shapes import Hidden, LogProbabilities, Losses, Tokens


def cluster_sizes(config: Architecture) -> list[int]:
    """Return the number of tokens in each cluster."""
    edges = (0, *config.cutoffs, config.vocab_size or 0)
    return [end - first for first, end in pairwise(edges)]


class TokenEmbedding(nn.Module):
    """Token embedding in D dimensions, times sqrt(D).

    With `div_val` = 1 there is one table V × d_embed, with a projection to D if the widths differ. With `div_val` > 1
    cluster i (tokens between two cut-offs) has a table with width d_embed / div_val^i and a projection; as in the
    paper's code cluster 0 has one even if the widths are equal.

    Args:
        config: V, D, and the clusters' widths and cut-offs.
    """

    def __init__(self, config: Architecture) -> None:
        super().__init__()
        self.d_model = config.d_model
        self.div_val = config.div_val
        self.edges = (0, *config.cutoffs, config.vocab_size or 0)
        self.n_clusters = len(config.cutoffs) + 1
        d_embed = config.d_embed or config.d_model
        sizes = [self.edges[-1]]
        if config.div_val > 1:
            sizes = cluster_sizes(config)
        has_projections = config.div_val > 1 or d_embed != config.d_model
        self.tables = nn.ParameterList()
        self.projections = nn.ParameterList()
        for i, size in enumerate(sizes):
            width = d_embed // config.div_val**i
            self.tables.append(torch.empty(size, width))
            if has_projections:
                self.projections.append(torch.empty(config.d_model, width))
        for table in self.tables:
            draw_normal(table, 0.0, 1.0)  # as in torch.nn.Embedding; `initialize` replaces it

    def ranges(self) -> Iterator[tuple[int, int]]:
        """Iterate over the clusters: their first token, and the first token after them."""
        return pairwise(self.edges)

    def cluster_of(self, tokens: Int[Tensor, "*n"]) -> Int[Tensor, "*n"]:
        """Return each token's cluster number."""
        is_after = [tokens >= first for first in self.edges[1:-1]]
        return torch.stack(is_after).sum(0)

    def rows(self) -> tuple[Float[Tensor, "n width"], ...]:
        """Return each cluster's unscaled token embeddings, for the softmax's products."""
        if len(self.tables) == self.n_clusters:
            return tuple(self.tables)
        # Not a slice per cluster: each gradient would be as large as the whole table.
        return aligned(self.tables[0]).split([end - first for first, end in self.ranges()])

    def projection(self, cluster: int) -> Float[Tensor, "D width"] | None:
        """Return a cluster's projection from its embeddings to D, or None if there is none."""
        if not self.projections:
            return None
        return self.projections[cluster if self.div_val > 1 else 0]

    def forward(self, tokens_BT: Tokens) -> Hidden:
        """Return sqrt(D) · P_i E_i[token] for tokens in cluster i."""
        if self.div_val > 1:
            return self._embed_by_cluster(tokens_BT) * self.d_model**0.5
        embedded_BTD = F.embedding(tokens_BT, self.tables[0])
        if self.projections:
            # Autocast projects in a lower type; residual sums and norms stay in the weights' type.
            embedded_BTD = F.linear(embedded_BTD, self.projections[0]).to(self.tables[0].dtype)
        return embedded_BTD * self.d_model**0.5

    def _embed_by_cluster(self, tokens_BT: Tensor) -> Tensor:
        """Embed all tokens in every cluster. This is cheap: to select them, the CPU would wait for a GPU."""
        embedded_BTD = self.tables[0].new_zeros(*tokens_BT.shape, self.d_model)
        last = self.n_clusters - 1
        for cluster, (first, end) in enumerate(self.ranges()):
            # The clusters at both ends include the tokens outside the vocabulary, so that these raise.
            is_inside = torch.ones_like(tokens_BT, dtype=torch.bool)
            if cluster > 0:
                is_inside = tokens_BT >= first
            if cluster < last:
                is_inside = is_inside & (tokens_BT < end)
            rows_BTE = F.embedding(
                torch.where(is_inside, tokens_BT - first, 0), self.tables[cluster]
            )
            projected_BTD = F.linear(rows_BTE, self.projections[cluster]).to(embedded_BTD.dtype)
            embedded_BTD = torch.where(
                is_inside[..., None],
                projected_BTD,
                embedded_BTD,
            )
        return embedded_BTD


class TokenSoftmax(nn.Module):
    """P(token | h), with the unscaled embedding as weight and a bias per token.

    With cut-offs the head scores cluster 0's tokens and one column for each further cluster, in the clusters' order; a
    token in cluster i has P(cluster i | h) · P(token | cluster i, h).

    Args:
        embedding: shares its tables and, where tied, its projections.
        tie_projections: clusters that project h with the embedding's projection; the rest have a separate one. Without
            effect if the embedding has no projections.
    """

    def __init__(self, embedding: TokenEmbedding, tie_projections: str = "all_but_first") -> None:
        super().__init__()
        n_further = embedding.n_clusters - 1
        self.bias = nn.Parameter(torch.empty(embedding.edges[-1]))
        self.cluster_weight = None
        self.cluster_bias = None
        if n_further:
            width = embedding.tables[0].shape[1]
            self.cluster_weight = nn.Parameter(torch.empty(n_further, width))
            self.cluster_bias = nn.Parameter(torch.empty(n_further))
        self.projections = nn.ParameterDict()
        for cluster in range(embedding.n_clusters):
            shared = embedding.projection(cluster)
            is_first_alone = tie_projections == "all_but_first" and cluster == 0
            if shared is not None and (tie_projections == "none" or is_first_alone):
                self.projections[str(cluster)] = nn.Parameter(torch.empty_like(shared))

    def forward(
        self,
        hidden_BTD: Hidden,
        targets_BT: Tokens,
        embedding: TokenEmbedding,
        known_targets_BT: Tokens | None = None,
    ) -> Losses:
        """Return -log P(target | h) in nats, in token order.

        Clusters without a target cost nothing, but their weights get a zero gradient instead of None: so an optimizer
        step does not depend on how streams are divided into processes and groups.

        With cut-offs the shapes depend on the numbers of targets. The CPU waits for them on a GPU once in every call,
        unless `known_targets_BT` are the targets in CPU memory.
        """
        hidden = hidden_BTD.flatten(0, 1)
        if not embedding.projections:
            hidden = aligned(hidden)  # once for all clusters
        targets = targets_BT.flatten()
        rows = embedding.rows()
        if embedding.n_clusters == 1:
            nll = negative_log_likelihood(self._head(hidden, embedding, rows[0]), targets)
            return nll.view_as(targets_BT).to(self.bias.dtype)
        cluster_of = embedding.cluster_of(targets)
        column = embedding.edges[1] + cluster_of - 1
        head_targets = torch.where(cluster_of > 0, column, targets)
        nll = negative_log_likelihood(self._head(hidden, embedding, rows[0]), head_targets)
        nll = self._add_tails(nll, hidden, targets, embedding, rows, known_targets_BT)
        return nll.view_as(targets_BT).to(self.bias.dtype)

    def _add_tails(
        self,
        nll: Tensor,
        hidden: Tensor,
        targets: Tensor,
        embedding: TokenEmbedding,
        rows: tuple[Tensor, ...],
        known_targets_BT: Tensor | None,
    ) -> Tensor:
        """Add the losses within the further clusters to the head's losses."""
        cluster_of = embedding.cluster_of(targets)
        counted = cluster_of
        if known_targets_BT is not None:
            counted = embedding.cluster_of(known_targets_BT)
        sizes = targets_per_cluster(counted, embedding.n_clusters)
        places = cluster_of.argsort(stable=True).split(sizes)
        for cluster in range(1, embedding.n_clusters):
            members = places[cluster]
            chosen = hidden.index_select(0, members)
            logits = self._logits(chosen, cluster, embedding, rows[cluster])
            targets_inside = targets[members] - embedding.edges[cluster]
            nll_inside = negative_log_likelihood(logits, targets_inside)
            nll = nll.index_add(0, members, nll_inside)
        return nll

    def log_probabilities(self, hidden_BTD: Hidden, embedding: TokenEmbedding) -> LogProbabilities:
        """Return log P(token | h) for every token in the vocabulary, in float32 or float64."""
        hidden = hidden_BTD.flatten(0, 1)
        rows = embedding.rows()
        # On a GPU it has padding columns, whose probability is 0.
        head = _log_softmax(self._head(hidden, embedding, rows[0]))
        shortlist = embedding.edges[1]
        parts = [head[:, :shortlist]]
        for cluster in range(1, embedding.n_clusters):
            column = shortlist + cluster - 1
            logits = self._logits(hidden, cluster, embedding, rows[cluster])
            inside = _log_softmax(logits)[:, : len(rows[cluster])]
            parts.append(head[:, column : column + 1] + inside)
        return torch.cat(parts, dim=-1).view(*hidden_BTD.shape[:2], -1)

    def _project(self, hidden: Tensor, cluster: int, embedding: TokenEmbedding) -> Tensor:
        projection = embedding.projection(cluster)
        if str(cluster) in self.projections:
            projection = self.projections[str(cluster)]
        if projection is None:
            return hidden
        return hidden @ projection

    def _logits(
        self, hidden: Tensor, cluster: int, embedding: TokenEmbedding, rows: Tensor
    ) -> Tensor:
        bias = self.bias[embedding.edges[cluster] : embedding.edges[cluster + 1]]
        return aligned_product(
            self._project(hidden, cluster, embedding),
            rows,
            bias,
            -math.inf,
        )

    def _head(self, hidden: Tensor, embedding: TokenEmbedding, rows: Tensor) -> Tensor:
        if self.cluster_weight is None or self.cluster_bias is None:
            return self._logits(hidden, 0, embedding, rows)
        weight = torch.cat([aligned(rows), aligned(self.cluster_weight)])
        bias = torch.cat([self.bias[: embedding.edges[1]], self.cluster_bias])
        return aligned_product(
            self._project(hidden, 0, embedding),
            weight,
            bias,
            -math.inf,
        )


class NoVocabulary(nn.Module):
    """Embedding and softmax for a model with `vocab_size=None`: refuses tokens and losses."""

    def forward(self, *_: object) -> Tensor:
        """Raise `OptionError`."""
        needed = "must be given for tokens and losses; without it give inputs_BTD"
        raise OptionError("vocab_size", None, needed)

    log_probabilities = forward


def make_embedding(config: Architecture) -> Any:
    """Return a model's embedding."""
    return TokenEmbedding(config) if config.vocab_size else NoVocabulary()


def make_softmax(config: Architecture, embedding: Any) -> Any:
    """Return the softmax for a model with this embedding."""
    return TokenSoftmax(embedding, config.tie_projections) if config.vocab_size else NoVocabulary()


def negative_log_likelihood(
    logits_NV: Float[Tensor, "N V"], targets_N: Int[Tensor, " N"]
) -> Float[Tensor, " N"]:
    """Return -log softmax(logits)_target in nats, in float32 or float64.

    `F.cross_entropy` gives the same; its backward pass holds two more tensors as large as the logits.

    Args:
        logits_NV: logits for N tokens.
        targets_N: their targets.

    Raises:
        RuntimeError: in a backward pass with create_graph=True, because there is no second derivative.
    """
    return _NegativeLogLikelihood.apply(logits_NV, targets_N)


class _NegativeLogLikelihood(torch.autograd.Function):
    """Backward: (softmax(logits) - one_hot(target)) · gradient."""

    @staticmethod
    def forward(ctx: Any, logits_NV: Tensor, targets_N: Tensor) -> Tensor:
        log_probabilities_NV = _log_softmax(logits_NV)
        targets_N1 = targets_N[:, None]
        nll_N1 = -log_probabilities_NV.gather(1, targets_N1)
        ctx.dtype = logits_NV.dtype
        if log_probabilities_NV.dtype == logits_NV.dtype or is_eager_on_cpu(logits_NV):
            ctx.save_for_backward(log_probabilities_NV, targets_N, None)
        else:
            # The 16-bit logits, half the size of the probabilities: log Σ exp(logits) makes these from them.
            normalizer_N1 = nll_N1 + logits_NV.gather(1, targets_N1)
            ctx.save_for_backward(logits_NV, targets_N, normalizer_N1)
        return nll_N1.squeeze(1)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        if torch.is_grad_enabled():  # create_graph=True: log-probabilities are not linked to logits
            raise RuntimeError(
                "the losses have no second derivative: differentiate F.cross_entropy"
            )
        (gradient_N,) = gradients
        stored_NV, targets_N, normalizer_N1 = ctx.saved_tensors
        if normalizer_N1 is None:  # noqa: SIM108
            P_NV = stored_NV.exp()
        else:
            P_NV = (stored_NV - normalizer_N1).exp_()
        minus_one_N1 = P_NV.new_full((len(targets_N), 1), -1.0)
        P_NV.scatter_add_(1, targets_N[:, None], minus_one_N1)
        out_NV = P_NV
        if not is_eager_on_cpu(P_NV):
            # Into another type at once is one pass over a GPU's memory, and slow on a CPU.
            out_NV = P_NV.new_empty(P_NV.shape, dtype=ctx.dtype)
        return torch.mul(
            P_NV,
            gradient_N[:, None],
            out=out_NV,
        ).to(ctx.dtype), None


def targets_per_cluster(cluster_of: Int[Tensor, "*n"], n_clusters: int) -> list[int]:
    """Return the number of targets in each cluster; on a GPU the CPU waits for it."""
    counts = [(cluster_of == cluster).sum() for cluster in range(n_clusters)]
    return torch.stack(counts).tolist()


def _log_softmax(logits: Tensor) -> Tensor:
    return F.log_softmax(
        logits,
        dim=-1,
        dtype=torch.promote_types(logits.dtype, torch.float32),
    )
