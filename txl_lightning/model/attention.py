"""Multi-head attention of a segment over its memory and itself, with any of the four terms of the score."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from txl_lightning.model.config import TransformerXLConfig
from txl_lightning.model.dropout import Dropout
from txl_lightning.model.encodings import LayerPositions
from txl_lightning.model.positions import relative_shift


class Attention(nn.Module):
    """Attention whose score is the sum of those of the four terms that `config.active_terms` names.

        A_ij = (q_i·k_j + q_i·r_{i-j} + u·k_j + v·r_{i-j}) / sqrt(E)                          (section 3.3)
                 (a)        (b)         (c)     (d)           = [(q_i + u)·k_j + (q_i + v)·r_{i-j}] / sqrt(E)

    r_{i-j} = W_{k,R} R_{i-j}, or a trained vector of the distance; v·r_{i-j} may be a trained bias. All
    projections are free of bias, and those that no term needs do not exist. Heads come before streams
    (H·B in one batch of matrix products), because r is the same for all streams: (b) and (d) are one
    product a head with the queries of all streams under each other.
    """

    def __init__(self, config: TransformerXLConfig) -> None:
        super().__init__()
        self.n_head, self.d_head, self.terms = config.n_head, config.d_head, config.active_terms
        width = config.n_head * config.d_head
        has_query, has_key = bool(set("ab") & set(self.terms)), bool(set("ac") & set(self.terms))
        self.n_query, self.n_key = int(has_query), int(has_key)
        self.qkv = nn.Linear(config.d_model, (self.n_query + self.n_key + 1) * width, bias=False)
        projects = config.kind.projects and bool(set("bd") & set(self.terms))
        self.position = nn.Linear(config.d_model, width, bias=False) if projects else None
        self.output = nn.Linear(width, config.d_model, bias=False)
        self.dropout = Dropout(config.attention_dropout)

    def forward(
        self,
        hidden_BTD: Float[Tensor, "B T D"],
        memory_BMD: Float[Tensor, "B M D"],
        positions: LayerPositions,
        mask_TK: Float[Tensor, "T K"],
    ) -> Float[Tensor, "B T D"]:
        """Attend from every token of the segment to the keys that `mask_TK` leaves visible.

        Gradients reach the weights of keys and values through the memory, but not the memory.
        """
        q_HBTE, kv_PHBKE = self.project_both(hidden_BTD, memory_BMD)
        return self.merge(self.average(q_HBTE, kv_PHBKE, positions, mask_TK))

    def scores(
        self,
        hidden_BTD: Float[Tensor, "B T D"],
        memory_BMD: Float[Tensor, "B M D"],
        positions: LayerPositions,
        mask_TK: Float[Tensor, "T K"],
        terms: str | None = None,
    ) -> Float[Tensor, "H B T K"]:
        """What `forward` takes the softmax of: A_ij / sqrt(E), -inf where `mask_TK` hides a key.

        Args:
            hidden_BTD: as `forward` is given it, like the next three.
            memory_BMD: the memory.
            positions: u, v and what is known of distances.
            mask_TK: 0 or -inf.
            terms: of these terms alone (Figure 7); their scores add up to those of all terms.

        Raises:
            ValueError: the attention has no such term.
        """
        terms = self.terms if terms is None else terms
        if not set(terms) <= set(self.terms):
            raise ValueError(f"terms {terms!r} of an attention that has {self.terms!r}")
        q_HBTE, kv_PHBKE = self.project_both(hidden_BTD, memory_BMD)
        k_HBKE = kv_PHBKE[0] if self.n_key else None
        H, B = kv_PHBKE.shape[1:3]
        scores_XTK = self._scores(q_HBTE, k_HBKE, positions.of_terms(terms), mask_TK, H, B, terms)
        return scores_XTK.unflatten(0, (H, B))

    def project_both(
        self, hidden_BTD: Float[Tensor, "B T D"], memory_BMD: Float[Tensor, "B M D"]
    ) -> tuple[Tensor | None, Float[Tensor, "P H B K E"]]:
        """`project`, with the keys and values of the memory in front of the segment's."""
        q_HBTE, kv_PHBKE = self.project(hidden_BTD)
        if memory_BMD.shape[1]:
            weight = self.qkv.weight[self.n_query * self.n_head * self.d_head :]
            memory_kv = F.linear(memory_BMD, weight).unflatten(-1, (-1, self.n_head, self.d_head))
            kv_PHBKE = torch.cat([memory_kv.permute(2, 3, 0, 1, 4), kv_PHBKE], dim=3)
        return q_HBTE, kv_PHBKE

    def project(self, hidden_BTD: Float[Tensor, "B T D"]) -> tuple[Tensor | None, Float[Tensor, "P H B T E"]]:
        """Queries of the segment, None if no term has them, and its keys and values, heads first.

        P = 2, keys and then values; values alone (P = 1) where no term has keys.
        """
        parts = self.qkv(hidden_BTD).unflatten(-1, (-1, self.n_head, self.d_head)).permute(2, 3, 0, 1, 4)
        return parts[0] if self.n_query else None, parts[self.n_query :]

    def average(
        self,
        q_HBTE: Float[Tensor, "H B T E"] | None,
        kv_PHBKE: Float[Tensor, "P H B K E"],
        positions: LayerPositions,
        mask_TK: Float[Tensor, "T K"],
    ) -> Float[Tensor, "H B T E"]:
        """Σ_j softmax(A_i)_j v_j of every head, or of those heads that are given."""
        k_HBKE, v_HBKE = kv_PHBKE[0] if self.n_key else None, kv_PHBKE[-1]
        scores_XTK = self._scores(q_HBTE, k_HBKE, positions, mask_TK, *v_HBKE.shape[:2])
        probabilities_XTK = self.dropout(torch.softmax(scores_XTK, dim=-1))
        return torch.bmm(probabilities_XTK, v_HBKE.flatten(0, 1)).unflatten(0, v_HBKE.shape[:2])

    def merge(self, averages_HBTE: Float[Tensor, "H B T E"]) -> Float[Tensor, "B T D"]:
        """The output of attention from the averages of all heads."""
        return self.output(averages_HBTE.permute(1, 2, 0, 3).flatten(2))

    def projected(self, positions: LayerPositions) -> LayerPositions:
        """The same positions with what depends on distances alone computed: r = W_{k,R} R, or v·r itself
        where there is no term (b) and so no query whose product with r could include v.
        """
        r_HSE, v_HE = self._r(positions), positions.v_HE
        if "b" in self.terms or r_HSE is None or v_HE is None:
            return positions._replace(sinusoids_SD=None, table_HSE=None if r_HSE is None else r_HSE.contiguous())
        return LayerPositions(u_HE=positions.u_HE, bias_HS=torch.bmm(r_HSE, v_HE[:, :, None]).squeeze(2))

    def _r(self, positions: LayerPositions) -> Float[Tensor, "H S E"] | None:
        """r of the distances K, …, 0."""
        if self.position is None or positions.sinusoids_SD is None:
            return positions.table_HSE
        return self.position(positions.sinusoids_SD).unflatten(-1, (self.n_head, self.d_head)).transpose(0, 1)

    def _scores(
        self,
        q_HBTE: Tensor | None,
        k_HBKE: Tensor | None,
        positions: LayerPositions,
        mask_TK: Tensor,
        n_head: int,
        n_streams: int,
        terms: str | None = None,
    ) -> Float[Tensor, "X T K"]:
        """Masked scores of X = H·B heads of streams, of all terms or of those whose `positions` are given."""
        terms = self.terms if terms is None else terms
        T, K = mask_TK.shape
        scale = self.d_head**-0.5
        u, v, bias = (x if x is None else x * scale for x in (positions.u_HE, positions.v_HE, positions.bias_HS))
        q = q_HBTE if q_HBTE is None else q_HBTE * scale
        masks = mask_TK.expand(n_head * n_streams, T, K)

        content_query = total(q if "a" in terms else None, None if u is None else u[:, None, None])
        if content_query is None or k_HBKE is None:
            scores_XTK = masks.clone()
        else:
            rows = content_query.expand(-1, n_streams, -1, -1).flatten(0, 1)
            keys = k_HBKE.flatten(0, 1).transpose(1, 2)
            scores_XTK = torch.baddbmm(masks, rows, keys) if "a" in terms else masks + torch.bmm(rows, keys)

        position_query = total(q if "b" in terms else None, None if v is None else v[:, None, None])
        by_distance = scores_by_distance(position_query, self._r(positions), bias)
        if by_distance is None:
            return scores_XTK
        if "b" in terms:
            return scores_XTK.add_(relative_shift(by_distance.view(-1, T, K + 1)))
        shifted_H1TK = relative_shift(by_distance.expand(-1, T, -1).contiguous())[:, None]
        return (scores_XTK.unflatten(0, (n_head, n_streams)) + shifted_H1TK).flatten(0, 1)


def total(*summands: Tensor | None) -> Tensor | None:
    """The sum of those that are there; None if none is."""
    there = [x for x in summands if x is not None]
    return None if not there else there[0] if len(there) == 1 else there[0] + there[1]


def scores_by_distance(query: Tensor | None, r_HSE: Tensor | None, bias_HS: Tensor | None) -> Tensor | None:
    """Terms (b) and (d) by distance: [H, B·T, S], or [H, 1, S] where they do not depend on the query."""
    bias = None if bias_HS is None else bias_HS[:, None]
    if query is None or r_HSE is None:
        return bias
    rows = query.flatten(1, 2)
    product = torch.bmm(rows, r_HSE.transpose(1, 2))
    return product if bias is None else product.add_(bias)
