"""Multi-head attention of a segment over its memory and itself, with the score A_ij of section 3.3."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from txl_lightning.config.architecture import TransformerXLConfig
from txl_lightning.model.encodings import LayerPositions
from txl_lightning.model.kernels import fused
from txl_lightning.model.kernels.fused import is_eager_on_cpu
from txl_lightning.model.layers import Dropout
from txl_lightning.model.positions import VisibleKeys, relative_shift, rotate

# Queries of a block in training: larger blocks need more RAM and compute more logits of hidden keys, smaller ones need
# more calls.
BLOCK = {torch.float64: 128, torch.float32: 128, torch.bfloat16: 256}
# Without a gradient nothing is computed twice, so smaller blocks pay. Scores of some of the heads have this many bytes.
QUERIES_AT_ONCE = 64
SCORES_BYTES_AT_ONCE = 1 << 22
PRECISE = (torch.float32, torch.float64)


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

    Args:
        q_HBTE: queries W_q h.
        k_HBKE: keys W_{k,E} h.
        r_HSE: r_s = W_{k,R} R_s, or a trained vector, of the distances s = K, …, 0; None where no term reads
            them.
        u_HE: content bias; None without (c).
        v_HE: position bias; None without (d).
        bias_HS: biases of the distances, in place of v·r_s; None for none.
        terms: letters of the terms; only a and b are read, since (c) and (d) follow from u, v and the bias.
    """
    content_HBTE, position_HBTK = content_and_position(q_HBTE, k_HBKE, r_HSE, u_HE, v_HE, bias_HS, terms)
    content_HBTK = content_HBTE @ k_HBKE.mT
    return content_HBTK if position_HBTK is None else content_HBTK.add_(position_HBTK)


def content_and_position(
    q_HBTE: Float[Tensor, "H B T E"],
    k_HBKE: Float[Tensor, "H B K E"],
    r_HSE: Float[Tensor, "H S E"] | None,
    u_HE: Float[Tensor, "H E"] | None,
    v_HE: Float[Tensor, "H E"] | None,
    bias_HS: Float[Tensor, "H S"] | None = None,
    terms: str = "abcd",
    wraps: bool = False,
) -> tuple[Float[Tensor, "H B T E"], Float[Tensor, "H B_or_1 T K"] | None]:
    """Return (q_i + u) / sqrt(E), whose products with the keys are (a) + (c), and (b) + (d) by key; None without both.

    Arguments as for `scores`. Columns of keys after a query hold values of other distances (`relative_shift`). With
    `wraps` the mask shows them, so that the distances must not be padded for a GPU.
    """
    (H, _, T, E), K = q_HBTE.shape, k_HBKE.shape[2]
    # Queries and biases are scaled, which are smaller than the scores.
    q, u, v, bias = (None if x is None else x * E**-0.5 for x in (q_HBTE, u_HE, v_HE, bias_HS))
    content = _sum(q if "a" in terms else None, u)
    content_HBTE = q_HBTE.new_zeros(1).expand_as(q_HBTE) if content is None else content.expand_as(q_HBTE)
    position = None if r_HSE is None else _sum(q if "b" in terms else None, v)
    by_distance = None if bias is None else bias[:, None]
    if position is not None and r_HSE is not None:
        of_heads, padding = fused.missing(E, r_HSE), fused.missing(K + 1, r_HSE)
        padding = 0 if wraps or by_distance is not None else padding
        r_HSE = F.pad(r_HSE, (0, of_heads, 0, padding)) if of_heads or padding else r_HSE  # pads of zero would copy
        # All streams' queries are rows of one product per head, as r is the same for all.
        of_position = fused.aligned(position).flatten(1, 2) @ r_HSE.mT
        by_distance = of_position if by_distance is None else of_position.add_(by_distance)
    if by_distance is None:
        return content_HBTE, None
    if by_distance.shape[1] == 1:
        by_distance = by_distance.expand(-1, T, -1).contiguous()
    position_XTK = relative_shift(by_distance.view(-1, T, by_distance.shape[2]), K)
    return content_HBTE, position_XTK.unflatten(0, (H, -1))


