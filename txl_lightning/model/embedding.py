"""Token embedding: one table, or adaptive input with narrower tables for rarer words (Baevski & Auli 2019)."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F


class TokenEmbedding(nn.Module):
    """Embedding of tokens in D dimensions, times sqrt(D).

    With `div_val` = 1 there is one table V × d_embed, with a projection to D if the widths differ. With
    `div_val` > 1 cluster i (tokens between two cut-offs) has a table of width d_embed / div_val^i and a
    projection; as in the paper's code cluster 0 has one even if the widths are equal.

    Args:
        vocab_size: V.
        d_model: D.
        d_embed: width of the first table.
        cutoffs: first token of every cluster but cluster 0, ascending; empty for one cluster.
        div_val: each cluster is narrower by this factor than the one before.
    """

    def __init__(
        self, vocab_size: int, d_model: int, d_embed: int | None = None, cutoffs: tuple[int, ...] = (), div_val: int = 1
    ) -> None:
        super().__init__()
        d_embed = d_embed or d_model
        self.d_model, self.div_val = d_model, div_val
        self.edges = (0, *cutoffs, vocab_size)
        self.n_clusters = len(cutoffs) + 1
        sizes = [r - l for l, r in self.ranges()] if div_val > 1 else [vocab_size]  # noqa: E741
        widths = [d_embed // div_val**i for i in range(len(sizes))]
        self.tables = nn.ParameterList(torch.empty(n, width) for n, width in zip(sizes, widths, strict=True))
        for table in self.tables:
            nn.init.normal_(table)  # as in torch.nn.Embedding; `initialize` replaces it
        projected = div_val > 1 or d_embed != d_model
        self.projections = nn.ParameterList(torch.empty(d_model, width) for width in widths if projected)

    def ranges(self) -> Iterator[tuple[int, int]]:
        """Iterate over the clusters: their first token, and the first token after them."""
        return zip(self.edges[:-1], self.edges[1:], strict=True)

    def rows(self, cluster: int) -> Float[Tensor, "n width"]:
        """Return the unscaled embeddings of a cluster's tokens, which the softmax shares."""
        if self.div_val > 1:
            return self.tables[cluster]
        return self.tables[0][self.edges[cluster] : self.edges[cluster + 1]]

    def projection(self, cluster: int) -> Float[Tensor, "D width"] | None:
        """Return the projection of a cluster's embeddings to D, or None if there is none."""
        if not self.projections:
            return None
        return self.projections[cluster if self.div_val > 1 else 0]

    def forward(self, tokens_BT: Int[Tensor, "B T"]) -> Float[Tensor, "B T D"]:
        """Return sqrt(D) · P_i E_i[token] for tokens of cluster i."""
        if self.div_val == 1:
            embedded = F.embedding(tokens_BT, self.tables[0])
            if self.projections:
                # Autocast projects in its own type; residual sums and norms stay in that of the weights.
                embedded = F.linear(embedded, self.projections[0]).to(self.tables[0].dtype)
            return embedded * self.d_model**0.5
        tokens = tokens_BT.flatten()
        embedded = self.tables[0].new_zeros(tokens.numel(), self.d_model)
        for cluster, (first, end) in enumerate(self.ranges()):
            # The clusters at both ends include the tokens outside the vocabulary, so that these raise.
            inside = ((tokens >= first) | (cluster == 0)) & ((tokens < end) | (cluster == self.n_clusters - 1))
            if tokens.device.type == "cpu":
                places = inside.nonzero().squeeze(1)
                embedded = embedded.index_copy(0, places, self._embed(tokens[places] - first, cluster, embedded))
            else:  # the CPU would wait for the GPU to count the places; embedding all tokens in every cluster is cheap
                rows = self._embed(torch.where(inside, tokens - first, 0), cluster, embedded)
                embedded = torch.where(inside[:, None], rows, embedded)
        return embedded.view(*tokens_BT.shape, self.d_model) * self.d_model**0.5

    def _embed(self, rows: Tensor, cluster: int, like: Tensor) -> Tensor:
        """Return P_i E_i[row] in the type of `like`."""
        return F.linear(F.embedding(rows, self.tables[cluster]), self.projections[cluster]).to(like.dtype)
