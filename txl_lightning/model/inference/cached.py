"""Cached inference: Transformer-XL with the memory's keys and values kept instead of computed anew.

With hidden states as memory every segment projects all of them again to keys and values (paper §3.2). The
weights do not change during evaluation, so here the memory holds the projections, and W_{k,R} R of all
distances is computed once: a token costs its own projections and the products of the attention.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_post_hook

from txl_lightning.model.attention import Attention
from txl_lightning.model.config import TransformerXLConfig
from txl_lightning.model.dropout import Dropout
from txl_lightning.model.encodings import LayerPositions
from txl_lightning.model.inference.key_value_memory import KeyValueMemory
from txl_lightning.model.layers import TransformerXLLayer
from txl_lightning.model.positions import attention_mask
from txl_lightning.model.transformer_xl import TransformerXL

SCORES_AT_ONCE = 1 << 21


class CachedTransformerXL:
    """The same function as the model's, for evaluation and generation: a language model like it.

        cached = CachedTransformerXL(model, mem_len=3800)
        nll, memory = cached.score(tokens, targets, memory)

    It shares the model's weights and follows them: what it computed once is computed anew after they, their
    device or autocast change, and a memory from before the change is refused. (Only a change through a
    parameter's `.data`, of which torch keeps no count, goes unnoticed: make another one after it.) A memory
    can be given once (`KeyValueMemory`).

    Args:
        model: whose weights to use; it stays as it is.
        lengths: other values of its `mem_len`, `same_length`, `clamp_len`, `ext_len` or `memory_start`.

    Raises:
        OptionError: a length is not allowed.
        TypeError: a name is none of these.
    """

    def __init__(self, model: TransformerXL, **lengths: Any) -> None:
        self.model = model.with_lengths(**lengths)
        self._modules = list(model.modules())
        self._dropouts = [module for module in self._modules if isinstance(module, Dropout) and module.p]
        self._distances: Distances | None = None

    @property
    def config(self) -> TransformerXLConfig:
        """Architecture and lengths."""
        return self.model.config

    def parameters(self) -> Iterator[nn.Parameter]:
        """The parameters of the model."""
        return self.model.parameters()

    def with_lengths(self, **lengths: Any) -> CachedTransformerXL:
        """Another one on the same weights with other lengths (`TransformerXL.with_lengths`)."""
        return CachedTransformerXL(self.model, **lengths)

    @torch.no_grad()
    def start_memory(self, batch_size: int) -> KeyValueMemory:
        """The memory before the first token of B streams: empty, or keys and values of `mem_len` zero states."""
        zero = self.model.embedding.tables[0].new_zeros(1, 1, self.config.d_model)
        kv_NPHE = torch.stack([project_zero(layer, zero) for layer in self._layers()])
        length = self.config.mem_len if self.config.memory_start == "zeros" else 0
        N, P, H, E = kv_NPHE.shape
        buffer = kv_NPHE[:, :, :, None, None].expand(N, P, H, batch_size, length, E).flatten(2, 3)
        return KeyValueMemory(buffer.contiguous(), batch_size, self._current_distances(), filled=length)

    def __call__(
        self, tokens_BT: Int[Tensor, "B T"], memory: KeyValueMemory | None = None
    ) -> tuple[Float[Tensor, "B T D"], KeyValueMemory]:
        """Hidden states of the last layer and the memory for the next segment, which replaces the given one.

        Args:
            tokens_BT: T consecutive tokens of B streams, extended context included.
            memory: what the previous call returned; None for the start of the streams.

        Raises:
            RuntimeError: gradients are enabled, or dropout is on.
            ValueError: the memory is spent, of another number of streams, made by another model, or made
                before the weights changed.
        """
        self._check_inference()
        model, config = self.model, self.config
        B, T = tokens_BT.shape
        distances = self._current_distances()
        if memory is None:
            memory = self.start_memory(B)
        if memory.batch_size != B:
            raise ValueError(f"memory of {memory.batch_size} streams given with tokens of {B} streams")
        if memory.made_by is not distances:
            raise ValueError("the memory was made by another model, or before the weights or autocast changed")
        memory = memory.spend()
        memory.make_room(T)
        hidden_BTD = model.encoding.embed(model.embedding(tokens_BT), config.clamp_len)
        positions, mask_TK = distances.of_segment(T, memory.filled, hidden_BTD)
        for n, layer in enumerate(self._layers()):
            attend = partial(attend_cached, layer.attention, n, memory, positions[n], mask_TK)
            hidden_BTD = layer.around(model.encoding.layer_input(n, hidden_BTD), attend)
        memory.advance(T, config.mem_len, config.ext_len)
        return hidden_BTD, memory

    def score(
        self,
        tokens_BT: Int[Tensor, "B T"],
        targets_BT: Int[Tensor, "B T_targets"],
        memory: KeyValueMemory | None = None,
    ) -> tuple[Float[Tensor, "B T_targets"], KeyValueMemory]:
        """nll_t = -log P(target_t | its tokens, memory) in nats, as `TransformerXL.score`.

        Raises:
            RuntimeError, ValueError: as a call, and if there are fewer tokens than targets.
        """
        T, T_targets = tokens_BT.shape[1], targets_BT.shape[1]
        if T_targets > T:
            raise ValueError(f"{T} tokens cannot predict {T_targets} targets")
        hidden_BTD, memory = self(tokens_BT, memory)
        return self.model.softmax(hidden_BTD[:, T - T_targets :], targets_BT, self.model.embedding), memory

    def log_probabilities(self, hidden_BTD: Float[Tensor, "B T D"]) -> Float[Tensor, "B T V"]:
        """log P(token | h) of every token of the vocabulary, from the hidden states of a call."""
        return self.model.log_probabilities(hidden_BTD)

    def _layers(self) -> Iterator[TransformerXLLayer]:
        for layer in self.model.layers:
            assert isinstance(layer, TransformerXLLayer)
            yield layer

    def _check_inference(self) -> None:
        if torch.is_grad_enabled():
            raise RuntimeError(
                "cached inference has no gradients; call it under torch.no_grad(), or train the model itself"
            )
        if any(dropout.training for dropout in self._dropouts):
            raise RuntimeError("cached inference has no dropout; call eval() on the model")

    def _current_distances(self) -> Distances:
        """What was computed of distances, computed anew if anything it depends on is not what it was.

        The version of a parameter counts its changes in place, its address moves when it is replaced.
        Neither shows the step of a fused optimiser.
        """
        parameters = (p for module in self._modules for p in module._parameters.values() if p is not None)
        versions = [(p.data_ptr(), 0 if p.is_inference() else p._version) for p in parameters]
        device = self.model.embedding.tables[0].device.type
        autocast = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
        weights = (*versions, autocast)
        if self._distances is None or self._distances.weights != weights or self._distances.steps:
            self._distances = Distances(self.model, weights)
        return self._distances


class Distances:
    """What attention needs to know of distances, for the longest K so far; shorter ones are views on it.

    Rows and columns are ordered by falling distance, so that those of K keys are the last ones.

    Args:
        model: weights and lengths.
        weights: tells these weights from others.

    Attributes:
        steps: one entry for every step that an optimiser has taken on the weights since.
    """

    def __init__(self, model: TransformerXL, weights: tuple[Any, ...]) -> None:
        self.model, self.weights = model, weights
        self.positions: list[LayerPositions] = []
        self.n_keys = -1
        self.mask_TK: Tensor | None = None
        self.steps: list[int] = []
        steps = self.steps
        parameters = {id(p) for p in model.parameters()}

        def count(optimizer: torch.optim.Optimizer, *_: Any) -> None:
            if any(id(p) in parameters for group in optimizer.param_groups for p in group["params"]):
                steps.append(len(steps))

        # It knows nothing of this object, which thus can end and then takes it away.
        weakref.finalize(self, register_optimizer_step_post_hook(count).remove)

    def of_segment(self, T: int, M: int, like: Tensor) -> tuple[list[LayerPositions], Float[Tensor, "T K"]]:
        """Projected positions for every layer, and the mask, of T tokens behind a memory of M."""
        config, K = self.model.config, M + T
        if self.n_keys < K:
            self.n_keys, self.mask_TK = max(K, min(2 * K, config.mem_len + T)), None
            positions = self.model.encoding.positions(self.n_keys, config.clamp_len, like)
            self.positions = [
                layer.attention.projected(of_layer)  # type: ignore[union-attr, operator]
                for layer, of_layer in zip(self.model.layers, positions, strict=True)
            ]
        if self.mask_TK is None or len(self.mask_TK) != T:
            attention_len = config.mem_len if config.same_length and config.mem_len else None
            longest = self.n_keys - T
            self.mask_TK = attention_mask(T, longest, longest, attention_len, like)
        return [last(positions, K + 1) for positions in self.positions], self.mask_TK[:, self.n_keys - K :]


def last(positions: LayerPositions, n: int) -> LayerPositions:
    """The n smallest distances."""
    table_HSE, bias_HS = positions.table_HSE, positions.bias_HS
    return positions._replace(
        table_HSE=None if table_HSE is None else table_HSE[:, -n:],
        bias_HS=None if bias_HS is None else bias_HS[:, -n:],
    )


def attend_cached(
    attention: Attention,
    n: int,
    memory: KeyValueMemory,
    positions: LayerPositions,
    mask_TK: Tensor,
    hidden_BTD: Tensor,
) -> Tensor:
    """Attention of layer n over its cached keys and values and those of the segment, which join them."""
    q_HBTE, kv_PHBTE = attention.project(hidden_BTD)
    kv_PHBKE = memory.write(n, kv_PHBTE)
    contexts = [
        attention.average(
            None if q_HBTE is None else q_HBTE[heads],
            kv_PHBKE[:, heads],
            LayerPositions(*(None if x is None else x[heads] for x in positions)),
            mask_TK,
        )
        for heads in groups_of_heads(kv_PHBKE, T=hidden_BTD.shape[1])
    ]
    return attention.merge(contexts[0] if len(contexts) == 1 else torch.cat(contexts))


def groups_of_heads(kv_PHBKE: Tensor, T: int) -> list[slice]:
    """On a processor a few heads at a time: scores that take tens of MB are handed back to the system at
    every layer, and clearing their pages anew costs a quarter of the time.
    """
    _, H, B, K, _ = kv_PHBKE.shape
    if kv_PHBKE.device.type != "cpu":
        return [slice(H)]
    n = max(SCORES_AT_ONCE // (B * T * K), torch.get_num_threads() // B, 1)
    return [slice(first, first + n) for first in range(0, H, n)]


def project_zero(layer: TransformerXLLayer, zero_11D: Tensor) -> Float[Tensor, "P H E"]:
    """Keys and values of a memory state that is zero."""
    _, kv_PHBTE = layer.attention.project(layer.attention_norm(zero_11D) if layer.pre_norm else zero_11D)
    return kv_PHBTE[:, :, 0, 0]
