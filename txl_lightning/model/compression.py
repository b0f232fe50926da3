"""Compressed memory of a Compressive Transformer (Rae et al. 2019): value, functions and their loss."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from txl_lightning.config.architecture import COMPRESSIONS, TransformerXLConfig
from txl_lightning.model.encodings import LayerPositions
from txl_lightning.model.layers import initialize
from txl_lightning.model.memory import Memory
from txl_lightning.model.positions import VisibleKeys


@dataclass(frozen=True)
class CompressiveMemory(Memory):
    """Compressed states of the far past, then the layers' inputs of the near past (Rae et al. 2019, §3).

    All states are slots of one row, oldest first: `states` is [compressed | ordinary], and `length` and `filled`
    count the slots of both. `Compressor.next_memory` takes the place of `update`.

    A key's distance is counted in slots of the row [compressed | ordinary | segment], one for each compressed state:
    the paper applies Transformer-XL's relative encoding to the concatenated memories and names no other positions.

    Args:
        n_compressed: number of slots, counted from the oldest, that belong to the compressed part.
        compression_loss: loss of the compression that made this memory, with gradients for the compressor only;
            None without gradients. Not part of `state_dict`. Training takes it out, since it keeps a graph alive.
    """

    n_compressed: int = 0
    compression_loss: Tensor | None = field(default=None, compare=False, repr=False)


class TimeConvolution(nn.Conv1d):
    """Convolution over time of states [B, S, D], without bias, as one product of all taps.

    On CPU forward and backward of the product take half to three quarters of the time of `conv1d`.

    Args:
        d_model: D.
        n_taps: states that one output reads.
        stride: states from one output to the next.
        dilation: states from one tap to the next.
    """

    def __init__(self, d_model: int, n_taps: int, stride: int = 1, dilation: int = 1) -> None:
        super().__init__(d_model, d_model, n_taps, stride=stride, dilation=dilation, bias=False)

    def forward(self, states_BSD: Tensor) -> Float[Tensor, "B G D"]:
        """Return Σ_k W_k x_{g·stride + k·dilation}."""
        stride, dilation = self.stride[0], self.dilation[0]
        span = (self.kernel_size[0] - 1) * dilation + 1
        taps_BGDK = states_BSD.unfold(1, span, stride)[..., ::dilation]
        return F.linear(taps_BGDK.flatten(2), self.weight.flatten(1))

    @torch.no_grad()
    def add_mean(self) -> None:
        """Add I / taps to the matrix of each tap: training starts near the mean of the states that they read."""
        self.weight += torch.eye(len(self.weight)).to(self.weight)[:, :, None] / self.weight.shape[2]


class CompressionFunction(nn.Module):
    """Base class: from G·rate states to G compressed ones.

    Args:
        d_model: D.
        rate: states that become one.

    Attributes:
        lookahead: number of states after the G·rate ones that `forward` reads as well.
        needs_usage: whether `forward` reads the attention that the states received.
    """

    lookahead = 0
    needs_usage = False

    def __init__(self, d_model: int, rate: int) -> None:
        super().__init__()
        self.rate = rate


class MaxPooling(CompressionFunction):
    """Largest value of every group, for each of the D numbers."""

    def forward(self, states_BSD: Tensor) -> Float[Tensor, "B G D"]:
        """Return max_k x_{g·rate + k}."""
        return states_BSD.unflatten(1, (-1, self.rate)).amax(dim=2)


class MeanPooling(CompressionFunction):
    """Mean of every group."""

    def forward(self, states_BSD: Tensor) -> Float[Tensor, "B G D"]:
        """Return (Σ_k x_{g·rate + k}) / rate."""
        return states_BSD.unflatten(1, (-1, self.rate)).mean(dim=2)


class Convolution(CompressionFunction):
    """Convolution over time with kernel and stride `rate`, without bias; rate·D² parameters."""

    def __init__(self, d_model: int, rate: int) -> None:
        super().__init__(d_model, rate)
        self.convolution = TimeConvolution(d_model, rate, stride=rate)

    def forward(self, states_BSD: Tensor) -> Float[Tensor, "B G D"]:
        """Return Σ_k W_k x_{g·rate + k}."""
        return self.convolution(states_BSD)


class DilatedConvolutions(CompressionFunction):
    """Convolution with 2 taps, then one with `rate` taps, dilation 2 and stride `rate`; (2 + rate)·D² parameters.

    The paper names dilated convolutions without their sizes. With these a compressed state depends on all states
    of its group and of the next one, which are still in the ordinary memory, so nothing is padded.
    """

    def __init__(self, d_model: int, rate: int) -> None:
        super().__init__(d_model, rate)
        self.lookahead = rate
        self.pairs = TimeConvolution(d_model, 2)
        self.convolution = TimeConvolution(d_model, rate, stride=rate, dilation=2)

    def forward(self, states_BSD: Tensor) -> Float[Tensor, "B G D"]:
        """Return Σ_k W_k y_{g·rate + 2k} with y_s = V_0 x_s + V_1 x_{s+1}, from (G + 1)·rate states."""
        return self.convolution(self.pairs(states_BSD))


class MostUsed(CompressionFunction):
    """Of all G·rate states the G that received most attention, in their order in time.

    Usage is the attention probability in the segment that pushes the states out, averaged over heads and queries.
    """

    needs_usage = True

    def forward(self, states_BSD: Tensor, usage_BS: Tensor) -> Float[Tensor, "B G D"]:
        """Return the most used states of each stream.

        Args:
            states_BSD: S = G·rate states.
            usage_BS: average attention that each received.
        """
        n_kept = states_BSD.shape[1] // self.rate
        places_BG = usage_BS.topk(n_kept, dim=1).indices.sort(dim=1).values
        return states_BSD.gather(1, places_BG[:, :, None].expand(-1, -1, states_BSD.shape[2]))


FUNCTIONS: dict[str, type[CompressionFunction]] = dict(
    zip(COMPRESSIONS, (MaxPooling, MeanPooling, Convolution, DilatedConvolutions, MostUsed), strict=True)
)


class Compressor(nn.Module):
    """Compression of the states that fall out of the memory, one function per layer.

    Only the compression loss trains the parameters: compressed states enter the memory without gradient, as all
    states do. The loss in turn gives the transformer no gradient: its states and weights are detached.

    Args:
        config: function, rate and loss.
        layers: layers of the model, for the loss.

    Attributes:
        needs_usage: whether `next_memory` needs the attention that the keys received.
    """

    def __init__(self, config: TransformerXLConfig, layers: Iterable[nn.Module]) -> None:
        super().__init__()
        # A tuple, because the layers are the model's: they must not be registered here a second time.
        self._attention = tuple(ContentAttention(layer) for layer in layers)
        D, self.rate, self.loss = config.d_model, config.compression_rate, config.compression_loss
        assert config.compression is not None
        function = FUNCTIONS[config.compression]
        self.needs_usage = function.needs_usage
        self.functions = nn.ModuleList(function(D, self.rate) for _ in range(config.n_layer))
        n_decoders = config.n_layer if self.loss == "autoencoding" else 0
        self.decoders = nn.ModuleList(nn.Linear(D, self.rate * D, bias=False) for _ in range(n_decoders))
        initialize(self, config.init_std)
        for module in self.functions.modules():
            if isinstance(module, TimeConvolution):
                module.add_mean()

    def next_memory(
        self,
        memory: CompressiveMemory,
        inputs: Sequence[Float[Tensor, "B T D"]],
        usage: Sequence[Float[Tensor, "B K"]],
        config: TransformerXLConfig,
    ) -> CompressiveMemory:
        """Append one segment's layer inputs to the memory, and compress the states that it pushes out.

            m = [ordinary memory ∘ first T - ext_len inputs]        G = ⌊(|m| - mem_len) / rate⌋
            compressed' = last compressed_len of [compressed ∘ f(first G·rate states of m)]
            ordinary' = the other states of m

        Up to rate - 1 states more than mem_len stay in the memory until their group of `rate` is complete. So a
        group is the same tokens however the stream is cut into segments, and no state is dropped uncompressed.

        Args:
            memory: memory that the segment attended to.
            inputs: input of every layer.
            usage: attention that the K keys of every layer received, where `needs_usage`.
            config: its `mem_len`, `compressed_len` and `ext_len` count.
        """
        C, appended = memory.n_compressed, max(0, inputs[0].shape[1] - config.ext_len)
        n_ordinary = memory.length - C + appended
        evicted = max(0, n_ordinary - config.mem_len) // self.rate * self.rate
        states, losses = [], []
        for n, input_BTD in enumerate(inputs):
            hidden_BTD = input_BTD.detach()
            row_BSD = torch.cat([memory.states[n].to(hidden_BTD.dtype), hidden_BTD[:, :appended]], dim=1)
            compressed_BCD, ordinary_BMD = row_BSD.split([C, n_ordinary], dim=1)
            if evicted:
                function: Any = self.functions[n]
                taken_BSD = ordinary_BMD[:, : evicted + function.lookahead]
                new_BGD = function(taken_BSD, *([usage[n][:, C : C + evicted]] if self.needs_usage else []))
                if torch.is_grad_enabled() and self.loss != "none":
                    losses.append(self._loss(n, hidden_BTD, taken_BSD[:, :evicted], new_BGD))
                compressed_BCD = torch.cat([compressed_BCD, new_BGD.detach().to(row_BSD.dtype)], dim=1)
            kept_BCD = compressed_BCD[:, -config.compressed_len :]
            states.append(torch.cat([kept_BCD, ordinary_BMD[:, evicted:]], dim=1))
        loss = None
        if torch.is_grad_enabled() and self.loss != "none":
            # While nothing is compressed, zero with gradients of zero: DDP waits for one of every parameter.
            terms = losses or [states[0].new_zeros(()), *(parameter.sum() * 0.0 for parameter in self.parameters())]
            loss = torch.stack(terms).sum()
        n_compressed = states[0].shape[1] - (n_ordinary - evicted)
        filled = states[0].shape[1]
        first = memory.first_column
        return CompressiveMemory(torch.stack(states), filled, None, n_compressed, loss, first_column=first)

    def _loss(self, n: int, hidden_BTD: Tensor, old_BSD: Tensor, new_BGD: Tensor) -> Tensor:
        if self.loss == "reconstruction":
            return reconstruction_loss(self._attention[n], hidden_BTD, old_BSD, new_BGD)
        decoded_BSD = self.decoders[n](new_BGD).unflatten(2, (self.rate, -1)).flatten(1, 2)
        return F.mse_loss(decoded_BSD, old_BSD)


def reconstruction_loss(
    attention: ContentAttention,
    hidden_BTD: Float[Tensor, "B T D"],
    old_BSD: Float[Tensor, "B S D"],
    new_BGD: Float[Tensor, "B G D"],
) -> Float[Tensor, ""]:
    """Return the mean squared difference of attention to states and to their compression (Rae et al. 2019, alg. 2).

        attn(h, m) = softmax((h Q)(m K)ᵀ / sqrt(E)) (m V)        L = mean (attn(h, old) - attn(h, new))²

    Attention is by content alone: no positions, u, gates, dropout or output projection. The layer's weights are
    detached.

    Args:
        attention: of the layer.
        hidden_BTD: inputs of the layer, detached.
        old_BSD: states that fell out of the memory, detached.
        new_BGD: their compression; it receives the gradient.
    """
    weights = {name: parameter.detach() for name, parameter in attention.named_parameters()}
    before, after = functional_call(attention, weights, (hidden_BTD, old_BSD, new_BGD))
    return F.mse_loss(after, before)


class ContentAttention(nn.Module):
    """Attention of a layer by content alone, as a module, so that `functional_call` can replace its weights.

    Args:
        layer: layer whose projections, and norm where it is pre-norm, are used.
    """

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, hidden_BTD: Tensor, *memories: Tensor) -> list[Tensor]:
        """Return attn(h, m) of all heads, [H, B, T, E], for each of the memories."""
        layer: Any = self.layer
        q_HBTE = layer.attention.project(layer.attention_input(hidden_BTD))[0] * layer.attention.d_head**-0.5
        outputs = []
        for memory_BSD in memories:
            # One after the other: joined to states with a gradient, those without one would get one as well.
            _, (k_HBSE, v_HBSE) = layer.attention.project(layer.attention_input(memory_BSD.to(hidden_BTD.dtype)))
            # Torch's fused attention is slow here: on CPU its backward pass took 40 % of a step.
            outputs.append((q_HBTE @ k_HBSE.mT).softmax(dim=-1) @ v_HBSE)
        return outputs


@torch.no_grad()
def key_usage(
    layer: Any,
    hidden_BTD: Float[Tensor, "B T D"],
    memory_BMD: Float[Tensor, "B M D"],
    positions: LayerPositions,
    visible: VisibleKeys,
) -> Float[Tensor, "B K"]:
    """Return the attention probability that each key receives, averaged over heads and queries.

    Args:
        layer: layer whose attention is meant.
        hidden_BTD: input of the layer.
        memory_BMD: memory of the layer.
        positions: u, v and the encoding of the distances.
        visible: keys that the queries may attend to.
    """
    inputs = layer.attention_input(hidden_BTD), layer.attention_input(memory_BMD)
    probabilities_HBTK: Tensor = layer.attention.probabilities(*inputs, positions, visible)
    return probabilities_HBTK.mean(dim=(0, 2))
