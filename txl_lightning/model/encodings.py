"""Position encodings: the four in the ablation (paper Table 6) and later ones; `register_encoding` adds another.

    relative   terms (a)-(d), the sinusoid of the distance (section 3.3; attn_type 0)
    shaw       a trained table of distances in every layer (Shaw et al. 2018; attn_type 1)
    absolute   the sinusoid of the position, added to the embedding (Vaswani et al. 2017; attn_type 2)
    al_rfou    a trained table of positions, added to every layer's input (Al-Rfou et al. 2018; attn_type 3)
    rope       queries and keys rotated by their positions (Su et al. 2021)
    alibi      a penalty that grows with the distance, as term (d) (Press et al. 2022)
    none       the causal mask alone (Kazemnejad et al. 2023)

Absolute positions are counted from the segment's end: its last token has index 0. With memory every segment uses the
same positions; the memory keeps each layer's input as it was computed, so positions are never added to it a second time
(section 3.3).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from txl_lightning.config.architecture import KINDS, EncodingKind, TransformerXLConfig
from txl_lightning.errors import require
from txl_lightning.model.layers import Dropout
from txl_lightning.model.positions import (
    StreamBounds,
    distances_of_keys,
    roll_streams,
    rotation,
    sinusoids_of_distances,
)
from txl_lightning.model.shapes import Angles, Distances, Hidden
from txl_lightning.registry import Guests


class LayerPositions(NamedTuple):
    """Position information for one layer's attention; None for a part that the encoding lacks.

    Args:
        u_HE: content bias u, term (c).
        v_HE: position bias v, term (d).
        sinusoids_SD: R for the distances K, …, 0 (S = K + 1); the layer projects it by its W_{k,R}.
        table_HSE: vectors r for the distances K, …, 0: trained, or W_{k,R} R from cached inference.
        bias_HS: biases for the distances K, …, 0, instead of v·(W_{k,R} R).
        rotation_2SE: `positions.rotation` for the distances K, …, 0, for queries and keys.
    """

    u_HE: Tensor | None = None
    v_HE: Tensor | None = None
    sinusoids_SD: Tensor | None = None
    table_HSE: Tensor | None = None
    bias_HS: Tensor | None = None
    rotation_2SE: Tensor | None = None

    def of_terms(self, terms: str) -> LayerPositions:
        """Keep only what these score terms need."""
        positions = self
        if "c" not in terms:
            positions = positions._replace(u_HE=None)
        if "d" not in terms:
            positions = positions._replace(v_HE=None, bias_HS=None)
        if "b" not in terms and "d" not in terms:
            positions = positions._replace(sinusoids_SD=None, table_HSE=None)
        return positions

    def up_to(self, n_keys: int) -> LayerPositions:
        """Keep the distances K, …, 0 with K = `n_keys`, in all parts except the sinusoids."""
        kept: dict[str, Tensor] = {}
        for name in ("table_HSE", "bias_HS", "rotation_2SE"):
            by_distance = getattr(self, name)
            if by_distance is not None:
                kept[name] = by_distance[:, -n_keys - 1 :]
        return self._replace(**kept)


class Encoding(nn.Module):
    """Base class for encodings: adds no positional information.

    A subclass overrides `forward` to change the score by distance, `angles` to rotate queries and
    keys, or `embed` and `layer_input` to change the inputs; `register_encoding` makes it available.

    Args:
        config: sizes and terms.
    """

    def __init__(self, config: TransformerXLConfig) -> None:
        super().__init__()
        self.n_layer = config.n_layer
        self.n_head = config.n_head
        self.d_head = config.d_head
        self.terms = config.active_terms
        self.absolute = config.kind.absolute

    def initialize(self) -> None:
        """Set initial values; override it where the default does not fit.

        By default a parameter starts from N(0, init_std²), and at zero if its name ends in `bias`.
        """

    def embed(self, hidden_BTD: Hidden, clamp_len: int) -> Hidden:
        """Return the first layer's input, before dropout, from the scaled embedding."""
        return hidden_BTD

    def layer_input(self, n: int, hidden_BTD: Hidden) -> Hidden:
        """Return layer n's input, as its memory keeps it, from the previous layer's output."""
        return hidden_BTD

    def forward(
        self,
        n_keys: int,
        clamp_len: int,
        like: Tensor,
    ) -> list[LayerPositions]:
        """Return the positions for every layer's attention over K keys, by distance K, …, 0.

        Args:
            n_keys: K.
            clamp_len: larger distances are encoded like this one; -1 or 0 for none.
            like: tensor with the result's type and device.
        """
        return [LayerPositions()] * self.n_layer

    def angles(self, distances_S: Distances) -> Angles:
        """Return the F = E/2 angles that rotate queries and keys at these distances.

        Distances are counted from the newest token. Angles must be linear in them: q_i·k_j then
        depends on i - j only.

        Raises:
            NotImplementedError: the encoding rotates nothing.
        """
        raise NotImplementedError

    def embed_streams(
        self, hidden_BTD: Tensor, clamp_len: int, bounds: StreamBounds | None
    ) -> Hidden:
        """Return `embed` with positions that count from each stream's last token."""

        def embed(x_BTD: Tensor) -> Tensor:
            return self.embed(x_BTD, clamp_len)

        return self._from_last_tokens(embed, hidden_BTD, bounds)

    def layer_input_of_streams(
        self, n: int, hidden_BTD: Tensor, bounds: StreamBounds | None
    ) -> Hidden:
        """Return `layer_input` with positions that count from each stream's last token."""

        def layer_input(x_BTD: Tensor) -> Tensor:
            return self.layer_input(n, x_BTD)

        return self._from_last_tokens(layer_input, hidden_BTD, bounds)

    def _from_last_tokens(
        self,
        add_positions: Callable[[Tensor], Tensor],
        x_BTD: Tensor,
        bounds: StreamBounds | None,
    ) -> Tensor:
        """Move padding to its stream's start while absolute positions are added."""
        if bounds is None or bounds.padding_B is None or not self.absolute:
            return add_positions(x_BTD)
        rolled_BTD = add_positions(roll_streams(x_BTD, bounds.padding_B))
        return roll_streams(rolled_BTD, -bounds.padding_B)

    def positions(
        self,
        n_keys: int,
        clamp_len: int,
        like: Tensor,
    ) -> list[LayerPositions]:
        """Return the positions for `forward` without the terms that are off, and the rotation.

        Distances are counted from the newest token, so angles do not grow with the stream. They are
        computed in float64 and rounded once.

        Args:
            n_keys: K.
            clamp_len: see `forward`.
            like: see `forward`.
        """
        rotation_2SE = None
        if rotates(type(self)):
            angles_SF = self.angles(distances_of_keys(n_keys, -1, like))
            rotation_2SE = rotation(angles_SF, like)
        layers = []
        for positions in self(n_keys, clamp_len, like):
            layers.append(positions.of_terms(self.terms)._replace(rotation_2SE=rotation_2SE))
        return layers


