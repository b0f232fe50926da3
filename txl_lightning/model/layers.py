"""One layer of Transformer-XL: relative multi-head attention over memory and segment, then feed-forward."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from txl_lightning.model.config import TransformerXLConfig
from txl_lightning.model.dropout import Dropout
from txl_lightning.model.positions import relative_shift


def relative_scores(
    q_HBTE: Float[Tensor, "H B T E"],
    k_HBKE: Float[Tensor, "H B K E"],
    r_HSE: Float[Tensor, "H S E"],
    u_HE: Float[Tensor, "H E"],
    v_HE: Float[Tensor, "H E"],
    mask_TK: Float[Tensor, "T K"],
) -> Float[Tensor, "X T K"]:
    """The four terms of the attention score (paper §3.3), masked, for X = H·B heads of streams.

        A_ij = (q_i·k_j + q_i·r_{i-j} + u·k_j + v·r_{i-j}) / sqrt(E)
                 (a)        (b)         (c)     (d)           = [(q_i + u)·k_j + (q_i + v)·r_{i-j}] / sqrt(E)

    r_{i-j} = W_{k,R} R_{i-j} does not depend on the stream, so that (b) + (d) is one product a head with
    the rows of all streams under each other. Heads come before streams for this reason.
    """
    H, B, T, E = q_HBTE.shape
    K = k_HBKE.shape[2]
    scale = E**-0.5
    q_HBTE = q_HBTE * scale
    content_query = (q_HBTE + (u_HE * scale)[:, None, None]).reshape(H * B, T, E)
    position_query = (q_HBTE + (v_HE * scale)[:, None, None]).reshape(H, B * T, E)
    position_scores = torch.bmm(position_query, r_HSE.transpose(1, 2)).view(H * B, T, K + 1)
    content_keys = k_HBKE.reshape(H * B, K, E).transpose(1, 2)
    scores_XTK = torch.baddbmm(mask_TK.expand(H * B, T, K), content_query, content_keys)
    return scores_XTK.add_(relative_shift(position_scores))


class RelativeAttention(nn.Module):
    """Multi-head attention of a segment over its memory and itself, all projections free of bias.

    Args:
        config: sizes and attention dropout.
    """

    def __init__(self, config: TransformerXLConfig) -> None:
        super().__init__()
        self.n_head, self.d_head = config.n_head, config.d_head
        width = config.n_head * config.d_head
        self.qkv = nn.Linear(config.d_model, 3 * width, bias=False)
        self.position = nn.Linear(config.d_model, width, bias=False)
        self.output = nn.Linear(width, config.d_model, bias=False)
        self.dropout = Dropout(config.attention_dropout)

    def forward(
        self,
        hidden_BTD: Float[Tensor, "B T D"],
        memory_BMD: Float[Tensor, "B M D"],
        positions_SD: Float[Tensor, "S D"],
        u_HE: Float[Tensor, "H E"],
        v_HE: Float[Tensor, "H E"],
        mask_TK: Float[Tensor, "T K"],
    ) -> Float[Tensor, "B T D"]:
        """Attend from every token of the segment to the keys that `mask_TK` leaves visible."""
        heads = (self.n_head, self.d_head)
        qkv_3HBTE = self.qkv(hidden_BTD).unflatten(-1, (3, *heads)).permute(2, 3, 0, 1, 4)
        kv_2HBKE = qkv_3HBTE[1:]
        if memory_BMD.shape[1]:
            key_value_weight = self.qkv.weight[self.n_head * self.d_head :]
            memory_kv = F.linear(memory_BMD, key_value_weight).unflatten(-1, (2, *heads))
            kv_2HBKE = torch.cat([memory_kv.permute(2, 3, 0, 1, 4), kv_2HBKE], dim=3)
        k_HBKE, v_HBKE = kv_2HBKE.unbind(0)
        r_HSE = self.position(positions_SD).unflatten(-1, heads).transpose(0, 1)

        scores_XTK = relative_scores(qkv_3HBTE[0], k_HBKE, r_HSE, u_HE, v_HE, mask_TK)
        probabilities_XTK = self.dropout(torch.softmax(scores_XTK, dim=-1))
        H, B, K, E = v_HBKE.shape
        context = torch.bmm(probabilities_XTK, v_HBKE.reshape(H * B, K, E)).view(H, B, -1, E)
        return self.output(context.permute(1, 2, 0, 3).flatten(2))


class FeedForward(nn.Sequential):
    """Position-wise Linear - ReLU - Linear with dropout after the ReLU and at the end."""

    def __init__(self, config: TransformerXLConfig) -> None:
        super().__init__(
            nn.Linear(config.d_model, config.d_inner),
            nn.ReLU(inplace=True),
            Dropout(config.dropout),
            nn.Linear(config.d_inner, config.d_model),
            Dropout(config.dropout),
        )


class TransformerXLLayer(nn.Module):
    """Attention and feed-forward, each with a residual sum and a LayerNorm behind (or in front of) it.

    post-norm (the paper):  o = LN(h + Attn(h, m)),  h' = LN(o + FF(o))
    pre-norm:               o = h + Attn(LN h, LN m),  h' = o + FF(LN o)
    """

    def __init__(self, config: TransformerXLConfig) -> None:
        super().__init__()
        self.pre_norm = config.pre_norm
        self.attention = RelativeAttention(config)
        self.attention_norm = nn.LayerNorm(config.d_model)
        self.feed_forward = FeedForward(config)
        self.feed_forward_norm = nn.LayerNorm(config.d_model)
        self.dropout = Dropout(config.dropout)

    def forward(
        self,
        hidden_BTD: Float[Tensor, "B T D"],
        memory_BMD: Float[Tensor, "B M D"],
        positions_SD: Float[Tensor, "S D"],
        u_HE: Float[Tensor, "H E"],
        v_HE: Float[Tensor, "H E"],
        mask_TK: Float[Tensor, "T K"],
    ) -> Float[Tensor, "B T D"]:
        """One layer's output from its input and the memory of its inputs."""
        context = (positions_SD, u_HE, v_HE, mask_TK)
        if self.pre_norm:
            queries, memory = self.attention_norm(hidden_BTD), self.attention_norm(memory_BMD)
            hidden_BTD = hidden_BTD + self.dropout(self.attention(queries, memory, *context))
            return hidden_BTD + self.feed_forward(self.feed_forward_norm(hidden_BTD))
        attended = self.dropout(self.attention(hidden_BTD, memory_BMD, *context))
        hidden_BTD = self.attention_norm(hidden_BTD + attended)
        return self.feed_forward_norm(hidden_BTD + self.feed_forward(hidden_BTD))
