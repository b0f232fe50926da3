"""Multi-head attention of a segment over its memory and itself, with the score A_ij of section 3.3."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from txl_lightning.config.architecture import TransformerXLConfig
from txl_lightning.model.encodings import LayerPositions
from txl_lightning.model.kernels import cpu, fused
from txl_lightning.model.layers import Dropout
from txl_lightning.model.positions import VisibleKeys, relative_shift, rotate


def scores(
    q_HBTE: Float[Tensor, "H B T E"],
    k_HBKE: Float[Tensor, "H B K E"],
    r_HSE: Float[Tensor, "H S E"] | None,
    u_HE: Float[Tensor, "H E"] | None,
    v_HE: Float[Tensor, "H E"] | None,
    bias_HS: Float[Tensor, "H S"] | None = None,
    terms: str = "abcd",
) -> Float[Tensor, "H B T K"]:
    """Return A_ij of section 3.3 for all keys: a causal mask must hide those of the future.

        A_ij = (q_i·k_j + u·k_j + q_i·r_{i-j} + v·r_{i-j}) / sqrt(E)
                  (a)      (c)       (b)          (d)

    Every kernel (`model.kernels`) takes these arguments and is compared with this function.

    Args:
        q_HBTE: queries W_q h.
        k_HBKE: keys W_{k,E} h.
        r_HSE: r_s = W_{k,R} R_s, or a trained vector, of the distances s = K, …, 0; None where no term reads
            them.
        u_HE: content bias; None without (c).
        v_HE: position bias; None without (d).
        bias_HS: biases of the distances, in place of v·r_s; None for none.
        terms: whether (a) and (b) are among them.
    """
    zeros, (H, _, K, E) = k_HBKE.new_zeros, k_HBKE.shape
    u, v = (zeros(H, 1, 1, E) if x is None else x[:, None, None] for x in (u_HE, v_HE))
    r_HSE, bias_HS = zeros(H, K + 1, E) if r_HSE is None else r_HSE, zeros(H, K + 1) if bias_HS is None else bias_HS

    content_HBTK = torch.einsum("hbte,hbke->hbtk", q_HBTE * ("a" in terms) + u, k_HBKE)
    by_distance_HBTS = torch.einsum("hbte,hse->hbts", q_HBTE * ("b" in terms) + v, r_HSE) + bias_HS[:, None, None]
    position_HBTK = relative_shift(by_distance_HBTS.flatten(0, 1)).unflatten(0, q_HBTE.shape[:2])
    return (content_HBTK + position_HBTK) / math.sqrt(E)


class Attention(nn.Module):
    """Attention with the terms of A_ij that `config.active_terms` names (section 3.3).

        Y_i = Σ_j softmax_j(A_i) W_v h_j        A_ij: see `scores`

    An encoding may rotate q_i and k_j. The projections have no bias, and a projection that no term needs does not
    exist. Heads come before streams (X = H·B matrices in one batched product) because r is the same for all streams:
    (b) and (d) are one product per head, with the queries of all streams as rows.

    Args:
        config: sizes, terms and dropout.

    Attributes:
        kernel: one of `model.kernels` in place of that of the device; None for none.
    """

    kernel: Callable[..., Tensor] | None = None

    def __init__(self, config: TransformerXLConfig) -> None:
        super().__init__()
        self.n_head, self.d_head, terms = config.n_head, config.d_head, set(config.active_terms)
        width = config.n_head * config.d_head
        self.has_queries, self.has_keys = bool(set("ab") & terms), bool(set("ac") & terms)
        self.terms = config.active_terms
        self.qkv = fused.Linear(config.d_model, (self.has_queries + self.has_keys + 1) * width, bias=False)
        projects = config.kind.projects and bool(set("bd") & terms)
        self.position = fused.Linear(config.d_model, width, bias=False) if projects else None
        self.output = fused.Linear(width, config.d_model, bias=False)
        self.dropout = Dropout(config.attention_dropout)

    def forward(
        self,
        hidden_BTD: Float[Tensor, "B T D"],
        memory_BMD: Float[Tensor, "B M D"],
        positions: LayerPositions,
        visible: VisibleKeys,
    ) -> Float[Tensor, "B T D"]:
        """Attend from every token of the segment to the keys that it may attend to.

        The weights of keys and values get gradients through the memory. Its states carry no gradient, except those that
        earlier segments of the same training step appended (`memory.gradient_segments`, `Memory.update`).

        Args:
            hidden_BTD: input of the layer, after LayerNorm where the layer is pre-norm.
            memory_BMD: earlier inputs of the layer, after the same LayerNorm; in the last layer of a call with `n_last`
                also those of the segment's first tokens, with gradient.
            positions: u, v and the encoding of the distances K, …, 0.
            visible: keys that the queries may attend to.
        """
        return self.combine_heads(self.heads(hidden_BTD, memory_BMD, positions, visible))

    def heads(
        self,
        hidden_BTD: Float[Tensor, "B T D"],
        memory_BMD: Float[Tensor, "B M D"],
        positions: LayerPositions,
        visible: VisibleKeys,
    ) -> Float[Tensor, "H B T E"]:
        """Return the output of every head, before the output projection; arguments as for `forward`."""
        return self.attend(*self.project(hidden_BTD, memory_BMD), positions, visible)

    def project(
        self, hidden_BTD: Float[Tensor, "B T D"], memory_BMD: Float[Tensor, "B M D"] | None = None
    ) -> tuple[Float[Tensor, "H B T E"], Float[Tensor, "P H B K E"]]:
        """Project the segment to queries W_q h, and memory and segment to keys W_{k,E} h and values W_v h, heads first.

        The queries are zeros if no term needs them. P = 2 is keys and values; P = 1 is values alone, where no term
        needs keys.
        """
        by_head = (-1, self.n_head, self.d_head)
        qkv = self.qkv(hidden_BTD).unflatten(-1, by_head).permute(2, 3, 0, 1, 4)
        # A split: the backward of slices would first zero a whole gradient of qkv for each.
        P = self.has_keys + 1
        q_HBTE, kv_PHBKE = qkv.split([len(qkv) - P, P])
        q_HBTE = q_HBTE.squeeze(0) if self.has_queries else torch.zeros_like(kv_PHBKE[0])
        if memory_BMD is not None and memory_BMD.shape[1]:
            weight = self.qkv.weight[-P * self.n_head * self.d_head :]
            of_memory = fused.linear(memory_BMD, weight).unflatten(-1, by_head).permute(2, 3, 0, 1, 4)
            kv_PHBKE = torch.cat([of_memory, kv_PHBKE], dim=3)
        return q_HBTE, kv_PHBKE

    def attend(
        self,
        q_HBTE: Float[Tensor, "H B T E"],
        kv_PHBKE: Float[Tensor, "P H B K E"],
        positions: LayerPositions,
        visible: VisibleKeys,
    ) -> Float[Tensor, "H B T E"]:
        """Return Σ_j softmax_j(A_i) value_j for all heads, computed by the kernel of the device."""
        kernel = self.kernel or (cpu.attend if cpu.is_eager_on_cpu(q_HBTE) else fused.attend)
        parts = kv_PHBKE.unbind()  # P = 1: no term reads the keys
        q_HBTE, k_HBKE = _rotated(q_HBTE, parts[0], positions)
        r_HSE, bias_HS = self.distance_vectors(positions), positions.bias_HS
        vectors = (q_HBTE, k_HBKE, r_HSE, positions.u_HE, positions.v_HE)
        return kernel(*vectors, parts[-1], visible, self.dropout, bias_HS, self.terms)

    def distance_vectors(self, positions: LayerPositions) -> Float[Tensor, "H S E"] | None:
        """Return r_s = W_{k,R} R_s, or the trained vectors, of the distances K, …, 0; None if no term reads them."""
        if self.position is None or positions.sinusoids_SD is None:
            return positions.table_HSE
        return self.position(positions.sinusoids_SD).unflatten(-1, (self.n_head, -1)).transpose(0, 1).contiguous()

    def combine_heads(self, heads_HBTE: Float[Tensor, "H B T E"]) -> Float[Tensor, "B T D"]:
        """Concatenate the heads of every token and project them to the output."""
        # A copy in any case: an exported program must not depend on the order that a kernel gives the axes.
        heads_BTHE = heads_HBTE.permute(1, 2, 0, 3).clone(memory_format=torch.contiguous_format)
        output_BTD: Tensor = self.output(heads_BTHE.flatten(2))
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
        q_HBTE, kv_PHBKE = self.project(hidden_BTD, memory_BMD)
        return self.scores(q_HBTE, kv_PHBKE[0], positions, visible, terms)

    def scores(
        self,
        q_HBTE: Float[Tensor, "H B T E"],
        k_HBKE: Float[Tensor, "H B K E"],
        positions: LayerPositions,
        visible: VisibleKeys,
        terms: str | None = None,
    ) -> Float[Tensor, "H B T K"]:
        """Return `logits` from the projections."""
        terms = self.terms if terms is None else terms
        if not set(terms) <= set(self.terms):
            raise ValueError(f"terms {terms!r} of an attention that has {self.terms!r}")
        q_HBTE, k_HBKE = _rotated(q_HBTE, k_HBKE, positions)
        given = positions.of_terms(terms)
        vectors = (q_HBTE, k_HBKE, self.distance_vectors(given), given.u_HE, given.v_HE)
        return scores(*vectors, given.bias_HS, terms) + visible.mask_TK


def _rotated(q_HBTE: Tensor, k_HBKE: Tensor, positions: LayerPositions) -> tuple[Tensor, Tensor]:
    """Rotate queries and keys by their positions, if the encoding does."""
    if positions.rotation_2SE is None:
        return q_HBTE, k_HBKE
    return rotate(q_HBTE, positions.rotation_2SE), rotate(k_HBKE, positions.rotation_2SE)