def rotates(encoding: type[Encoding]) -> bool:
    """Return whether an encoding has angles."""
    return encoding.angles is not Encoding.angles


ENCODINGS: Guests[type[Encoding]] = Guests("encoding", __name__)


def register_encoding(
    name: str, terms: str = "a", **properties: Any
) -> Callable[[type[Encoding]], type[Encoding]]:
    """Return a decorator that registers a subclass of `Encoding` under the name given as `encoding=`.

    `table_HSE` or `sinusoids_SD` enter score term (b), and (d) if there is a `v_HE`; `bias_HS` enters (d). All are
    added before the division by sqrt(E). `sinusoids_SD` needs the property `projects`. A checkpoint holds only the
    name, so the class must be registered before one is loaded.

    Args:
        name: letters, digits and underscores.
        terms: the terms (a)-(d) that the encoding has; `model.terms` can switch some off.
        properties: `absolute`, `projects`, `table` and `extrapolates` as in `EncodingKind`.

    Raises:
        OptionError: another class has the name, or a value is not allowed.
    """
    require(name.isidentifier(), "name", name, "must be letters, digits and underscores")
    are_terms = set(terms) <= set("abcd") and len(set(terms)) == len(terms)
    require(are_terms, "terms", terms, "must be letters of abcd, each at most once")

    def register(encoding: type[Encoding]) -> type[Encoding]:
        rotated = rotates(encoding)
        # A rotated q would meet r and u that are not: (b) and (c) would depend on absolute places.
        fits = not (rotated and set("bc") & set(terms))
        require(fits, "terms", terms, "must be a or ad: angles rotate q and k")
        kind = EncodingKind(
            "".join(sorted(terms)),
            rotates=rotated,
            **properties,
        )
        ENCODINGS.add(name, encoding, {"defaults": ["schema", "_self_"]})
        KINDS[name] = kind
        return encoding

    return register