def _sum(q_HBTE: Tensor | None, bias_HE: Tensor | None) -> Tensor | None:
    bias_H11E = None if bias_HE is None else bias_HE[:, None, None]
    return bias_H11E if q_HBTE is None else q_HBTE if bias_H11E is None else q_HBTE + bias_H11E


class Operands(NamedTuple):
    """Arguments of `scores`, values and visible keys, of some queries and heads."""

    q_HBTE: Tensor
    k_HBKE: Tensor
    r_HSE: Tensor | None
    u_HE: Tensor | None
    v_HE: Tensor | None
    bias_HS: Tensor | None
    terms: str
    values_HBKE: Tensor
    visible: VisibleKeys

    @property
    def of_scores(self) -> Any:
        """Arguments of `scores`."""
        return self[:7]

    def part(self, queries: slice, heads: slice = slice(None)) -> Operands:
        """Keep some queries and heads, and the keys up to that of the last of these queries."""
        q_HBTE, k_HBKE, r_HSE, u_HE, v_HE, bias_HS, terms, values_HBKE, visible = self
        n_keys = k_HBKE.shape[2] - q_HBTE.shape[2] + queries.stop
        k_HBKE, values_HBKE = (x[heads, :, :n_keys] for x in (k_HBKE, values_HBKE))
        u_HE, v_HE = (None if x is None else x[heads] for x in (u_HE, v_HE))
        r_HSE, bias_HS = (None if x is None else x[heads, -n_keys - 1 :] for x in (r_HSE, bias_HS))
        visible = visible.part(queries, n_keys)
        return Operands(q_HBTE[heads, :, queries], k_HBKE, r_HSE, u_HE, v_HE, bias_HS, terms, values_HBKE, visible)


def softmax_attention(operands: Operands, dropout: nn.Module) -> Float[Tensor, "H B T E"]:
    """Return Σ_j softmax_j(A_i) value_j over the visible keys j, with dropout of the probabilities.

        on a GPU, or compiled                   torch's kernel
        on the CPU, with gradient or dropout    `attend_plainly`, in blocks of queries, which leave out later keys
        without, queries at few places          torch's kernel, a query at a time
        without, over 64 queries that cannot    `attend_plainly`, in groups of heads, whose scores stay in the caches
            be cut (mostly memory, or later
            keys are seen), float32 or 64
        without, else                           torch's kernel, in blocks of queries

    BENCHMARKS.md has what each gains, in "Attention in blocks of queries".
    """
    T, K, dtype, visible = *operands.visible.mask_TK.shape[-2:], operands.values_HBKE.dtype, operands.visible
    drops: Any = dropout.p if dropout.training else 0.0
    if not is_eager_on_cpu(operands.q_HBTE):
        return attend_fused(operands, drops)
    if torch.is_grad_enabled() or drops:
        size = BLOCK.get(dtype, T) if visible.causal else T
        if size >= T or dtype == torch.bfloat16:
            return _in_blocks(attend_plainly, operands, size, dropout)
        # Computed again in the backward pass instead of stored: costs less than the keys that are left out save.
        again = partial(checkpoint, attend_plainly, use_reentrant=False, preserve_rng_state=drops > 0)
        return _in_blocks(again, operands, size, dropout)
    if visible.places:
        heads_HBTE = operands.values_HBKE.new_zeros(operands.q_HBTE.shape)
        for place in visible.places:
            heads_HBTE[:, :, place, None] = attend_fused(operands.part(slice(place, place + 1)))
        return heads_HBTE
    # With mostly memory few keys can be left out. Queries that see later keys are one block.
    size = QUERIES_AT_ONCE if K < 4 * T and visible.causal else max(1, T)
    if min(size, T) > QUERIES_AT_ONCE and dtype in PRECISE:
        return _by_heads(operands, dropout)
    return _in_blocks(attend_fused, operands, size)


