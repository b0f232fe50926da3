"""Compressive Transformer (Rae et al. 2019, arXiv:1911.05507, §3): states that fall out of the memory are compressed.

memory of a layer     [compressed ∘ ordinary]          `rate` old states become one compressed state
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from txl_lightning.config.architecture import TransformerXLConfig
from txl_lightning.errors import Count, Length, one_of, require
from txl_lightning.model.layers import initialize
from txl_lightning.model.memory import Memory
from txl_lightning.model.positions import StreamBounds
from txl_lightning.model.shapes import Hidden, Losses
from txl_lightning.model.transformer_xl import TransformerXL, register_variant


@dataclass
class CompressiveConfig(TransformerXLConfig):
    """Options for `variant=compressive`.

    Args:
        compressed_len: most compressed states per layer, before the `mem_len` ordinary ones.
        rate: states that become one compressed state.
        compression: function that compresses: max, mean, or conv, a convolution that
            `reconstruction_loss` trains.
    """

    compressed_len: Length = 512
    rate: Count = 4
    compression: Annotated[str, one_of("max", "mean", "conv")] = "conv"

    def __post_init__(self) -> None:
        super().__post_init__()
        allowed = "must have distances: compressed states have no position"
        require(
            not self.kind.absolute,
            "encoding",
            self.encoding,
            allowed,
        )
        compares = self.compression != "conv" or "a" in self.active_terms
        allowed = f"compares attention by content, term (a), which terms={self.terms} lack"
        require(compares, "compression", self.compression, allowed)
        fills_groups = self.mem_len == 0 or self.mem_len >= self.rate
        require(
            fills_groups,
            "mem_len",
            self.mem_len,
            f"must be 0 or at least rate={self.rate}",
        )

    @property
    def compresses(self) -> bool:
        """Whether there is a compressed memory: neither length may be 0."""
        return self.mem_len > 0 and self.compressed_len > 0

    @property
    def memory_slots(self) -> int:
        if not self.compresses:
            return self.mem_len
        return self.mem_len + self.compressed_len


@dataclass
class CompressiveMemory(Memory):
    """Compressed states from the far past, then the layers' inputs from the near past (Rae et al. 2019, §3).

    All states are slots in one row, oldest first: `states` is [compressed | ordinary], and `length` and `filled` count
    both kinds.

    A key's distance is counted in slots along the row [compressed | ordinary | segment], one for each compressed state:
    the paper applies Transformer-XL's relative encoding to the concatenated memories and names no other positions.

    Args:
        n_compressed: how many oldest slots belong to the compressed part.
        compression_loss: loss for the compression that made this memory, with gradients for the compressor only; None
            without gradients. Not part of `state_dict`. `score` takes it out, since it keeps a graph alive.
    """

    n_compressed: int = 0
    compression_loss: Tensor | None = field(default=None, compare=False, repr=False)


class Pooling(nn.Module):
    """Largest or mean value over every group of `rate` states, for each of the D numbers.

    Args:
        kind: `max` or `mean`.
        rate: states that become one.
    """

    def __init__(self, kind: str, rate: int) -> None:
        super().__init__()
        self.kind = kind
        self.rate = rate

    def forward(self, states_BSD: Tensor) -> Float[Tensor, "B G D"]:
        """Return max_k x_{g·rate + k} or (Σ_k x_{g·rate + k}) / rate."""
        groups = states_BSD.unflatten(1, (-1, self.rate))
        return groups.amax(dim=2) if self.kind == "max" else groups.mean(dim=2)


class Convolution(nn.Conv1d):
    """Convolution over time with kernel and stride `rate`, without bias: rate·D² parameters.

    On CPU forward and backward through one product over all taps take half to three quarters of `conv1d`'s time.

    Args:
        d_model: D.
        rate: states that become one.
    """

    def __init__(self, d_model: int, rate: int) -> None:
        super().__init__(
            d_model,
            d_model,
            rate,
            stride=rate,
            bias=False,
        )

    def forward(self, states_BSD: Tensor) -> Float[Tensor, "B G D"]:
        """Return Σ_k W_k x_{g·rate + k}."""
        taps_BGKD = states_BSD.unflatten(1, (-1, self.kernel_size[0]))
        return F.linear(taps_BGKD.mT.flatten(2), self.weight.flatten(1))

    @torch.no_grad()
    def initialize(self) -> None:
        """Add I / rate to each tap's matrix: training starts near the states' mean."""
        self.weight += (
            torch.eye(len(self.weight)).to(self.weight)[:, :, None] / self.weight.shape[2]
        )


class Compressor(nn.Module):
    """Compress the states that fall out of the memory, one function per layer.

    Only the compression loss trains the parameters: compressed states enter the memory without
    gradient, as all states do. The loss in turn gives the transformer no gradient: its states and
    weights are detached.

    Args:
        config: function and rate.
        layers: the model's layers, for the loss.
    """

    def __init__(
        self,
        config: CompressiveConfig,
        layers: Iterable[nn.Module],
    ) -> None:
        super().__init__()
        # A tuple, because the layers are the model's: they must not be registered here a second time.
        self._attention = tuple(ContentAttention(layer) for layer in layers)
        self.rate = config.rate
        self.functions = nn.ModuleList()
        for _ in self._attention:
            if config.compression == "conv":
                self.functions.append(Convolution(config.d_model, config.rate))
            else:
                self.functions.append(Pooling(config.compression, config.rate))
        initialize(self, config.init_std)

    def next_memory(
        self,
        memory: CompressiveMemory,
        inputs: Sequence[Hidden],
        config: CompressiveConfig,
    ) -> CompressiveMemory:
        """Append one segment's layer inputs to the memory, and compress the states that it pushes out.

            m = [ordinary memory ∘ first T - ext_len inputs]        G = ⌊(|m| - mem_len) / rate⌋
            compressed' = last compressed_len of [compressed ∘ f(first G·rate states of m)]
            ordinary' = the other states of m

        Up to rate - 1 states more than mem_len stay in the memory until their group of `rate` is complete. So a group
        has the same tokens however the stream is cut into segments, and no state is dropped uncompressed.

        Args:
            memory: memory that the segment attended to.
            inputs: every layer's input.
            config: its `mem_len`, `compressed_len` and `ext_len` count.
        """
        C = memory.n_compressed
        appended = max(0, inputs[0].shape[1] - config.ext_len)
        n_ordinary = memory.length - C + appended
        n_groups = max(0, n_ordinary - config.mem_len) // self.rate
        evicted = n_groups * self.rate
        is_trained = torch.is_grad_enabled() and any(True for _ in self.parameters())
        states: list[Tensor] = []
        losses: list[Tensor] = []
        for n, input_BTD in enumerate(inputs):
            hidden_BTD = input_BTD.detach()
            old_states_BMD = memory.states[n].to(hidden_BTD.dtype)
            row_BSD = torch.cat([old_states_BMD, hidden_BTD[:, :appended]], dim=1)
            compressed_BCD, ordinary_BMD = row_BSD.split([C, n_ordinary], dim=1)
            if evicted:
                evicted_BSD = ordinary_BMD[:, :evicted]
                new_BGD = self.functions[n](evicted_BSD)
                if is_trained:
                    attention = self._attention[n]
                    losses.append(reconstruction_loss(attention, hidden_BTD, evicted_BSD, new_BGD))
                new_BGD = new_BGD.detach().to(row_BSD.dtype)
                compressed_BCD = torch.cat([compressed_BCD, new_BGD], dim=1)
            kept_BCD = compressed_BCD[:, -config.compressed_len :]
            states.append(torch.cat([kept_BCD, ordinary_BMD[:, evicted:]], dim=1))
        loss = None
        if is_trained:
            loss = torch.stack(losses).sum() if losses else self.zero_loss()
        filled = states[0].shape[1]
        return CompressiveMemory(
            torch.stack(states),
            filled,
            n_compressed=filled - (n_ordinary - evicted),
            compression_loss=loss,
            first_column=memory.first_column,
        )

    def zero_loss(self) -> Tensor:
        """Return a zero loss with a gradient for every parameter, since DDP waits for one."""
        zero = torch.zeros(())
        for parameter in self.parameters():
            zero = zero.to(parameter.device) + parameter.sum() * 0.0
        return zero


def reconstruction_loss(
    attention: ContentAttention,
    hidden_BTD: Hidden,
    old_BSD: Float[Tensor, "B S D"],
    new_BGD: Float[Tensor, "B G D"],
) -> Float[Tensor, ""]:
    """Return the mean squared difference between attention to states and to their compression (Rae et al. 2019, alg.
    2).

        attn(h, m) = softmax((h Q)(m K)ᵀ / sqrt(E)) (m V)
        L          = mean (attn(h, old) - attn(h, new))²

    Attention is by content alone: no positions, u, gates, dropout or output projection. The layer's
    weights are detached.

    Args:
        attention: the layer's attention.
        hidden_BTD: the layer's inputs, detached.
        old_BSD: states that fell out of the memory, detached.
        new_BGD: their compression; it receives the gradient.
    """
    weights = {name: parameter.detach() for name, parameter in attention.named_parameters()}
    before, after = functional_call(attention, weights, (hidden_BTD, old_BSD, new_BGD))
    return F.mse_loss(after, before)


class ContentAttention(nn.Module):
    """A layer's attention by content alone, as a module, so `functional_call` can replace its weights.

    Args:
        layer: layer whose projections, and norm where it is pre-norm, are used.
    """

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, hidden_BTD: Tensor, *memories: Tensor) -> list[Tensor]:
        """Return attn(h, m) for all heads, [H, B, T, E], for each memory."""
        layer: Any = self.layer
        attention = layer.attention
        q_HBTE, _ = attention.project(layer.attention_input(hidden_BTD))
        q_HBTE = q_HBTE * attention.d_head**-0.5
        outputs = []
        for memory_BSD in memories:
            # One after the other: a joint product would also compute gradients for detached states.
            past_BSD = layer.attention_input(memory_BSD.to(hidden_BTD.dtype))
            _, (k_HBSE, v_HBSE) = attention.project(past_BSD)
            # Torch's fused attention is slow here: on CPU its backward pass took 40 % of a step.
            probabilities_HBTS = (q_HBTE @ k_HBSE.mT).softmax(dim=-1)
            outputs.append(probabilities_HBTS @ v_HBSE)
        return outputs


@register_variant("compressive")
class CompressiveTransformerXL(TransformerXL):
    """Transformer-XL whose memory has a compressed part.

    `score` adds the compression loss's gradient, not its value: the reported losses are the tokens'.
    """

    config: CompressiveConfig
    config_class = CompressiveConfig
    state_class = CompressiveMemory
    cannot: ClassVar = {
        "cached inference": "states are compressed, not their keys and values",
        "one-pass windows": "the segments decide what is compressed",
        "documents": "a compressed state may be of two documents",
        "unequal lengths": "compressed memory needs streams of one length",
        "gradient segments": "compressed states have no gradient",
        "attention lengths": "the number of states is no number of tokens",
    }

    def __init__(self, config: CompressiveConfig) -> None:
        super().__init__(config)
        layers: Any = self.layers
        # Last, so that all other parameters are drawn as without it.
        self.compressor = Compressor(config, layers)

    def start_memory(self, batch_size: int, static: bool = False) -> CompressiveMemory:
        """Return the memory before B streams' first tokens.

        It grows even if `static` is set: empty slots would be compressed, and enter the loss.
        """
        memory: Any = super().start_memory(batch_size)
        return replace(memory, n_compressed=max(0, memory.length - self.config.mem_len))

    def next_memory(
        self,
        memory: Any,
        inputs: Sequence[Hidden],
        bounds: StreamBounds | None = None,
    ) -> Any:
        require(
            bounds is None,
            "reset",
            True,
            f"is not possible: {self.cannot['documents']}",
        )
        if not self.config.compresses:
            return super().next_memory(memory, inputs)
        return self.compressor.next_memory(memory, inputs, self.config)

    def score(self, *inputs: Any, **options: Any) -> tuple[Losses, Any]:
        nll_BT, memory = super().score(*inputs, **options)
        if not torch.is_grad_enabled():
            return nll_BT, memory
        loss = memory.compression_loss
        if loss is None:
            loss = self.compressor.zero_loss()
        gradient_alone = loss - loss.detach()
        return nll_BT + gradient_alone, replace(memory, compression_loss=None)
