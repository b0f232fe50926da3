"""Position encodings: the four of the ablation (paper Table 6), and how to add one's own (`register_encoding`).

Each is a module that the model asks for positions.

    relative   terms (a)-(d) with the sinusoid of the distance                       (section 3.3; attn_type 0)
    shaw       a trained table of distances per layer, no extrapolation              (Shaw et al. 2018; attn_type 1)
    absolute   the sinusoid of the position, added to the embedding                  (Vaswani et al. 2017; attn_type 2)
    al_rfou    a trained table of positions per layer, added to each layer's input   (Al-Rfou et al. 2018; attn_type 3)

Absolute positions are counted from the end of the segment: its last token has index 0. With memory each
segment uses the same positions; the memory keeps every layer's input as it was computed, with the positions
it had then, and positions are never added to it again (section 3.3).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from txl_lightning.errors import require
from txl_lightning.model.config import KINDS, EncodingKind, TransformerXLConfig
from txl_lightning.model.dropout import Dropout
from txl_lightning.model.positions import sinusoids_of_distances


class LayerPositions(NamedTuple):
    """What one layer's attention knows of positions; None for what its encoding or its terms lack.

    Args:
        u_HE: global content bias, term (c).
        v_HE: global positional bias, term (d) of the relative encoding.
        sinusoids_SD: R of the distances K, …, 0 (S = K + 1), to be projected by the layer's W_{k,R}.
        table_HSE: trained vectors of the distances K, …, 0, in place of W_{k,R} R.
        bias_HS: trained bias of the distances K, …, 0, in place of v·(W_{k,R} R).
    """

    u_HE: Tensor | None = None
    v_HE: Tensor | None = None
    sinusoids_SD: Tensor | None = None
    table_HSE: Tensor | None = None
    bias_HS: Tensor | None = None

    def of_terms(self, terms: str) -> LayerPositions:
        """What these terms of the score need, and nothing of the others."""
        r_needed = bool(set("bd") & set(terms))
        return LayerPositions(
            u_HE=self.u_HE if "c" in terms else None,
            v_HE=self.v_HE if "d" in terms else None,
            sinusoids_SD=self.sinusoids_SD if r_needed else None,
            table_HSE=self.table_HSE if r_needed else None,
            bias_HS=self.bias_HS if "d" in terms else None,
        )


class Encoding(nn.Module):
    """An encoding that says nothing: the base of the others, and of one's own (`register_encoding`).

    Args:
        config: sizes and terms.
    """

    def __init__(self, config: TransformerXLConfig) -> None:
        super().__init__()
        self.n_layer, self.n_head, self.d_head = config.n_layer, config.n_head, config.d_head
        self.terms = config.active_terms

    def initialize(self) -> None:
        """Set parameters that should not start as the paper's code has it: N(0, 0.02²), and zero if `…bias`."""

    def embed(self, hidden_BTD: Float[Tensor, "B T D"], clamp_len: int) -> Float[Tensor, "B T D"]:
        """The input of the first layer before dropout, from the scaled embedding."""
        return hidden_BTD

    def layer_input(self, n: int, hidden_BTD: Float[Tensor, "B T D"]) -> Float[Tensor, "B T D"]:
        """What layer n reads and its memory keeps."""
        return hidden_BTD

    def forward(self, n_keys: int, clamp_len: int, like: Tensor) -> list[LayerPositions]:
        """Positions for every layer's attention over K keys: functions of the distance alone, K, …, 0.

        Args:
            n_keys: K.
            clamp_len: distances beyond it share its position; -1 or 0 for none.
            like: has the type and device of the result.
        """
        return [LayerPositions()] * self.n_layer

    def positions(self, n_keys: int, clamp_len: int, like: Tensor) -> list[LayerPositions]:
        """What `forward` says, without the terms that are off."""
        return [of_layer.of_terms(self.terms) for of_layer in self(n_keys, clamp_len, like)]


ENCODINGS: dict[str, type[Encoding]] = {}


def register_encoding(
    name: str,
    terms: str = "a",
    *,
    absolute: bool = False,
    projects: bool = False,
    table: Literal["distances", "positions"] | None = None,
) -> Callable[[type[Encoding]], type[Encoding]]:
    """A decorator that makes a subclass of `Encoding` known as `encoding=name` of a configuration.

    The score of a pair adds what the class gives by distance: `table_HSE` or `sinusoids_SD` to term (b),
    `bias_HS` to term (d), before the division by sqrt(E); or the class changes the inputs (`embed`,
    `layer_input`). A checkpoint holds the name only, so whoever loads one registers the class before.

    Args:
        name: letters, digits and underscores.
        terms: which of (a)-(d) it has; a term that `model.terms` leaves out is left out of what it gives.
        absolute: its positions belong to a segment and mean nothing beyond the trained length.
        projects: every layer has a W_{k,R}, for `sinusoids_SD`.
        table: what `encoding.table_len` counts by default: see `EncodingKind`.

    Raises:
        OptionError: the name is another class's, or a value is not allowed.
    """
    require(name.isidentifier(), "name", name, "must be letters, digits and underscores")
    good_terms = set(terms) <= set("abcd") and len(set(terms)) == len(terms)
    require(good_terms, "terms", terms, "must be letters of abcd, each at most once")
    require(table in (None, "distances", "positions"), "table", table, "must be None, distances or positions")

    def register(encoding: type[Encoding]) -> type[Encoding]:
        there = ENCODINGS.get(name, encoding)
        same = (there.__module__, there.__qualname__) == (encoding.__module__, encoding.__qualname__)  # a cell run anew
        require(same, "name", name, f"is the name of another encoding, {there.__module__}.{there.__qualname__}")
        ENCODINGS[name] = encoding
        KINDS[name] = EncodingKind("".join(sorted(terms)), absolute, projects, table)
        return encoding

    return register


