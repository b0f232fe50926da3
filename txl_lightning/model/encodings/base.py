"""The interface of an encoding, and the decorator that makes one known."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

from jaxtyping import Float
from torch import Tensor, nn

from txl_lightning.config.encoding_kinds import KINDS, EncodingKind
from txl_lightning.errors import require
from txl_lightning.model.config import TransformerXLConfig


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