@register_encoding("relative", "abcd", projects=True)
class RelativeEncoding(Encoding):
    """Distance sinusoids; u and v for all layers, or for each one (`untie_biases`)."""

    def __init__(self, config: TransformerXLConfig) -> None:
        super().__init__(config)
        n_biases = config.n_layer if config.untie_biases else 1
        shape = (n_biases, config.n_head, config.d_head)
        self.u = nn.Parameter(torch.empty(shape)) if "c" in self.terms else None
        self.v = nn.Parameter(torch.empty(shape)) if "d" in self.terms else None
        self.d_model = config.d_model
        self.has_positions = "b" in self.terms or "d" in self.terms
        self.dropout = Dropout(config.dropout)

    def forward(
        self,
        n_keys: int,
        clamp_len: int,
        like: Tensor,
    ) -> list[LayerPositions]:
        """Return u, v and the sinusoids; in training with dropout, one mask for all layers."""
        sinusoids_SD = None
        if self.has_positions:
            sinusoids_SD = sinusoids_of_distances(n_keys, self.d_model, clamp_len, like)
            sinusoids_SD = self.dropout(sinusoids_SD)
        layers = []
        for n in range(self.n_layer):
            u_HE = _bias_of_layer(self.u, n)
            v_HE = _bias_of_layer(self.v, n)
            layers.append(LayerPositions(u_HE, v_HE, sinusoids_SD=sinusoids_SD))
        return layers


def _bias_of_layer(bias: Tensor | None, n: int) -> Tensor | None:
    """Return layer n's u or v, or the shared one."""
    if bias is None:
        return None
    is_shared = len(bias) == 1
    return bias[0 if is_shared else n]


@register_encoding("shaw", "abcd", table="distances")
class ShawEncoding(Encoding):
    """For every layer: a trained vector (b) and bias (d) for each distance below `table_len`, and u (c).

    The paper's code, which produced Table 6, has all four terms; the paper's text has only (a) and (b): `terms="ab"`.
    Distances beyond the table use its farthest row (row 0). Here `clamp_len` counts rows: the largest distance is
    `clamp_len` - 1.
    """

    def __init__(self, config: TransformerXLConfig) -> None:
        super().__init__(config)
        assert config.table_len is not None
        N = config.n_layer
        H = config.n_head
        E = config.d_head
        rows = config.table_len
        self.table_len = rows
        self.u = nn.Parameter(torch.empty(N, H, E)) if "c" in self.terms else None
        self.table = nn.Parameter(torch.empty(N, rows, H, E)) if "b" in self.terms else None
        self.distance_bias = nn.Parameter(torch.empty(N, rows, H)) if "d" in self.terms else None

    def forward(
        self,
        n_keys: int,
        clamp_len: int,
        like: Tensor,
    ) -> list[LayerPositions]:
        """Return u and the table's rows and biases for the distances K, …, 0."""
        n_rows = self.table_len
        if clamp_len > 0:
            n_rows = min(n_rows, clamp_len)
        distances_S = torch.arange(
            n_keys,
            -1,
            -1,
            device=like.device,
        ).clamp(max=n_rows - 1)
        rows_S = self.table_len - 1 - distances_S
        layers = []
        for n in range(self.n_layer):
            positions = LayerPositions()
            if self.u is not None:
                positions = positions._replace(u_HE=self.u[n])
            if self.table is not None:
                positions = positions._replace(table_HSE=self.table[n][rows_S].transpose(0, 1))
            if self.distance_bias is not None:
                positions = positions._replace(bias_HS=self.distance_bias[n][rows_S].T)
            layers.append(positions)
        return layers


