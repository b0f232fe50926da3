"""Multi-head attention of a segment over its memory and itself, with any of the four terms of the logits."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from txl_lightning.config.architecture import TransformerXLConfig
from txl_lightning.model.encodings import LayerPositions
from txl_lightning.model.kernels import attend
from txl_lightning.model.kernels.eager import Factors
from txl_lightning.model.layers import Dropout
from txl_lightning.model.positions import VisibleKeys, relative_shift, rotate


def scores(
    q_HBTE: Float[Tensor, "H B T E"] | None,
    k_HBKE: Float[Tensor, "H B K E"],
    r_HSE: Float[Tensor, "H S E"] | None,
    u_HE: Float[Tensor, "H E"] | None,
    v_HE: Float[Tensor, "H E"] | None,
    n_queries: int,
    terms: str = "abcd",
    bias_HS: Float[Tensor, "H S"] | None = None,
) -> Float[Tensor, "H B T K"]:
    """Return A_ij of section 3.3, term by term, for all keys: a causal mask must hide those of the future.

        A_ij = (q_i·k_j + u·k_j + q_i·r_{i-j} + v·r_{i-j}) / sqrt(E)
                  (a)      (c)       (b)          (d)

    Kernels compute [(q_i + u)·k_j + (q_i + v)·r_{i-j}] / sqrt(E), and only for the keys that a query sees.

    Args:
        q_HBTE: queries; None without (a) and (b).
        k_HBKE: keys; not read without (a) and (c).
        r_HSE: r_s of the distances s = K, …, 0; None for none.
        u_HE: content bias; None without (c).
        v_HE: position bias; None without (d).
        n_queries: T.
        terms: whether (a) and (b) are among them.
        bias_HS: biases of the distances, in place of v·r_s; None for none.
    """

    def by_key(by_distance_HBTS: Tensor) -> Tensor:
        whole = by_distance_HBTS.expand(-1, -1, n_queries, -1).contiguous()
        return relative_shift(whole.flatten(0, 1)).unflatten(0, whole.shape[:2])

    H, B, K, E = k_HBKE.shape
    a = b = c = d = bias = k_HBKE.new_zeros(H, B, n_queries, K)
    if "a" in terms and q_HBTE is not None:
        a = torch.einsum("hbte,hbke->hbtk", q_HBTE, k_HBKE)
    if "b" in terms and q_HBTE is not None and r_HSE is not None:
        b = by_key(torch.einsum("hbte,hse->hbts", q_HBTE, r_HSE))
    if u_HE is not None:
        c = torch.einsum("he,hbke->hbk", u_HE, k_HBKE)[:, :, None]
    if v_HE is not None and r_HSE is not None:
        d = by_key(torch.einsum("he,hse->hs", v_HE, r_HSE)[:, None, None])
    if bias_HS is not None:
        bias = by_key(bias_HS[:, None, None])
    return (a + b + c + d + bias) / math.sqrt(E)


class Attention(nn.Module):
    """Attention whose logits are the sum of the terms that `config.active_terms` names (section 3.3).

        Y_i = Σ_j softmax_j(A_i) v_j        A_ij: see `scores`

    u is the content bias and v the position bias. r_{i-j} is W_{k,R} R_{i-j} or a trained vector of the distance;
    v·r_{i-j} may be a trained bias. An encoding may rotate q_i and k_j. With `qk_norm` both are first normalised in
    each head by an RMSNorm. The projections have no bias, and a projection that no term needs does not exist. Heads
    come before streams (X = H·B matrices in one batched product) because r is the same for all streams: (b) and (d) are
    one product per head, with the queries of all streams as rows.

    Args:
        config: sizes, terms and dropout.

    Attributes:
        kernel: default or flex (see `model.kernels`).
    """

    def __init__(self, config: TransformerXLConfig) -> None:
        super().__init__()
        self.n_head, self.d_head, terms = config.n_head, config.d_head, set(config.active_terms)
        width = config.n_head * config.d_head
        self.n_query, self.n_key = int(bool(set("ab") & terms)), int(bool(set("ac") & terms))
        self.terms = config.active_terms
        self.qkv = nn.Linear(config.d_model, (self.n_query + self.n_key + 1) * width, bias=False)
        projects = config.kind.projects and bool(set("bd") & terms)
        self.position = nn.Linear(config.d_model, width, bias=False) if projects else None
        self.output = nn.Linear(width, config.d_model, bias=False)
        norm = (config.d_head, config.layer_norm_epsilon)  # one gain for all heads
        self.query_norm = nn.RMSNorm(*norm) if self.n_query and config.qk_norm else None
        self.key_norm = nn.RMSNorm(*norm) if self.n_key and config.qk_norm else None
        self.dropout = Dropout(config.attention_dropout)
        self.kernel = "default"

    def forward(
        self,
        hidden_BTD: Float[Tensor, "B T D"],
        memory_BMD: Float[Tensor, "B M D"],
        positions: LayerPositions,
        visible: VisibleKeys,
    ) -> Float[Tensor, "B T D"]:
        """Attend from every token of the segment to the keys that it may attend to.

        Gradients reach the weights of keys and values through the memory; its states carry none but those of the same
        training step, with `memory.gradient_segments` (`Memory.update`).

        Args:
            hidden_BTD: input of the layer, after LayerNorm where the layer is pre-norm.
            memory_BMD: earlier inputs of the layer, after the same LayerNorm; in the last layer of a call with `n_last`
                also those of the segment's first tokens, with gradient.
            positions: u, v and the encoding of the distances K, …, 0.
            visible: keys that the queries may attend to.
        """
        return self.combine_heads(self.attend(*self.project(hidden_BTD, memory_BMD), positions, visible, self.kernel))

    def project(
        self, hidden_BTD: Float[Tensor, "B T D"], memory_BMD: Float[Tensor, "B M D"] | None = None
    ) -> tuple[Tensor | None, Float[Tensor, "P H B K E"]]:
        """Project the segment to queries W_q h, and memory and segment to keys W_{k,E} h and values W_v h, heads first.

        The queries are None if no term needs them. P = 2 is keys and values; P = 1 is values alone, where no term needs
        keys.
        """
        by_head = (-1, self.n_head, self.d_head)
        qkv = self.qkv(hidden_BTD).unflatten(-1, by_head).permute(2, 3, 0, 1, 4)
        # A split: the backward of slices would first zero a whole gradient of qkv for each.
        q_NHBTE, kv_PHBKE = qkv.split([self.n_query, len(qkv) - self.n_query])
        q_HBTE = q_NHBTE.squeeze(0) if self.n_query else None
        if memory_BMD is not None and memory_BMD.shape[1]:
            weight = self.qkv.weight[self.n_query * self.n_head * self.d_head :]
            of_memory = F.linear(memory_BMD, weight).unflatten(-1, by_head).permute(2, 3, 0, 1, 4)
            kv_PHBKE = torch.cat([of_memory, kv_PHBKE], dim=3)
        if self.query_norm is not None and q_HBTE is not None:
            q_HBTE = _normalize(q_HBTE, self.query_norm)
        if self.key_norm is not None:
            k_HBKE, v_HBKE = kv_PHBKE.unbind()
            kv_PHBKE = torch.stack([_normalize(k_HBKE, self.key_norm), v_HBKE])
        return q_HBTE, kv_PHBKE

    def attend(
        self,
        q_HBTE: Float[Tensor, "H B T E"] | None,
        kv_PHBKE: Float[Tensor, "P H B K E"],
        positions: LayerPositions,
        visible: VisibleKeys,
        kernel: str = "default",
    ) -> Float[Tensor, "H B T E"]:
        """Return Σ_j softmax(A_i)_j v_j for all heads, computed by a kernel (see `model.kernels`)."""
        return attend(kernel, self.factors(q_HBTE, kv_PHBKE, positions, visible, self.terms), self.dropout)

    def factors(
        self,
        q_HBTE: Float[Tensor, "H B T E"] | None,
        kv_PHBKE: Float[Tensor, "P H B K E"],
        positions: LayerPositions,
        visible: VisibleKeys,
        terms: str,
    ) -> Factors:
        """Return the factors of the logits, by which keys and distances are multiplied, with the keys and values.

            (q_i + u) / sqrt(E)    for k_j, without terms (a) and (c) None
            (q_i + v) / sqrt(E)    for r_s of the distances s = K, …, 0

        The products are left to the kernel, which needs only those of visible keys. Streams and tokens have size 1 in a
        factor that no query enters.

        Args:
            q_HBTE: queries.
            kv_PHBKE: keys and values, or values alone.
            positions: u, v and the encoding of the distances, None for terms that are left out.
            visible: keys that the queries may attend to.
            terms: terms of the logits.
        """
        q_HBTE, k_HBKE = _rotated(q_HBTE, kv_PHBKE[0], positions)  # P = 1: k is v, and no kernel reads it
        scale = self.d_head**-0.5  # of the factors, which are smaller than the logits
        q, u, v, bias_HS = (
            None if x is None else x * scale for x in (q_HBTE, positions.u_HE, positions.v_HE, positions.bias_HS)
        )
        content = _sum(q if "a" in terms else None, None if u is None else u[:, None, None])
        position = _sum(q if "b" in terms else None, None if v is None else v[:, None, None])
        return Factors(content, k_HBKE, kv_PHBKE[-1], visible, position, self.distance_vectors(positions), bias_HS)

    def distance_vectors(self, positions: LayerPositions) -> Float[Tensor, "H S E"] | None:
        """Return r_s = W_{k,R} R_s, or the trained vectors, of the distances s = K, …, 0; None without (b) and (d)."""
        if self.position is None or positions.sinusoids_SD is None:
            return positions.table_HSE
        return self.position(positions.sinusoids_SD).unflatten(-1, (self.n_head, -1)).transpose(0, 1).contiguous()

    def combine_heads(self, heads_HBTE: Float[Tensor, "H B T E"]) -> Float[Tensor, "B T D"]:
        """Concatenate the heads of every token and project them to the output."""
        output_BTD: Tensor = self.output(heads_HBTE.permute(1, 2, 0, 3).flatten(2))
        return output_BTD

    def logits(
        self,
        hidden_BTD: Float[Tensor, "B T D"],
        memory_BMD: Float[Tensor, "B M D"],
        positions: LayerPositions,
        visible: VisibleKeys,
        terms: str | None = None,
    ) -> Float[Tensor, "H B T K"]:
        """Return the argument of the softmax in `forward`: A_ij, and -inf where a key is hidden.

        Args:
            hidden_BTD: input of the layer, as in `forward`.
            memory_BMD: earlier inputs of the layer.
            positions: u, v and the encoding of the distances.
            visible: keys that the queries may attend to.
            terms: only these terms (Figure 7); the logits of single terms add up to the whole.

        Raises:
            ValueError: the attention lacks one of the terms.
        """
        terms = self.terms if terms is None else terms
        if not set(terms) <= set(self.terms):
            raise ValueError(f"terms {terms!r} of an attention that has {self.terms!r}")
        q_HBTE, kv_PHBKE = self.project(hidden_BTD, memory_BMD)
        q_HBTE, k_HBKE = _rotated(q_HBTE, kv_PHBKE[0], positions)
        u_HE, v_HE, *_, bias_HS, _ = given = positions.of_terms(terms)
        vectors = (self.distance_vectors(given), u_HE, v_HE)
        return scores(q_HBTE, k_HBKE, *vectors, hidden_BTD.shape[1], terms, bias_HS) + visible.mask_TK

    def probabilities(
        self,
        hidden_BTD: Float[Tensor, "B T D"],
        memory_BMD: Float[Tensor, "B M D"],
        positions: LayerPositions,
        visible: VisibleKeys,
    ) -> Float[Tensor, "H B T K"]:
        """Return the softmax of `logits` over the keys."""
        return self.logits(hidden_BTD, memory_BMD, positions, visible).softmax(dim=-1)


def _rotated(q_HBTE: Tensor | None, k_HBKE: Tensor, positions: LayerPositions) -> tuple[Tensor | None, Tensor]:
    """Rotate queries and keys by their positions, if the encoding does."""
    if positions.rotation_2SE is None or q_HBTE is None:
        return q_HBTE, k_HBKE
    return rotate(q_HBTE, positions.rotation_2SE), rotate(k_HBKE, positions.rotation_2SE)


def _normalize(x_HBTE: Tensor, norm: nn.RMSNorm) -> Tensor:
    """Normalise in the type of the gain: float32 under autocast, as torch's fused kernel needs."""
    normalized: Tensor = norm(x_HBTE.to(norm.weight.dtype))
    return normalized.to(x_HBTE.dtype)


def _sum(one: Tensor | None, other: Tensor | None) -> Tensor | None:
    """Add two tensors, of which each may be missing."""
    if one is None or other is None:
        return other if one is None else one
    return one + other
