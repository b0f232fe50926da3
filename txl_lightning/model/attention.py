"""Multi-head attention of a segment over its memory and itself, with any of the four terms of the logits."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from txl_lightning.config.architecture import TransformerXLConfig
from txl_lightning.model.encodings import LayerPositions
from txl_lightning.model.kernels import attend, eager
from txl_lightning.model.kernels.eager import DistanceFactors, Factors
from txl_lightning.model.layers import Dropout
from txl_lightning.model.positions import VisibleKeys, rotate


class Attention(nn.Module):
    """Attention whose logits are the sum of the terms that `config.active_terms` names (section 3.3).

        A_ij = (q_i·k_j + u·k_j + q_i·r_{i-j} + v·r_{i-j}) / sqrt(E)
                  (a)      (c)       (b)          (d)
             = [(q_i + u)·k_j + (q_i + v)·r_{i-j}] / sqrt(E)

    u is the content bias and v the position bias. r_{i-j} is W_{k,R} R_{i-j} or a trained vector of the distance;
    v·r_{i-j} may be a trained bias. An encoding may rotate q_i and k_j. With `qk_norm` both are first normalised in
    each head, x / rms(x) · gain (RMSNorm of Zhang & Sennrich 2019; normalised queries and keys: Henry et al. 2020,
    Dehghani et al. 2023). The projections have no bias, and a projection that no term needs does not exist. Heads come
    before streams (X = H·B matrices in one batched product) because r is the same for all streams: (b) and (d) are one
    product per head, with the queries of all streams as rows.

    With `forget_gate` every token has a gate in every head, and keys are forgotten by the gates after them (FoX, Lin et
    al. 2025). x_t is the token's input of the layer, as keys have it:

        f_t = σ(w·x_t + b)        A_ij gains D_ij = Σ_{j<l≤i} log f_l = c_i - c_j,    c_t = Σ_{l≤t} log f_l

    The softmax does not see c_i. What is left depends on the key alone, as u·k_j does: it is a part of term (c) that
    reads the text, and is computed from one running sum per segment.

    With `attention_gate` the heads' outputs are multiplied by gates before the output projection (Qiu et al. 2025), one
    for each head of a token, or for each of its E elements:

        Y_i ⊙ σ(x_i W_g)

    Args:
        config: sizes, terms and dropout.

    Attributes:
        kernel: eager, flex or auto (see `model.kernels`).
    """

    def __init__(self, config: TransformerXLConfig) -> None:
        super().__init__()
        self.n_head, self.d_head, terms = config.n_head, config.d_head, set(config.active_terms)
        width = config.n_head * config.d_head
        self.n_query, self.n_key = int(bool(set("ab") & terms)), int(bool(set("ac") & terms))
        self.terms = config.logit_terms
        self.qkv = nn.Linear(config.d_model, (self.n_query + self.n_key + 1) * width, bias=False)
        projects = config.kind.projects and bool(set("bd") & terms)
        self.position = nn.Linear(config.d_model, width, bias=False) if projects else None
        self.output = nn.Linear(width, config.d_model, bias=False)
        norm = (config.d_head, config.layer_norm_epsilon)  # one gain for all heads
        self.query_norm = nn.RMSNorm(*norm) if self.n_query and config.qk_norm else None
        self.key_norm = nn.RMSNorm(*norm) if self.n_key and config.qk_norm else None
        self.forget = nn.Linear(config.d_model, config.n_head) if config.forget_gate else None
        self.forget_len = config.mem_len if config.forget_len is None else config.forget_len
        widths = {"none": 0, "head": config.n_head, "element": width}
        n_gates = widths[config.attention_gate]
        self.gate = nn.Linear(config.d_model, n_gates, bias=False) if n_gates else None
        self.dropout = Dropout(config.attention_dropout)
        self.kernel = "eager"

    @torch.no_grad()
    def initialize(self) -> None:
        """Set the biases of the forget gates to b = -log(exp(1 / t) - 1), so that σ(b)^t = 1/e, if `forget_len` > 0.

        The lengths t of the heads are 1, …, `forget_len` tokens in geometric steps: the start that Lin et al. 2025 give
        gates of a bias alone. Gates that read the text begin in their code with b = 0, as `forget_len=0` does.
        """
        if self.forget is not None and self.forget_len:
            log_t_H = torch.linspace(0.0, math.log(self.forget_len), self.n_head, dtype=torch.float64)
            self.forget.bias.copy_(-(-log_t_H).exp().expm1().log())

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
        q_HBTE, kv_PHBKE = self.project(hidden_BTD, memory_BMD)
        forget_HBK = self.forget_logits(memory_BMD, hidden_BTD)
        heads_HBTE = self.attend(q_HBTE, kv_PHBKE, positions, visible, self.kernel, forget_HBK)
        return self.combine_heads(heads_HBTE, hidden_BTD)

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

    def forget_logits(self, *states_BTD: Float[Tensor, "B _T D"]) -> Float[Tensor, "H B K"] | None:
        """Return w·x + b of the forget gates, of consecutive parts of the keys; None without gates."""
        if self.forget is None:
            return None
        return torch.cat([self.forget(x_BTD) for x_BTD in states_BTD], dim=1).permute(2, 0, 1)

    def attend(
        self,
        q_HBTE: Float[Tensor, "H B T E"] | None,
        kv_PHBKE: Float[Tensor, "P H B K E"],
        positions: LayerPositions,
        visible: VisibleKeys,
        kernel: str = "eager",
        forget_HBK: Float[Tensor, "H B K"] | None = None,
    ) -> Float[Tensor, "H B T E"]:
        """Return Σ_j softmax(A_i)_j v_j for all heads, computed by a kernel (see `model.kernels`)."""
        return attend(kernel, self.factors(q_HBTE, kv_PHBKE, positions, visible, self.terms, forget_HBK), self.dropout)

    def factors(
        self,
        q_HBTE: Float[Tensor, "H B T E"] | None,
        kv_PHBKE: Float[Tensor, "P H B K E"],
        positions: LayerPositions,
        visible: VisibleKeys,
        terms: str,
        forget_HBK: Float[Tensor, "H B K"] | None = None,
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
            forget_HBK: logits of the forget gates.
        """
        kv = kv_PHBKE.unbind()
        k_HBKE, v_HBKE = kv[0], kv[-1]  # P = 1: k is v, and no kernel reads it (query is None)
        if positions.rotation_2SE is not None and q_HBTE is not None:
            q_HBTE, k_HBKE = (rotate(x, positions.rotation_2SE) for x in (q_HBTE, k_HBKE))
        scale = self.d_head**-0.5  # of the factors, which are smaller than the logits
        q, u, v, bias_HS = (
            None if x is None else x * scale for x in (q_HBTE, positions.u_HE, positions.v_HE, positions.bias_HS)
        )
        content = _sum(q if "a" in terms else None, None if u is None else u[:, None, None])
        position = _sum(q if "b" in terms else None, None if v is None else v[:, None, None])
        distances = DistanceFactors(position, self.distance_vectors(positions), bias_HS)
        bias_HBK = forgetting(forget_HBK) if forget_HBK is not None and "c" in terms else None
        return Factors(content, k_HBKE, v_HBKE, distances, visible, bias_HBK)

    def distance_vectors(self, positions: LayerPositions) -> Float[Tensor, "H S E"] | None:
        """Return r_s = W_{k,R} R_s, or the trained vectors, of the distances s = K, …, 0; None without (b) and (d)."""
        if self.position is None or positions.sinusoids_SD is None:
            return positions.table_HSE
        return self.position(positions.sinusoids_SD).unflatten(-1, (self.n_head, -1)).transpose(0, 1).contiguous()

    def combine_heads(
        self, heads_HBTE: Float[Tensor, "H B T E"], hidden_BTD: Float[Tensor, "B T D"]
    ) -> Float[Tensor, "B T D"]:
        """Concatenate the heads of every token, after their gates, and project them to the output.

        Args:
            heads_HBTE: of `attend`.
            hidden_BTD: input of the layer at the same tokens, which gates read.
        """
        heads_BTHE = heads_HBTE.permute(1, 2, 0, 3)
        if self.gate is not None:
            heads_BTHE = heads_BTHE * self.gate(hidden_BTD).sigmoid().unflatten(-1, (self.n_head, -1))
        return self.output(heads_BTHE.flatten(2))

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
        projected, forget_HBK = self.project(hidden_BTD, memory_BMD), self.forget_logits(memory_BMD, hidden_BTD)
        factors = self.factors(*projected, positions.of_terms(terms), visible, terms, forget_HBK)
        return eager.logits(factors).unflatten(0, factors.keys.shape[:2])

    def probabilities(
        self,
        hidden_BTD: Float[Tensor, "B T D"],
        memory_BMD: Float[Tensor, "B M D"],
        positions: LayerPositions,
        visible: VisibleKeys,
    ) -> Float[Tensor, "H B T K"]:
        """Return the softmax of `logits` over the keys."""
        return self.logits(hidden_BTD, memory_BMD, positions, visible).softmax(dim=-1)


def forgetting(logits_HBK: Float[Tensor, "H B K"]) -> Float[Tensor, "H B K"]:
    """Return c_K - c_j = Σ_{j<l≤K} log σ(logit_l) for every key j: D_ij without the part that query i alone decides.

    Summed from the newest token, so that near keys keep their precision and nothing depends on what came before a key;
    at least in float32, because the differences of long sums are what counts.
    """
    precise = torch.promote_types(logits_HBK.dtype, torch.float32)
    after_HBK = F.pad(F.logsigmoid(logits_HBK[..., 1:].to(precise)), (0, 1))
    return after_HBK.flip(-1).cumsum(-1).flip(-1)


def _normalize(x_HBTE: Tensor, norm: nn.RMSNorm) -> Tensor:
    """Normalise in the type of the gain: float32 under autocast, as torch's fused kernel needs."""
    normalized: Tensor = norm(x_HBTE.to(norm.weight.dtype))
    return normalized.to(x_HBTE.dtype)


def _sum(one: Tensor | None, other: Tensor | None) -> Tensor | None:
    """Add two tensors, of which each may be missing."""
    if one is None or other is None:
        return other if one is None else one
    return one + other