@register_encoding("absolute", absolute=True)
class AbsoluteEncoding(Encoding):
    """Sinusoid for the distance to the segment's end, added to the scaled embedding."""

    def embed(self, hidden_BTD: Hidden, clamp_len: int) -> Hidden:
        """Add U_{T-1}, …, U_0 to the T tokens."""
        T, D = hidden_BTD.shape[1:]
        sinusoids_SD = sinusoids_of_distances(T, D, clamp_len, hidden_BTD)
        return hidden_BTD + sinusoids_SD[1:]  # without distance T


@register_encoding("al_rfou", absolute=True, table="positions")
class AlRfouEncoding(Encoding):
    """Trained vector for every position from the segment's end, added to every layer's input.

    Positions beyond the table use its farthest row (row 0).
    """

    def __init__(self, config: TransformerXLConfig) -> None:
        super().__init__(config)
        assert config.table_len is not None
        shape = (config.n_layer, config.table_len, config.d_model)
        self.table = nn.Parameter(torch.empty(shape))

    def layer_input(self, n: int, hidden_BTD: Hidden) -> Hidden:
        """Add layer n's rows."""
        n_rows = self.table.shape[1]
        T = hidden_BTD.shape[1]
        rows_T = torch.arange(
            n_rows - T,
            n_rows,
            device=hidden_BTD.device,
        ).clamp(min=0)
        return hidden_BTD + self.table[n][rows_T]


@register_encoding("rope")
class RotaryEncoding(Encoding):
    """A_ij = (R_i q_i)·(R_j k_j) / sqrt(E): R_p rotates (x_f, x_{f+E/2}) by p·10000^(-2f/E).

    Memory keeps hidden states and cached inference unrotated keys. Both are rotated when they are
    read, by their distance to the newest token.
    """

    def angles(self, distances_S: Distances) -> Angles:
        """Return p·10000^(-2f/E) for the positions p = -distance."""
        even = torch.arange(
            0,
            self.d_head,
            2,
            dtype=distances_S.dtype,
            device=distances_S.device,
        )
        frequencies_F = 10000.0 ** -(even / self.d_head)
        return -distances_S[:, None] * frequencies_F


@register_encoding("alibi", "ad", extrapolates=True)
class AlibiEncoding(Encoding):
    """A_ij = q_i·k_j / sqrt(E) - m_h (i - j), with fixed slopes m_h; the bias is term (d)."""

    def forward(
        self,
        n_keys: int,
        clamp_len: int,
        like: Tensor,
    ) -> list[LayerPositions]:
        """Return the biases for the distances K, …, 0, the same in all layers."""
        distances_S = distances_of_keys(n_keys, clamp_len, like)
        scale = self.d_head**0.5  # attention divides all scores by sqrt(E)
        bias_HS = -scale * slopes(self.n_head, distances_S)[:, None] * distances_S
        return [LayerPositions(bias_HS=bias_HS.to(like.dtype))] * self.n_layer


def slopes(n_head: int, like: Tensor) -> Float[Tensor, " H"]:
    """Return m_h = 2^(-8h/H), h = 1, …, H, if H is a power of two.

    For other H: the slopes for the power of two below H, then every second slope for the power of two above H.
    """
    power = 1 << (n_head.bit_length() - 1)
    heads = torch.arange(
        n_head,
        dtype=like.dtype,
        device=like.device,
    )
    below = (heads[:power] + 1) / power
    above = (heads[: n_head - power] * 2 + 1) / (2 * power)
    return 2.0 ** (-8 * torch.cat([below, above]))


@register_encoding("none", extrapolates=True)
class NoEncoding(Encoding):
    """A_ij = q_i·k_j / sqrt(E). Only the causal mask tells a token how many tokens precede it."""
