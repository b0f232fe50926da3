"""Multi-head attention of a segment over its memory and itself, with any of the four terms of the score."""

from __future__ import annotations

from contextlib import nullcontext

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint

from txl_lightning.model.config import TransformerXLConfig
from txl_lightning.model.dropout import Dropout
from txl_lightning.model.encodings import LayerPositions
from txl_lightning.model.kernels.choice import attend_fused, kernel_on
from txl_lightning.model.kernels.cpu_parts import (
    attend_by_products,
    block_size,
    first_keys,
    head_groups,
    joined,
    products_are_faster,
    products_with_table,
    query_blocks,
    softmax_of,
    widened,
)
from txl_lightning.model.positions import VisibleKeys, relative_shift, rotate

# Without cuDNN's attention, which torch prefers on an H100: it plans every new length of the memory anew.
ON_A_GPU = [SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]


class Attention(nn.Module):
    """Attention whose score is the sum of the terms that `config.active_terms` names (section 3.3).

        A_ij = (q_i·k_j + u·k_j + q_i·r_{i-j} + v·r_{i-j}) / sqrt(E)
                  (a)      (c)       (b)          (d)
             = [(q_i + u)·k_j + (q_i + v)·r_{i-j}] / sqrt(E)

    r_{i-j} is W_{k,R} R_{i-j} or a trained vector of the distance; v·r_{i-j} may be a trained bias. An encoding may
    rotate q_i and k_j. With `qk_norm` both are first normalised in each head, x / rms(x) · gain (RMSNorm of Zhang &
    Sennrich 2019; normalised queries and keys: Henry et al. 2020, Dehghani et al. 2023). The projections have no
    bias, and a projection that no term needs does not exist. Heads come before streams
    (X = H·B matrices in one batched product) because r is the same for all streams: (b) and (d) are one
    product per head, with the queries of all streams as rows.

    Args:
        config: sizes, terms and dropout.

    Attributes:
        kernel: eager, flex, triton or auto (see `model.kernels`).
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
        self.query_norm = _head_norm(config) if has_query and config.qk_norm else None
        self.key_norm = _head_norm(config) if has_key and config.qk_norm else None
        self.dropout = Dropout(config.attention_dropout)
        self.kernel = "eager"

    def forward(
        self,
        hidden_BTD: Float[Tensor, "B T D"],
        memory_BMD: Float[Tensor, "B M D"],
        positions: LayerPositions,
        visible: VisibleKeys,
    ) -> Float[Tensor, "B T D"]:
        """Attend from every token of the segment to the keys that it may attend to.

        Gradients reach the weights of keys and values through the memory, but not the memory itself.

        Args:
            hidden_BTD: input of the layer, after LayerNorm where the layer is pre-norm.
            memory_BMD: earlier inputs of the layer, after the same LayerNorm.
            positions: u, v and the encoding of the distances K, …, 0.
            visible: keys that the queries may attend to.
        """
        q_HBTE, kv_PHBKE = self.project_with_memory(hidden_BTD, memory_BMD)
        return self.combine_heads(self.attend(q_HBTE, kv_PHBKE, positions, visible))

    def scores(
        self,
        hidden_BTD: Float[Tensor, "B T D"],
        memory_BMD: Float[Tensor, "B M D"],
        positions: LayerPositions,
        visible: VisibleKeys,
        terms: str | None = None,
    ) -> Float[Tensor, "H B T K"]:
        """Return the argument of the softmax in `forward`: A_ij / sqrt(E), and -inf where a key is hidden.

        Args:
            hidden_BTD: input of the layer, as in `forward`.
            memory_BMD: earlier inputs of the layer.
            positions: u, v and the encoding of the distances.
            visible: keys that the queries may attend to.
            terms: only these terms (Figure 7); the scores of single terms add up to the whole score.

        Raises:
            ValueError: the attention lacks one of the terms.
        """
        terms = self.terms if terms is None else terms
        if not set(terms) <= set(self.terms):
            raise ValueError(f"terms {terms!r} of an attention that has {self.terms!r}")
        q_HBTE, kv_PHBKE = self.project_with_memory(hidden_BTD, memory_BMD)
        q_HBTE, keys_values = rotated(q_HBTE, kv_PHBKE, positions.rotation_2SE)
        scores_XTK = self._scores(q_HBTE, keys_values, positions.of_terms(terms), visible.mask_TK, terms)
        return scores_XTK.unflatten(0, kv_PHBKE.shape[1:3])

    def project_with_memory(
        self, hidden_BTD: Float[Tensor, "B T D"], memory_BMD: Float[Tensor, "B M D"]
    ) -> tuple[Tensor | None, Float[Tensor, "P H B K E"]]:
        """Project the segment to queries, and memory and segment to keys and values; see `project`."""
        q_HBTE, kv_PHBKE = self._project(hidden_BTD)
        if memory_BMD.shape[1]:
            weight = self.qkv.weight[self.n_query * self.n_head * self.d_head :]
            memory_kv = F.linear(memory_BMD, weight).unflatten(-1, (-1, self.n_head, self.d_head))
            kv_PHBKE = torch.cat([memory_kv.permute(2, 3, 0, 1, 4), kv_PHBKE], dim=3)
        return self._normalized(q_HBTE, kv_PHBKE)

    def project(self, hidden_BTD: Float[Tensor, "B T D"]) -> tuple[Tensor | None, Float[Tensor, "P H B T E"]]:
        """Project to queries (None if no term needs them), keys and values, heads first.

        P = 2 is keys and values; P = 1 is values alone, where no term needs keys.
        """
        return self._normalized(*self._project(hidden_BTD))

    def _project(self, hidden_BTD: Float[Tensor, "B T D"]) -> tuple[Tensor | None, Float[Tensor, "P H B T E"]]:
        parts = self.qkv(hidden_BTD).unflatten(-1, (-1, self.n_head, self.d_head)).permute(2, 3, 0, 1, 4)
        if not self.n_query:
            return None, parts
        q_1HBTE, kv_PHBTE = parts.split([1, len(parts) - 1])  # slices would fill their gradients with zeros
        return q_1HBTE.squeeze(0), kv_PHBTE

    def _normalized(self, q_HBTE: Tensor | None, kv_PHBKE: Tensor) -> tuple[Tensor | None, Tensor]:
        """Normalise queries and keys with `qk_norm`."""
        if self.query_norm is not None:
            assert q_HBTE is not None
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
    ) -> Float[Tensor, "H B T E"]:
        """Return Σ_j softmax(A_i)_j v_j for all heads, computed by the chosen kernel."""
        p, by_stream = self.dropout.p if self.dropout.training else 0.0, visible.mask_TK.ndim == 3
        kernel = kernel_on(kv_PHBKE.device, self.kernel, by_stream, kv_PHBKE.dtype, p)
        q_HBTE, keys_values = rotated(q_HBTE, kv_PHBKE, positions.rotation_2SE)
        if kernel == "eager":
            return self.attend_eager(q_HBTE, keys_values, positions, visible.mask_TK)
        if positions.rotation_2SE is not None:
            kv_PHBKE = torch.stack(keys_values)
        query, by_distance = self._factors(q_HBTE, positions, self.terms)
        return attend_fused(kernel, query, kv_PHBKE, by_distance, visible, p)

    def attend_eager(
        self,
        q_HBTE: Float[Tensor, "H B T E"] | None,
        keys_values: tuple[Tensor, ...],
        positions: LayerPositions,
        mask_TK: Float[Tensor, "*B T K"],
    ) -> Float[Tensor, "H B T E"]:
        """Return Σ_j softmax(A_i)_j v_j after any rotation, by torch's own operations.

        Without a gradient the mask may be narrower than K: it is that of the last keys, and all before are visible.
        """
        if not torch.is_grad_enabled() and not (self.dropout.training and self.dropout.p):
            return self._attend_without_gradient(q_HBTE, keys_values, positions, mask_TK)
        if mask_TK.shape[-2] > block_size(keys_values[-1]):
            return self._attend_in_blocks(q_HBTE, keys_values, positions, mask_TK)
        return self._attend_with_gradient(q_HBTE, keys_values, positions, mask_TK)

    def _attend_in_blocks(
        self, q_HBTE: Tensor | None, keys_values: tuple[Tensor, ...], positions: LayerPositions, mask_TK: Tensor
    ) -> Float[Tensor, "H B T E"]:
        """Attend from one block of queries after another, without the keys that come after all queries of a block.

        The backward pass computes a block's probabilities again instead of storing them, which costs less than the
        skipped products save. In bfloat16 it would cost more, so there they are stored.
        """
        positions = self.precompute(positions)
        size, recomputed = block_size(keys_values[-1]), keys_values[-1].dtype != torch.bfloat16
        T, K = mask_TK.shape[-2:]
        masks = mask_TK.split(size, dim=-2)
        lengths = [min(K - T + (n + 1) * size, K) for n in range(len(masks))]
        queries = [None] * len(masks) if q_HBTE is None else q_HBTE.split(size, dim=2)
        keys = zip(*(first_keys(x_HBKE, lengths) for x_HBKE in keys_values), strict=True)
        heads = []
        for n_keys, q_block, visible_keys, mask in zip(lengths, queries, keys, masks, strict=True):
            block = (q_block, visible_keys, positions.up_to(n_keys), mask[..., :n_keys])
            if recomputed:
                draws = self.dropout.training and self.dropout.p > 0
                heads.append(
                    checkpoint(self._attend_with_gradient, *block, use_reentrant=False, preserve_rng_state=draws)
                )
            else:
                heads.append(self._attend_with_gradient(*block))
        return torch.cat(heads, dim=2)

    def _attend_with_gradient(
        self, q_HBTE: Tensor | None, keys_values: tuple[Tensor, ...], positions: LayerPositions, mask_TK: Tensor
    ) -> Float[Tensor, "H B T E"]:
        scores_XTK = self._scores(q_HBTE, keys_values, positions, mask_TK, self.terms)
        v_HBKE = keys_values[-1]
        probabilities_XTK = self.dropout(softmax_of(scores_XTK, read_by=self.dropout))
        return torch.bmm(probabilities_XTK, v_HBKE.flatten(0, 1)).unflatten(0, v_HBKE.shape[:2])

    def _attend_without_gradient(
        self, q_HBTE: Tensor | None, keys_values: tuple[Tensor, ...], positions: LayerPositions, mask_TK: Tensor
    ) -> Float[Tensor, "H B T E"]:
        """Attend from a block of queries, and with a group of heads, at a time."""
        if positions.sinusoids_SD is not None:
            positions = self.precompute(positions)
        attend = self._attend_fused if self.n_key else self._attend_with_gradient
        blocks, K = [], keys_values[-1].shape[2]
        mask_TK = mask_TK if self.n_key else widened(mask_TK, K)
        for queries, n_keys in query_blocks(mask_TK, K):
            nearest, of_block = positions.up_to(n_keys), mask_TK[..., queries, : mask_TK.shape[-1] - (K - n_keys)]
            groups = [
                attend(
                    None if q_HBTE is None else q_HBTE[heads, :, queries],
                    tuple(x_HBKE[heads, :, :n_keys] for x_HBKE in keys_values),
                    nearest.of_heads(heads),
                    of_block,
                )
                for heads in head_groups(keys_values[-1], T=of_block.shape[-2])
            ]
            blocks.append(joined(groups, dim=0))
        return joined(blocks, dim=2)

    def _attend_fused(
        self, q_HBTE: Tensor | None, keys_values: tuple[Tensor, ...], positions: LayerPositions, mask_TK: Tensor
    ) -> Float[Tensor, "H B T E"]:
        """Attend by torch's fused attention, which reads keys and values in place; (b), (d) and the mask are its bias.

        It has no gradient for its bias on the CPU, so training cannot use it. In bfloat16, where batched products copy
        keys and values first, it takes a half to a ninth of the time; in float32 products of many queries are faster.
        """
        query, by_distance = self._factors(q_HBTE, positions, self.terms)
        assert query is not None
        k_HBKE, v_HBKE = keys_values
        H, B, K, _ = v_HBKE.shape
        T = mask_TK.shape[-2]
        if by_distance is None:
            bias = widened(mask_TK, K).to(v_HBKE.dtype)  # autocast would convert it for every head and stream
        else:
            bias = position_scores(by_distance, T).unflatten(0, (H, -1))
            mask_TK = mask_TK.to(bias.dtype)  # exact; a sum of two types copies the larger, here all scores
            if mask_TK.ndim == 2:
                bias[..., K - mask_TK.shape[1] :].add_(mask_TK)
            else:
                bias = bias + mask_TK
        if bias.is_cuda:  # both are views, and the kernel refuses one that begins at an address it cannot read at once
            bias = bias.clone(memory_format=torch.contiguous_format)  # before it is expanded
        query, bias = query.expand(H, B, T, -1), bias.expand(H, B, T, K)
        if products_are_faster(bias):
            return attend_by_products(query, k_HBKE, v_HBKE, bias)
        with sdpa_kernel(ON_A_GPU) if bias.is_cuda else nullcontext():
            return F.scaled_dot_product_attention(query, k_HBKE, v_HBKE, attn_mask=bias, scale=1.0)

    def combine_heads(self, heads_HBTE: Float[Tensor, "H B T E"]) -> Float[Tensor, "B T D"]:
        """Concatenate the heads of every token and project them to the output."""
        return self.output(heads_HBTE.permute(1, 2, 0, 3).flatten(2))

    def precompute(self, positions: LayerPositions) -> LayerPositions:
        """Return positions with r = W_{k,R} R computed, for weights that do not change.

        Without term (b) no query is multiplied with r, so v·r itself is computed and added to the bias of the distance.
        """
        r_HSE, v_HE = self._distance_vectors(positions), positions.v_HE
        if "b" in self.terms or r_HSE is None or v_HE is None:
            return positions._replace(sinusoids_SD=None, table_HSE=None if r_HSE is None else r_HSE.contiguous())
        bias_HS = _sum(torch.bmm(r_HSE, v_HE[:, :, None]).squeeze(2), positions.bias_HS)
        return LayerPositions(u_HE=positions.u_HE, bias_HS=bias_HS, rotation_2SE=positions.rotation_2SE)

    def _distance_vectors(self, positions: LayerPositions) -> Float[Tensor, "H S E"] | None:
        """Return r of the distances K, …, 0."""
        if self.position is None or positions.sinusoids_SD is None:
            return positions.table_HSE
        return self.position(positions.sinusoids_SD).unflatten(-1, (self.n_head, self.d_head)).transpose(0, 1)

    def _scores(
        self,
        q_HBTE: Tensor | None,
        keys_values: tuple[Tensor, ...],
        positions: LayerPositions,
        mask_TK: Tensor,
        terms: str,
    ) -> Float[Tensor, "X T K"]:
        """Add the two halves of the score. `positions` has None for terms that are left out."""
        query, by_distance = self._factors(q_HBTE, positions, terms)
        H, B = keys_values[-1].shape[:2]
        if query is not None and query.shape[2] == mask_TK.shape[-2]:
            mask_TK = mask_TK.to(keys_values[0].dtype)  # exact; autocast would convert it for every head and stream
        by_stream = mask_TK.ndim == 3
        mask_XTK = mask_TK.expand(H, -1, -1, -1).flatten(0, 1) if by_stream else mask_TK.expand(H * B, -1, -1)
        content_XTK = content_scores(query, keys_values[0], mask_XTK)
        if by_distance is None:
            return content_XTK
        position = position_scores(by_distance, mask_TK.shape[-2])
        if len(position) == len(content_XTK):
            return content_XTK.add_(position)
        return (content_XTK.unflatten(0, (H, B)) + position[:, None]).flatten(0, 1)

    def _factors(
        self, q_HBTE: Tensor | None, positions: LayerPositions, terms: str
    ) -> tuple[Float[Tensor, "H _B _T E"] | None, Float[Tensor, "H _BT S"] | None]:
        """Return what is multiplied with the keys, and the scores by distance; None for a half without terms.

        These are (q_i + u) / sqrt(E) and (q_i + v)·r_s / sqrt(E) of the distances s = K, …, 0. Streams and tokens
        have size 1 in a half that no query enters.
        """
        scale = self.d_head**-0.5  # applied to the factors, which are smaller than the scores
        u, v, bias = (x if x is None else x * scale for x in (positions.u_HE, positions.v_HE, positions.bias_HS))
        q = q_HBTE if q_HBTE is None else q_HBTE * scale
        query = _sum(q if "a" in terms else None, None if u is None else u[:, None, None])
        rows = _sum(q if "b" in terms else None, None if v is None else v[:, None, None])
        by_distance = None if bias is None else bias[:, None]
        r_HSE = self._distance_vectors(positions)
        if rows is not None and r_HSE is not None:
            product = products_with_table(rows.flatten(1, 2), r_HSE)
            by_distance = product if by_distance is None else product.add_(by_distance)
        return query, by_distance


def rotated(
    q_HBTE: Float[Tensor, "H B T E"] | None, kv_PHBKE: Float[Tensor, "P H B K E"], rotation_2SE: Tensor | None
) -> tuple[Tensor | None, tuple[Tensor, ...]]:
    """Return queries, and keys and values apart, with queries and keys rotated if there is a rotation."""
    if rotation_2SE is None or q_HBTE is None:
        return q_HBTE, kv_PHBKE.unbind()
    k_HBKE, v_HBKE = kv_PHBKE.unbind()
    return rotate(q_HBTE, rotation_2SE), (rotate(k_HBKE, rotation_2SE), v_HBKE)


def content_scores(
    query: Float[Tensor, "H _B _T E"] | None, k_HBKE: Float[Tensor, "H B K E"], mask_XTK: Float[Tensor, "X T K"]
) -> Float[Tensor, "X T K"]:
    """Terms (a) + (c): (q_i + u)·k_j / sqrt(E), plus the mask.

    Args:
        query: (q_i + u) / sqrt(E); None without both terms.
        k_HBKE: keys; not read without a query.
        mask_XTK: 0 or -inf.
    """
    if query is None:
        return mask_XTK.clone()
    rows = query.expand(-1, k_HBKE.shape[1], -1, -1).flatten(0, 1)
    keys = k_HBKE.flatten(0, 1).transpose(1, 2)
    if rows.shape[1] < mask_XTK.shape[1]:
        return mask_XTK + torch.bmm(rows, keys)  # u has one row for all T queries
    return torch.baddbmm(mask_XTK, rows, keys)


def position_scores(by_distance: Float[Tensor, "H _BT S"], n_queries: int) -> Float[Tensor, "X_or_H T K"]:
    """Terms (b) + (d) by key, from those by distance; H instead of H·B matrices if no query enters them.

    Args:
        by_distance: (q_i + v)·r_s / sqrt(E) of the distances K, …, 0.
        n_queries: T.
    """
    if by_distance.shape[1] == 1:
        by_distance = by_distance.expand(-1, n_queries, -1).contiguous()
    return relative_shift(by_distance.view(-1, n_queries, by_distance.shape[2]))


def _head_norm(config: TransformerXLConfig) -> nn.RMSNorm:
    """Return the norm of the queries or of the keys of a layer, with one gain for all its heads."""
    return nn.RMSNorm(config.d_head, config.layer_norm_epsilon)


def _normalize(x_HBTE: Tensor, norm: nn.RMSNorm) -> Tensor:
    """Normalise in the type of the gain: float32 under autocast, as torch's fused kernel needs."""
    normalized: Tensor = norm(x_HBTE.to(norm.weight.dtype))
    return normalized.to(x_HBTE.dtype)


def _sum(one: Tensor | None, other: Tensor | None) -> Tensor | None:
    """Add two tensors, of which each may be missing."""
    if one is None or other is None:
        return other if one is None else one
    return one + other