@register_encoding("relative", "abcd", projects=True)
class RelativeEncoding(Encoding):
    """The paper's: sinusoids of distances, u and v shared by all layers or one each (`untie_biases`)."""

    def __init__(self, config: TransformerXLConfig) -> None:
        super().__init__(config)
        shape = (config.n_layer if config.untie_biases else 1, config.n_head, config.d_head)
        self.u = nn.Parameter(torch.empty(shape)) if "c" in config.active_terms else None
        self.v = nn.Parameter(torch.empty(shape)) if "d" in config.active_terms else None
        self.d_model, self.has_positions = config.d_model, bool(set("bd") & set(config.active_terms))
        self.dropout = Dropout(config.dropout)

    def forward(self, n_keys: int, clamp_len: int, like: Tensor) -> list[LayerPositions]:
        """Distances from `clamp_len` on share one sinusoid."""
        sinusoids = None
        if self.has_positions:
            sinusoids = self.dropout(sinusoids_of_distances(n_keys, self.d_model, clamp_len, like))

        def of_layer(bias: Tensor | None, n: int) -> Tensor | None:
            return None if bias is None else bias[n if len(bias) > 1 else 0]

        return [
            LayerPositions(of_layer(self.u, n), of_layer(self.v, n), sinusoids_SD=sinusoids)
            for n in range(self.n_layer)
        ]


@register_encoding("shaw", "abcd", table="distances")
class ShawEncoding(Encoding):
    """A trained vector (b) and bias (d) of every distance below `table_len`, and u (c), for every layer.

    That is how the paper's code has it, which made the numbers of Table 6. The paper's text has terms (a)
    and (b) alone: `terms="ab"`. Distances beyond the table repeat its farthest row; `clamp_len` shortens
    the table. Row 0 is the farthest distance.
    """

    def __init__(self, config: TransformerXLConfig) -> None:
        super().__init__(config)
        table = (config.n_layer, config.required_table_len, config.n_head, config.d_head)
        terms = config.active_terms
        self.u = nn.Parameter(torch.empty(config.n_layer, *table[2:])) if "c" in terms else None
        self.table = nn.Parameter(torch.empty(table)) if "b" in terms else None
        self.distance_bias = nn.Parameter(torch.empty(table[:3])) if "d" in terms else None
        self.table_len = config.required_table_len

    def forward(self, n_keys: int, clamp_len: int, like: Tensor) -> list[LayerPositions]:
        """Table rows and biases of the distances K, …, 0."""
        farthest = min(self.table_len, clamp_len) - 1 if clamp_len > 0 else self.table_len - 1
        distances = torch.arange(n_keys, -1, -1, device=like.device).clamp(max=farthest)
        rows = self.table_len - 1 - distances
        return [
            LayerPositions(
                u_HE=None if self.u is None else self.u[n],
                table_HSE=None if self.table is None else self.table[n][rows].transpose(0, 1),
                bias_HS=None if self.distance_bias is None else self.distance_bias[n][rows].T,
            )
            for n in range(self.n_layer)
        ]


@register_encoding("absolute", absolute=True)
class AbsoluteEncoding(Encoding):
    """The sinusoid of the distance to the segment's end, added to the scaled embedding."""

    def embed(self, hidden_BTD: Float[Tensor, "B T D"], clamp_len: int) -> Float[Tensor, "B T D"]:
        """U_{T-1}, …, U_0 added to the T tokens."""
        T, D = hidden_BTD.shape[1:]
        return hidden_BTD + sinusoids_of_distances(T, D, clamp_len, hidden_BTD)[1:]


@register_encoding("al_rfou", absolute=True, table="positions")
class AlRfouEncoding(Encoding):
    """A trained row for every position, counted from the segment's end, added to every layer's input.

    Segments longer than the table repeat its farthest row (row 0).
    """

    def __init__(self, config: TransformerXLConfig) -> None:
        super().__init__(config)
        self.table = nn.Parameter(torch.empty(config.n_layer, config.required_table_len, config.d_model))

    def layer_input(self, n: int, hidden_BTD: Float[Tensor, "B T D"]) -> Float[Tensor, "B T D"]:
        """The layer's own rows added."""
        n_rows, T = self.table.shape[1], hidden_BTD.shape[1]
        rows = torch.arange(n_rows - T, n_rows, device=hidden_BTD.device).clamp(min=0)
        return hidden_BTD + self.table[n][rows]
