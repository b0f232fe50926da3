"""Multi-head attention from a segment to its memory and itself, with the score A_ij of section 3.3.

Read in this order: `scores` is A_ij as it stands in the paper. `attend` chooses how to compute the softmax over it.
`Attention` projects the layer's inputs to queries, keys and values, and the encoding (encodings.py) supplies u, v and
the distances' vectors r.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint

from txl_lightning.config.architecture import TransformerXLConfig
from txl_lightning.model import gpu
from txl_lightning.model.encodings import LayerPositions
from txl_lightning.model.gpu import is_eager_on_cpu
from txl_lightning.model.layers import Dropout
from txl_lightning.model.positions import VisibleKeys, relative_shift, rotate
from txl_lightning.model.shapes import (
    DistanceBiases,
    DistanceVectors,
    HeadBias,
    Heads,
    Hidden,
    Keys,
    KeysValues,
    Scores,
    States,
)

# Queries per block in training on a CPU: larger blocks compute more scores for hidden keys, smaller ones need more
# calls.
TRAINING_BLOCK = {
    torch.float64: 128,
    torch.float32: 128,
    torch.bfloat16: 256,
}
# Without a gradient nothing is computed again, so blocks can be smaller.
EVALUATION_BLOCK = 64
# From this many keys per query on, blocks would leave out few keys; groups of heads keep their scores in the caches.
MOSTLY_MEMORY = 4
GROUP_BYTES = 1 << 22
# Torch's kernels that have a gradient for the bias; cuDNN's has none.
KERNELS_WITH_BIAS_GRADIENT = [SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]


def scores(
    q_HBTE: Heads,
    k_HBKE: Keys,
    r_HSE: DistanceVectors | None,
    u_HE: HeadBias | None,
    v_HE: HeadBias | None,
    bias_HS: DistanceBiases | None = None,
    terms: str = "abcd",
    pads_distances: bool = True,
) -> Scores:
    """Return A_ij of section 3.3 for all keys: a causal mask must hide the later ones.

        A_ij = (q_i·k_j + u·k_j + q_i·r_{i-j} + v·r_{i-j}) / sqrt(E)
                  (a)      (c)       (b)          (d)

    Args:
        q_HBTE: queries W_q h.
        k_HBKE: keys W_{k,E} h.
        r_HSE: r_s = W_{k,R} R_s, or a trained vector, for the distances s = K, …, 0; None if no term reads them.
        u_HE: content bias; None without (c).
        v_HE: position bias; None without (d).
        bias_HS: biases by distance, instead of v·r_s; None for none.
        terms: only `a` and `b` are read; (c) is off without u, (d) without v and bias.
        pads_distances: see `query_and_position`.
    """
    query_HBTE, position_HBTK = query_and_position(
        q_HBTE, r_HSE, u_HE, v_HE, bias_HS, k_HBKE.shape[2], terms, pads_distances
    )
    scores_HBTK = query_HBTE @ k_HBKE.mT
    if position_HBTK is not None:
        scores_HBTK.add_(position_HBTK)
    return scores_HBTK


def query_and_position(
    q_HBTE: Heads,
    r_HSE: DistanceVectors | None,
    u_HE: HeadBias | None,
    v_HE: HeadBias | None,
    bias_HS: DistanceBiases | None,
    n_keys: int,
    terms: str,
    pads_distances: bool = True,
) -> tuple[Heads, Float[Tensor, "H B_or_1 T K"] | None]:
    """Return the queries whose product with the keys is (a) + (c), and the scores (b) + (d) by key.

        (q_i + u) / sqrt(E)                  its product with key j is (a) + (c)
        (q_i + v)·r_{i-j} / sqrt(E)          (b) + (d); None if the attention has neither

    Args:
        q_HBTE: queries.
        r_HSE: vectors for the distances K, …, 0.
        u_HE: content bias.
        v_HE: position bias.
        bias_HS: biases by distance, instead of v·r_s.
        n_keys: K.
        terms: the terms' letters.
        pads_distances: whether a GPU may append rows with zeros to r. They change later keys' scores, which the mask
            must then hide; False for a variant whose mask is not causal.
    """
    scale = (
        q_HBTE.shape[-1] ** -0.5
    )  # applied to queries and biases, smaller tensors than the scores
    query_HBTE = q_HBTE * scale
    content = _with_bias(query_HBTE if "a" in terms else None, u_HE, scale)
    if content is None:
        content = q_HBTE.new_zeros(1)
    by_distance = None
    if bias_HS is not None:
        by_distance = (bias_HS * scale)[:, None]
    query = _with_bias(query_HBTE if "b" in terms else None, v_HE, scale)
    if query is not None and r_HSE is not None:
        has_free_rows = pads_distances and by_distance is None
        r_HSE = gpu.aligned_matrix(r_HSE, pads_rows=has_free_rows)
        # r is the same for all streams, so their queries are rows in one product per head.
        product = gpu.aligned(query).flatten(1, 2) @ r_HSE.mT
        by_distance = product if by_distance is None else product.add_(by_distance)
    position_HBTK = None
    if by_distance is not None:
        position_HBTK = _by_key(by_distance, q_HBTE.shape[2], n_keys)
    return content.expand_as(q_HBTE), position_HBTK


def _with_bias(
    query_HBTE: Tensor | None,
    bias_HE: Tensor | None,
    scale: float,
) -> Tensor | None:
    """Return query + scale · bias; if one is None, the other."""
    if bias_HE is None:
        return query_HBTE
    bias_H11E = (bias_HE * scale)[:, None, None]
    if query_HBTE is None:
        return bias_H11E
    return query_HBTE + bias_H11E


def _by_key(
    by_distance_HXS: Tensor,
    T: int,
    n_keys: int,
) -> Float[Tensor, "H B_or_1 T K"]:
    """Turn scores by distance, X = B·T queries or one for all, into scores by key (appendix B)."""
    if by_distance_HXS.shape[1] == 1:
        by_distance_HXS = by_distance_HXS.expand(-1, T, -1).contiguous()
    H, _, S = by_distance_HXS.shape
    by_key = relative_shift(by_distance_HXS.view(-1, T, S), n_keys)
    return by_key.unflatten(0, (H, -1))


class AttentionInputs(NamedTuple):
    """Queries, keys, values and positions in one attention; `scores` explains all except the values."""

    q_HBTE: Heads
    k_HBKE: Keys
    values_HBKE: Keys
    r_HSE: DistanceVectors | None
    u_HE: HeadBias | None
    v_HE: HeadBias | None
    bias_HS: DistanceBiases | None
    terms: str
    visible: VisibleKeys

    def block(self, first: int, end: int) -> AttentionInputs:
        """Keep the queries `first` to `end`, the keys up to the last query, and their distances."""
        n_keys = self.k_HBKE.shape[2] - self.q_HBTE.shape[2] + end
        r_HSE = self.r_HSE
        if r_HSE is not None:
            r_HSE = r_HSE[:, -n_keys - 1 :]
        bias_HS = self.bias_HS
        if bias_HS is not None:
            bias_HS = bias_HS[:, -n_keys - 1 :]
        return self._replace(
            q_HBTE=self.q_HBTE[:, :, first:end],
            k_HBKE=self.k_HBKE[:, :, :n_keys],
            values_HBKE=self.values_HBKE[:, :, :n_keys],
            r_HSE=r_HSE,
            bias_HS=bias_HS,
            visible=self.visible.block(first, end, n_keys),
        )

    def heads(self, first: int, end: int) -> AttentionInputs:
        """Keep the heads `first` to `end`."""
        kept: dict[str, Any] = {}
        for name, x in self._asdict().items():
            if isinstance(x, Tensor):
                kept[name] = x[first:end]
        return self._replace(**kept)


def attend(inputs: AttentionInputs, dropout: Dropout) -> Heads:
    """Return Σ_j softmax_j(A_i) value_j over the visible keys j, with dropout on the probabilities.

        on a GPU, or compiled                   `attend_with_kernel`
        on a CPU, with gradient or dropout      `attend_as_written`, in blocks of 128 or 256 queries
        on a CPU, with neither
            few outputs are read                `attend_with_kernel`, one query at a time
            over 64 queries, mostly memory      `attend_as_written`, in groups of heads (float32, float64)
            else                                `attend_with_kernel`, in blocks of 64 queries

    A block leaves out the keys after its last query. BENCHMARKS.md has what blocks and groups gain.
    """
    if not is_eager_on_cpu(inputs.q_HBTE):
        return attend_with_kernel(inputs, dropout)
    if torch.is_grad_enabled() or (dropout.training and dropout.p):
        return _attend_with_gradient(inputs, dropout)
    if inputs.visible.only_queries:
        heads_HBTE = torch.zeros_like(inputs.q_HBTE, dtype=inputs.values_HBKE.dtype)
        for i in inputs.visible.only_queries:
            one_query = inputs.block(i, i + 1)
            heads_HBTE[:, :, i : i + 1] = attend_with_kernel(one_query, dropout)
        return heads_HBTE
    T, K = inputs.visible.mask_TK.shape[-2:]
    leaves_out_few = K >= MOSTLY_MEMORY * T or not inputs.visible.causal
    is_precise = inputs.values_HBKE.dtype in (torch.float32, torch.float64)
    if T > EVALUATION_BLOCK and leaves_out_few and is_precise:
        return _attend_in_groups_of_heads(inputs, dropout)
    return _attend_in_blocks(attend_with_kernel, inputs, dropout, EVALUATION_BLOCK)


def attend_as_written(inputs: AttentionInputs, dropout: Dropout) -> Heads:
    """Return dropout(softmax(A + mask)) · values, with A from `scores`."""
    probabilities_HBTK = dropout(masked_scores(inputs).softmax(-1))
    return probabilities_HBTK.to(inputs.values_HBKE.dtype) @ inputs.values_HBKE


def masked_scores(inputs: AttentionInputs) -> Scores:
    """Return A_ij, and -inf where a key is hidden."""
    x = inputs
    scores_HBTK = scores(
        x.q_HBTE,
        x.k_HBKE,
        x.r_HSE,
        x.u_HE,
        x.v_HE,
        x.bias_HS,
        x.terms,
        x.visible.causal,
    )
    return scores_HBTK.add_(x.visible.mask_TK.to(scores_HBTK.dtype))


def attend_with_kernel(inputs: AttentionInputs, dropout: Dropout) -> Heads:
    """Compute `attend_as_written` by torch's scaled_dot_product_attention, which stores no probabilities.

    Its bias holds (b), (d) and the mask.
    """
    x = inputs
    query_HBTE, bias = query_and_position(
        x.q_HBTE,
        x.r_HSE,
        x.u_HE,
        x.v_HE,
        x.bias_HS,
        x.k_HBKE.shape[2],
        x.terms,
        pads_distances=x.visible.causal,
    )
    mask = x.visible.mask_TK
    if bias is None:
        bias = mask.to(x.values_HBKE.dtype)
    elif mask.ndim == 2 and is_eager_on_cpu(x.q_HBTE) and not torch.is_grad_enabled():
        # In place, and only where the mask hides a key: another tensor costs 6 to 11 % of an evaluation.
        first = x.visible.first_hidden
        bias[..., first:] += mask[:, first:].to(bias.dtype)
    else:
        bias = bias + mask.to(bias.dtype)
    # With gradients, or on any GPU, only kernels that compute a gradient for the bias may run.
    backend: Any = nullcontext()
    if torch.is_grad_enabled() or query_HBTE.device.type != "cpu":
        backend = sdpa_kernel(KERNELS_WITH_BIAS_GRADIENT)
    with backend:
        heads_HBTE = F.scaled_dot_product_attention(
            gpu.aligned(query_HBTE),
            gpu.aligned(x.k_HBKE),
            gpu.aligned(x.values_HBKE),
            attn_mask=bias.expand(*query_HBTE.shape[:3], -1),
            dropout_p=dropout.p if dropout.training else 0.0,
            scale=1.0,
        )
    return heads_HBTE[..., : x.values_HBKE.shape[-1]]


def _attend_with_gradient(inputs: AttentionInputs, dropout: Dropout) -> Tensor:
    """Attend as written, in blocks of queries.

    If there are several blocks, float32 and float64 compute their probabilities again in the backward pass: this costs
    less than the left-out keys save. In bfloat16 it costs more, so they are stored.
    """
    dtype = inputs.values_HBKE.dtype
    T = inputs.q_HBTE.shape[2]
    size = TRAINING_BLOCK.get(dtype, T)
    if size >= T or dtype == torch.bfloat16:
        return _attend_in_blocks(attend_as_written, inputs, dropout, size)

    def attend_again(block: AttentionInputs, dropout: Dropout) -> Any:
        drops = dropout.training and dropout.p > 0
        return checkpoint(
            attend_as_written, block, dropout, use_reentrant=False, preserve_rng_state=drops
        )

    return _attend_in_blocks(attend_again, inputs, dropout, size)


def _attend_in_blocks(
    attend_block: Callable[[AttentionInputs, Dropout], Tensor],
    inputs: AttentionInputs,
    dropout: Dropout,
    size: int,
) -> Tensor:
    """Attend from one block of queries after another; without a causal mask there is one block."""
    T = inputs.q_HBTE.shape[2]
    if size >= T or not inputs.visible.causal:
        return attend_block(inputs, dropout)
    heads = []
    for first in range(0, T, size):
        end = min(first + size, T)
        heads.append(attend_block(inputs.block(first, end), dropout))
    return torch.cat(heads, dim=2)


def _attend_in_groups_of_heads(inputs: AttentionInputs, dropout: Dropout) -> Tensor:
    """Attend as written with one group of heads after another, whose scores take at most `GROUP_BYTES`."""
    H, B, T, _ = inputs.q_HBTE.shape
    K = inputs.k_HBKE.shape[2]
    bytes_of_head = B * T * K * inputs.values_HBKE.element_size()
    size = max(1, GROUP_BYTES // bytes_of_head, torch.get_num_threads() // B)
    groups = []
    for first in range(0, H, size):
        groups.append(attend_as_written(inputs.heads(first, first + size), dropout))
    return torch.cat(groups)


class Attention(nn.Module):
    """Attention with the terms in A_ij that `config.active_terms` names (section 3.3).

        Y_i = Σ_j softmax_j(A_i) W_v h_j        A_ij: see `scores`

    An encoding may rotate q_i and k_j. The projections have no bias, and a projection that no term
    needs does not exist. Heads come before streams (H·B matrices in one batched product) because r
    is the same for all streams.

    Args:
        config: sizes, terms and dropout.

    Attributes:
        kernel: a function that replaces `attend`, called with q, k, r, u, v, values, visible keys,
            dropout, bias and terms (docs/gpus.md); None for none.
    """

    kernel: Callable[..., Tensor] | None = None

    def __init__(self, config: TransformerXLConfig) -> None:
        super().__init__()
        terms = set(config.active_terms)
        width = config.n_head * config.d_head
        self.n_head = config.n_head
        self.d_head = config.d_head
        self.terms = config.active_terms
        self.has_queries = bool(set("ab") & terms)
        self.has_keys = bool(set("ac") & terms)
        n_matrices = self.has_queries + self.has_keys + 1
        self.stacked = {"qkv.weight": n_matrices}  # Muon updates each matrix separately
        self.qkv = gpu.Linear(
            config.d_model,
            n_matrices * width,
            bias=False,
        )
        self.position = None
        if config.kind.projects and set("bd") & terms:
            self.position = gpu.Linear(config.d_model, width, bias=False)
        self.output = gpu.Linear(width, config.d_model, bias=False)
        self.dropout = Dropout(config.attention_dropout)

    def forward(
        self,
        hidden_BTD: Hidden,
        memory_BMD: States,
        positions: LayerPositions,
        visible: VisibleKeys,
    ) -> Hidden:
        """Attend from every token in the segment to the keys that it may attend to.

        The weights for keys and values get gradients through the memory. Its states carry none (`Memory.update` stops
        it), except those that earlier segments in the same training step appended (`memory.gradient_segments`).

        Args:
            hidden_BTD: the layer's input, after LayerNorm where the layer is pre-norm.
            memory_BMD: the layer's earlier inputs, after the same LayerNorm; in the last layer, in a call with
                `n_last`, also the segment's first tokens, with gradient.
            positions: u, v and the encoding for the distances K, …, 0.
            visible: keys that the queries may attend to.
        """
        return self.combine_heads(self.heads(hidden_BTD, memory_BMD, positions, visible))

    def heads(
        self,
        hidden_BTD: Hidden,
        memory_BMD: States,
        positions: LayerPositions,
        visible: VisibleKeys,
    ) -> Heads:
        """Return every head's output, before the output projection; arguments as for `forward`."""
        q_HBTE, kv_PHBKE = self.project(hidden_BTD, memory_BMD)
        return self.attend(q_HBTE, kv_PHBKE, positions, visible)

    def project(
        self, hidden_BTD: Hidden, memory_BMD: States | None = None
    ) -> tuple[Heads, KeysValues]:
        """Project the segment to queries W_q h, memory and segment to keys W_{k,E} h and values W_v h.

        The queries are zeros if no term needs them. P = 2 is keys and values; P = 1 is values
        alone, where no term needs keys.
        """
        P = self.has_keys + 1
        qkv = self._by_head(self.qkv(hidden_BTD))
        # A split: the backward pass of slices would first zero a whole qkv gradient for each.
        q_1HBTE, kv_PHBKE = qkv.split([len(qkv) - P, P])
        if memory_BMD is not None and memory_BMD.shape[1]:
            kv_PHBKE = torch.cat([self._memory_keys_values(memory_BMD), kv_PHBKE], dim=3)
        if not self.has_queries:
            return torch.zeros_like(qkv[0]), kv_PHBKE
        return q_1HBTE.squeeze(0), kv_PHBKE

    def _memory_keys_values(self, memory_BMD: States) -> Tensor:
        """Project the memory. A plain `qkv` computes no queries; a wrapped or hooked one is called."""
        P = self.has_keys + 1
        if is_plain(self.qkv):
            rows = P * self.n_head * self.d_head
            return self._by_head(gpu.linear(memory_BMD, self.qkv.weight[-rows:]))
        return self._by_head(self.qkv(memory_BMD))[-P:]

    def _by_head(self, projected: Tensor) -> KeysValues:
        return projected.unflatten(-1, (-1, self.n_head, self.d_head)).permute(2, 3, 0, 1, 4)

    def attend(
        self,
        q_HBTE: Heads,
        kv_PHBKE: KeysValues,
        positions: LayerPositions,
        visible: VisibleKeys,
    ) -> Heads:
        """Return Σ_j softmax_j(A_i) value_j for all heads."""
        x = self.attention_inputs(q_HBTE, kv_PHBKE, positions, visible)
        if self.kernel is None:
            return attend(x, self.dropout)
        return self.kernel(
            x.q_HBTE,
            x.k_HBKE,
            x.r_HSE,
            x.u_HE,
            x.v_HE,
            x.values_HBKE,
            visible,
            self.dropout,
            x.bias_HS,
            x.terms,
        )

    def attention_inputs(
        self,
        q_HBTE: Heads,
        kv_PHBKE: KeysValues,
        positions: LayerPositions,
        visible: VisibleKeys,
        terms: str | None = None,
    ) -> AttentionInputs:
        """Return what `scores` reads, with queries and keys rotated if the encoding rotates them."""
        # `unbind`, because an index's backward pass allocates a gradient for all parts. With P = 1 the keys are the
        # values, and no term reads them.
        keys_and_values = kv_PHBKE.unbind()
        k_HBKE = keys_and_values[0]
        if positions.rotation_2SE is not None:
            q_HBTE = rotate(q_HBTE, positions.rotation_2SE)
            k_HBKE = rotate(k_HBKE, positions.rotation_2SE)
        return AttentionInputs(
            q_HBTE,
            k_HBKE,
            keys_and_values[-1],
            self.distance_vectors(positions),
            positions.u_HE,
            positions.v_HE,
            positions.bias_HS,
            self.terms if terms is None else terms,
            visible,
        )

    def distance_vectors(self, positions: LayerPositions) -> DistanceVectors | None:
        """Return r_s = W_{k,R} R_s, or the trained vectors, for the distances K, …, 0; None for none."""
        if self.position is None or positions.sinusoids_SD is None:
            return positions.table_HSE
        projected_SHE = self.position(positions.sinusoids_SD).unflatten(-1, (self.n_head, -1))
        return projected_SHE.transpose(0, 1).contiguous()

    def combine_heads(self, heads_HBTE: Heads) -> Hidden:
        """Concatenate every token's heads and project them to the output."""
        # Always a copy: an exported program must not depend on the order that a kernel gives the
        # axes.
        heads_BTHE = heads_HBTE.permute(1, 2, 0, 3).clone(memory_format=torch.contiguous_format)
        return self.output(heads_BTHE.flatten(2))

    def logits(
        self,
        hidden_BTD: Hidden,
        memory_BMD: States,
        positions: LayerPositions,
        visible: VisibleKeys,
        terms: str | None = None,
    ) -> Scores:
        """Return the argument to the softmax in `forward`: A_ij, and -inf where a key is hidden.

        Args:
            hidden_BTD: the layer's input, as in `forward`.
            memory_BMD: the layer's earlier inputs.
            positions: u, v and the distances' encoding.
            visible: keys that the queries may attend to.
            terms: only these terms (Figure 7); the logits of single terms add up to the whole.

        Raises:
            ValueError: the attention lacks a term.
        """
        if terms is not None:
            if not set(terms) <= set(self.terms):
                raise ValueError(f"terms {terms!r} of an attention that has {self.terms!r}")
            positions = positions.of_terms(terms)
        q_HBTE, kv_PHBKE = self.project(hidden_BTD, memory_BMD)
        return masked_scores(self.attention_inputs(q_HBTE, kv_PHBKE, positions, visible, terms))


def is_plain(module: nn.Module) -> bool:
    """Return whether a projection computes x W^T: no wrapper, parametrization or hook changes it."""
    hooks = (
        module._forward_hooks,
        module._forward_pre_hooks,
        module._backward_hooks,
        module._backward_pre_hooks,
    )
    return type(module) is gpu.Linear and not any(hooks)
