"""Recurrent baselines for the paper's Table 8: LSTM and QRNN language models with a carried state."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from txl_lightning.config.architecture import RecurrentConfig
from txl_lightning.model.embedding import make_embedding, make_softmax
from txl_lightning.model.language_model import ScoringModel
from txl_lightning.model.layers import Dropout, initialize
from txl_lightning.model.memory import CarriedState
from txl_lightning.model.shapes import Counts, Hidden, LayerState, Requested, Tokens


class LSTMLayer(nn.Module):
    """torch's LSTM (Hochreiter & Schmidhuber 1997) with DropConnect on the recurrent weights.

        i, f, o = σ(W x_t + U h_{t-1} + b)      g = tanh(W x_t + U h_{t-1} + b)
        c_t = f ⊙ c_{t-1} + i ⊙ g               h_t = o ⊙ tanh(c_t)

    In training elements in U are dropped with probability `weight_dropout`, one mask for all tokens and streams in a
    segment (Merity et al. 2018, §2). Weights start as in torch, uniform in ±1/sqrt(D).

    Under autocast it stays in single precision: on a GPU torch would compute it in float16 whatever type was asked for,
    and without a scaled loss most gradients would be zero.

    Args:
        d_model: D, width of x and h.
        weight_dropout: dropout probability for elements in U.
    """

    stacked: ClassVar = {
        "lstm.weight_ih_l0": 4,
        "lstm.weight_hh_l0": 4,
    }  # matrices in the rows, for Muon

    def __init__(self, d_model: int, weight_dropout: float = 0.0) -> None:
        super().__init__()
        self.lstm = nn.LSTM(d_model, d_model, batch_first=True)
        self.weight_dropout = Dropout(weight_dropout)

    def forward(
        self,
        x_BTD: Hidden,
        previous_BD: LayerState,
        cell_BD: LayerState,
    ) -> tuple[Hidden, LayerState, LayerState]:
        """Return every token's h, the last h and the last c; the next segment starts from these two.

        Args:
            x_BTD: inputs for T consecutive tokens.
            previous_BD: h at the token before them.
            cell_BD: c at the token before them.
        """
        start = (previous_BD.to(cell_BD.dtype)[None], cell_BD[None])
        x_BTD = x_BTD.to(cell_BD.dtype)
        with torch.autocast("cuda", enabled=False), torch.autocast("cpu", enabled=False):
            if not (self.training and self.weight_dropout.p):
                h_BTD, (last_h, last_c) = self.lstm(x_BTD, start)
                return h_BTD, last_h[0], last_c[0]
            weights = [
                self.lstm.weight_ih_l0,
                self.weight_dropout(self.lstm.weight_hh_l0),
                self.lstm.bias_ih_l0,
                self.lstm.bias_hh_l0,
            ]
            h_BTD, last_h, last_c = lstm_with_weights(x_BTD, start, weights)
        return h_BTD, last_h[0], last_c[0]


def lstm_with_weights(
    x_BTD: Tensor, start: tuple[Tensor, Tensor], weights: list[Tensor]
) -> tuple[Tensor, Tensor, Tensor]:
    """Call `torch.lstm`, the undocumented function behind nn.LSTM, for one batch-first layer in training.

    Calling the module with other weights (functional_call) would lay out all its weights again on a
    GPU at every segment, and keep the segment's graph alive.

    Args:
        x_BTD: inputs for T tokens.
        start: h and c before them, 1 × B × D.
        weights: input-to-hidden and hidden-to-hidden weights, then their biases.
    """
    return torch.lstm(
        x_BTD,
        start,
        weights,
        has_biases=True,
        num_layers=1,
        dropout=0.0,
        train=True,
        bidirectional=False,
        batch_first=True,
    )


class QRNNLayer(nn.Module):
    """Quasi-recurrent layer: a convolution over two tokens and fo-pooling (Bradbury et al. 2016, §2).

        z_t = tanh(W_z x_t + V_z x_{t-1} + b_z)     f_t = σ(W_f x_t + …)     o_t = σ(W_o x_t + …)
        c_t = f_t ⊙ c_{t-1} + (1 - f_t) ⊙ z_t       h_t = o_t ⊙ c_t

    AWD-QRNN (Merity et al. 2018) has window 2 in its first layer only; here all layers have it, as in the QRNN paper.
    In training elements in the weights are dropped with probability `weight_dropout`, one mask per segment. Weights
    start as in torch's Linear.

    Args:
        d_model: D, width of x and h.
        weight_dropout: dropout probability for elements in all W and V.
    """

    stacked: ClassVar = {"gates.weight": 3}

    def __init__(self, d_model: int, weight_dropout: float = 0.0) -> None:
        super().__init__()
        self.gates = nn.Linear(2 * d_model, 3 * d_model)
        self.weight_dropout = Dropout(weight_dropout)

    def forward(
        self,
        x_BTD: Hidden,
        previous_BD: LayerState,
        cell_BD: LayerState,
    ) -> tuple[Hidden, LayerState, LayerState]:
        """Return every token's h, the last x and the last c; the next segment starts from these two.

        The pooling is computed in the type that `cell_BD` has, so under autocast it stays in single precision.

        Args:
            x_BTD: inputs for T consecutive tokens.
            previous_BD: x at the token before them.
            cell_BD: c at the token before them.
        """
        shifted_BTD = torch.cat([previous_BD[:, None].to(x_BTD.dtype), x_BTD[:, :-1]], dim=1)
        window = torch.cat([x_BTD, shifted_BTD], dim=-1)
        weight = self.weight_dropout(self.gates.weight)
        gates = F.linear(window, weight, self.gates.bias).to(cell_BD.dtype)
        z_BTD, f_BTD, o_BTD = gates.chunk(3, dim=-1)
        c_BTD = forget_mult(f_BTD.sigmoid(), z_BTD.tanh(), cell_BD)
        h_BTD = o_BTD.sigmoid() * c_BTD
        return h_BTD, x_BTD[:, -1], c_BTD[:, -1]


def forget_mult(
    forget_BTD: Hidden,
    candidate_BTD: Hidden,
    cell_BD: LayerState,
) -> Hidden:
    """Compute c_t = f_t ⊙ c_{t-1} + (1 - f_t) ⊙ z_t for t = 1 … T in log T steps (Bradbury et al. 2016, eq. 3).

    Args:
        forget_BTD: f, in [0, 1].
        candidate_BTD: z.
        cell_BD: c_0.
    """
    inputs = (1 - forget_BTD) * candidate_BTD
    first = torch.addcmul(inputs[:, :1], forget_BTD[:, :1], cell_BD[:, None])
    return _LinearRecurrence.apply(forget_BTD, torch.cat([first, inputs[:, 1:]], dim=1))


class _LinearRecurrence(torch.autograd.Function):
    """y_t = f_t y_{t-1} + u_t from y_0 = 0; its gradient is the same recurrence backwards in time."""

    @staticmethod
    def forward(ctx: Any, f: Tensor, u: Tensor) -> Tensor:
        y = _scan(f, u)
        ctx.save_for_backward(f, y)
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        """du_t = dy_t + f_{t+1} du_{t+1} and df_t = du_t y_{t-1}."""
        f, y = ctx.saved_tensors
        f_next = F.pad(f[:, 1:], (0, 0, 0, 1))
        grad_u = _LinearRecurrence.apply(f_next.flip(1), grad.flip(1)).flip(1)
        return grad_u * F.pad(y[:, :-1], (0, 0, 1, 0)), grad_u


def _scan(f: Tensor, u: Tensor) -> Tensor:
    """Compute the recurrence by halving (Blelloch 1990): two neighbouring steps are merged into one.

    y_{t+1} = (f_{t+1} f_t) y_{t-1} + (f_{t+1} u_t + u_{t+1}): every second y is a recurrence with half the length, and
    the rest follow from them in one step. There are O(T) products and no division, so gates that are almost 0 or 1 lose
    no precision.
    """
    T = u.shape[1]
    if T == 1:
        return u
    even = T - T % 2
    f_first, f_second = f[:, 0:even:2], f[:, 1:even:2]
    u_first, u_second = u[:, 0:even:2], u[:, 1:even:2]
    merged_u = torch.addcmul(u_second, f_second, u_first)
    every_second = _scan(f_second * f_first, merged_u)
    y = torch.empty_like(u)
    y[:, 0] = u[:, 0]
    y[:, 1::2] = every_second
    before = every_second[:, : (T - 1) // 2]
    y[:, 2::2] = torch.addcmul(u[:, 2::2], f[:, 2::2], before)
    return y


LAYERS: dict[str, type[LSTMLayer] | type[QRNNLayer]] = {"lstm": LSTMLayer, "qrnn": QRNNLayer}


@dataclass
class RecurrentState(CarriedState):
    """All layers' state between two segments: a value without gradient, like `Memory`.

    Args:
        previous: an LSTM layer's output h, or a QRNN layer's input x, at the last token.
        cells: c at the last token.
    """

    previous: Float[Tensor, "N B D"]
    cells: Float[Tensor, "N B D"]

    @property
    def batch_size(self) -> int:
        """B, streams."""
        return self.cells.shape[1]


class RecurrentLanguageModel(ScoringModel, nn.Module):
    """N LSTM or QRNN layers between the embedding and the softmax that Transformer-XL has too.

        nll, state = model.score(tokens, targets, state)

    Backpropagation is truncated at the segment's start: no gradient enters a carried state. Embedding and softmax are
    initialized as in Transformer-XL, from N(0, 0.02²) with zero biases, the layers as in torch.

    Args:
        config: architecture.
    """

    def __init__(self, config: RecurrentConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = make_embedding(config)
        self.softmax = make_softmax(config, self.embedding)
        self.dropout = Dropout(config.dropout)
        self.hidden_dropout = Dropout(config.hidden_dropout)
        self.layers = nn.ModuleList()
        for _ in range(config.n_layer):
            self.layers.append(LAYERS[config.cell](config.d_model, config.weight_dropout))
        initialize(self.embedding)
        initialize(self.softmax)

    config_class, state_class = RecurrentConfig, RecurrentState

    def with_lengths(self, **lengths: Any) -> RecurrentLanguageModel:
        """Return the model itself: a recurrent state has no length to choose.

        Raises:
            TypeError: a length is given.
        """
        if lengths:
            raise TypeError(f"a recurrent model has no {', '.join(lengths)}")
        return self

    def start_memory(self, batch_size: int, static: bool = False) -> RecurrentState:
        """Return zeros, the state before B streams' first tokens; its shape never changes, `static` or not."""
        zeros = next(self.parameters()).new_zeros(
            self.config.n_layer, batch_size, self.config.d_model
        )
        return RecurrentState(zeros, zeros)

    def forward(
        self,
        tokens_BT: Tokens | None = None,
        state: RecurrentState | None = None,
        n_last: int | None = None,
        *,
        inputs_BTD: Hidden | None = None,
        lengths_B: Counts | None = None,
    ) -> tuple[Requested, RecurrentState]:
        """Return the last layer's outputs, after dropout, and the state after the last token.

        Args:
            tokens_BT: T consecutive tokens in B streams.
            state: returned for the previous segment; None at the streams' start.
            n_last: Q, how many last tokens' outputs are returned; None for all.
            inputs_BTD: used instead of tokens and their scaled embeddings.
            lengths_B: None: all streams must have equal length.

        Raises:
            OptionError: `lengths_B` is given.
            ValueError: the state has another number of streams; see also `embed`.
        """
        hidden_BTD = self.dropout(self.embed(tokens_BT, inputs_BTD, lengths_B))
        B = len(hidden_BTD)
        if state is None:
            state = self.start_memory(B)
        if state.batch_size != B:
            raise ValueError(
                f"state of {state.batch_size} streams given with tokens for {B} streams"
            )
        previous_NBD = state.previous.detach()
        cells_NBD = state.cells.detach()
        previous: list[Tensor] = []
        cells: list[Tensor] = []
        for n, layer in enumerate(self.layers):
            if n > 0:
                hidden_BTD = self.hidden_dropout(hidden_BTD)
            hidden_BTD, previous_BD, cell_BD = layer(hidden_BTD, previous_NBD[n], cells_NBD[n])
            previous.append(previous_BD)
            cells.append(cell_BD)
        # Autocast computes the layers in another type; the state keeps the weights' type.
        dtype = cells_NBD.dtype
        after = replace(
            state,
            previous=torch.stack(previous).detach().to(dtype),
            cells=torch.stack(cells).detach().to(dtype),
        )
        hidden_BTD = self.dropout(hidden_BTD)
        if n_last is not None:
            hidden_BTD = hidden_BTD[:, hidden_BTD.shape[1] - n_last :]
        return hidden_BTD, after