def attend_plainly(operands: Operands, dropout: nn.Module) -> Float[Tensor, "H B T E"]:
    """Return dropout(softmax(A + mask)) · values."""
    scores_HBTK, values_HBKE = scores(*operands.of_scores), operands.values_HBKE
    logits_HBTK = scores_HBTK.add_(operands.visible.mask_TK.to(scores_HBTK.dtype))
    return dropout(logits_HBTK.softmax(-1)).to(values_HBKE.dtype) @ values_HBKE


def attend_fused(operands: Operands, p: float = 0.0) -> Float[Tensor, "H B T E"]:
    """Return what `attend_plainly` does, by torch's kernel: (b), (d) and the mask are its bias, p is the dropout's."""
    values_HBKE, visible = operands.values_HBKE, operands.visible
    q, k, r, u, v, bias, terms = operands.of_scores
    content_HBTE, position_HBTK = content_and_position(q, k, r, u, v, bias, terms, wraps=not visible.causal)
    # In one type: a sum of two types would convert all scores.
    added = visible.mask_TK.to((values_HBKE if position_HBTK is None else position_HBTK).dtype)
    if position_HBTK is not None and added.ndim == 2 and is_eager_on_cpu(q) and not torch.is_grad_enabled():
        first = visible.first_hidden  # in place, and nothing for the keys that all queries see
        position_HBTK[..., first:] += added[:, first:]
        added = position_HBTK
    elif position_HBTK is not None:
        added = position_HBTK + added
    added_HBTK = added.expand(*content_HBTE.shape[:3], -1)
    return fused.sdpa(content_HBTE, k, values_HBKE, added_HBTK, p)


def _in_blocks(way: Callable[..., Tensor], operands: Operands, size: int, *arguments: nn.Module) -> Tensor:
    """Attend from one block of queries after another."""
    T = operands.q_HBTE.shape[2]
    if size >= T:
        return way(operands, *arguments)
    parts = [operands.part(slice(first, min(first + size, T))) for first in range(0, T, size)]
    return torch.cat([way(part, *arguments) for part in parts], dim=2)


def _by_heads(operands: Operands, dropout: nn.Module) -> Tensor:
    """Attend with a group of heads after another."""
    H, B, T, _ = operands.q_HBTE.shape
    bytes_of_head = B * T * operands.k_HBKE.shape[2] * operands.values_HBKE.element_size()
    n = max(SCORES_BYTES_AT_ONCE // bytes_of_head, torch.get_num_threads() // B, 1)
    parts = [operands.part(slice(0, T), slice(first, first + n)) for first in range(0, H, n)]
    return torch.cat([attend_plainly(part, dropout) for part in parts])


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
        self.stacked = {"qkv.weight": self.has_queries + self.has_keys + 1}  # matrices, for Muon
        self.qkv = fused.Linear(config.d_model, self.stacked["qkv.weight"] * width, bias=False)
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
        """Return Σ_j softmax_j(A_i) value_j for all heads."""
        parts = kv_PHBKE.unbind()  # P = 1: no term reads the keys
        q, k, r, u, v, bias, terms = self.score_arguments(q_HBTE, parts[0], positions, self.terms)
        if self.kernel is not None:
            return self.kernel(q, k, r, u, v, parts[-1], visible, self.dropout, bias, terms)
        return softmax_attention(Operands(q, k, r, u, v, bias, terms, parts[-1], visible), self.dropout)

    def score_arguments(self, q_HBTE: Tensor, k_HBKE: Tensor, positions: LayerPositions, terms: str) -> Any:
        """Return the arguments of `scores`: queries and keys rotated if the encoding rotates them."""
        if positions.rotation_2SE is not None:
            q_HBTE, k_HBKE = (rotate(x, positions.rotation_2SE) for x in (q_HBTE, k_HBKE))
        r_HSE, u_HE, v_HE, bias_HS = self.distance_vectors(positions), positions.u_HE, positions.v_HE, positions.bias_HS
        return q_HBTE, k_HBKE, r_HSE, u_HE, v_HE, bias_HS, terms

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
        return self.masked_scores(q_HBTE, kv_PHBKE[0], positions, visible, terms)

    def masked_scores(
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
        return scores(*self.score_arguments(q_HBTE, k_HBKE, positions.of_terms(terms), terms)) + visible.mask_TK
