"""Interface of a position encoding, and the decorator that registers one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from txl_lightning.config.architecture import TransformerXLConfig
from txl_lightning.config.encoding_kinds import KINDS, EncodingKind
from txl_lightning.errors import require
from txl_lightning.model.positions import distances_of_keys, rotation


class LayerPositions(NamedTuple):
    """Position information of one layer's attention; None for a part that its encoding or terms lack.

    Args:
        u_HE: content bias u, term (c).
        v_HE: position bias v, term (d).
        sinusoids_SD: R of the distances K, …, 0 (S = K + 1), which the layer projects by its W_{k,R}.
        table_HSE: vectors of the distances K, …, 0, in place of W_{k,R} R.
        bias_HS: biases of the distances K, …, 0, in place of v·(W_{k,R} R).
        rotation_2SE: `positions.rotation` of the distances K, …, 0, which rotates queries and keys.
    """

    u_HE: Tensor | None = None
    v_HE: Tensor | None = None
    sinusoids_SD: Tensor | None = None
    table_HSE: Tensor | None = None
    bias_HS: Tensor | None = None
    rotation_2SE: Tensor | None = None

    def of_terms(self, terms: str) -> LayerPositions:
        """Keep only what these terms of the logits need."""
        r_needed = bool(set("bd") & set(terms))
        return LayerPositions(
            u_HE=self.u_HE if "c" in terms else None,
            v_HE=self.v_HE if "d" in terms else None,
            sinusoids_SD=self.sinusoids_SD if r_needed else None,
            table_HSE=self.table_HSE if r_needed else None,
            bias_HS=self.bias_HS if "d" in terms else None,
            rotation_2SE=self.rotation_2SE,
        )

    def without_distance_k(self) -> LayerPositions:
        """Set what belongs to distance K, which is that of no key, to zero; the rotation stays.

        `relative_shift` gives these entries to the key after each query.
        """
        by_distance = {"table_HSE": self.table_HSE, "sinusoids_SD": self.sinusoids_SD}
        padded = {name: x if x is None else F.pad(x[..., 1:, :], (0, 0, 1, 0)) for name, x in by_distance.items()}
        bias_HS = None if self.bias_HS is None else F.pad(self.bias_HS[:, 1:], (1, 0))
        return self._replace(**padded, bias_HS=bias_HS)

    def up_to(self, n_keys: int) -> LayerPositions:
        """Keep the distances K, …, 0 with K = `n_keys`, of all but the sinusoids."""
        by_distance = {"table_HSE": self.table_HSE, "bias_HS": self.bias_HS, "rotation_2SE": self.rotation_2SE}
        return self._replace(**{name: x if x is None else x[:, -n_keys - 1 :] for name, x in by_distance.items()})


class Encoding(nn.Module):
    """Base class of encodings: adds no positional information.

    A subclass overrides `forward` to change the logits by distance, `angles` to rotate queries and keys, or `embed`
    and `layer_input` to change the inputs; `register_encoding` makes it available.

    Args:
        config: sizes and terms.
    """

    def __init__(self, config: TransformerXLConfig) -> None:
        super().__init__()
        self.n_layer, self.n_head, self.d_head = config.n_layer, config.n_head, config.d_head
        self.terms = config.active_terms

    def initialize(self) -> None:
        """Set parameters that should not keep their usual start: N(0, init_std²), or zero if named `…bias`."""

    def embed(self, hidden_BTD: Float[Tensor, "B T D"], clamp_len: int) -> Float[Tensor, "B T D"]:
        """Return the input of the first layer, before dropout, from the scaled embedding."""
        return hidden_BTD

    def layer_input(self, n: int, hidden_BTD: Float[Tensor, "B T D"]) -> Float[Tensor, "B T D"]:
        """Return the input of layer n, which its memory keeps, from the output of the layer before."""
        return hidden_BTD

    def forward(self, n_keys: int, clamp_len: int, like: Tensor) -> list[LayerPositions]:
        """Return the positions for every layer's attention over K keys, by distance K, …, 0.

        Args:
            n_keys: K.
            clamp_len: larger distances are encoded like this one; -1 or 0 for none.
            like: tensor with the type and device of the result.
        """
        return [LayerPositions()] * self.n_layer

    def angles(self, distances_S: Float[Tensor, " S"]) -> Float[Tensor, "S F"]:
        """Return the F = E/2 angles that rotate queries and keys at these distances from the newest token.

        They must be linear in the distance: q_i·k_j then depends on i - j only.

        Raises:
            NotImplementedError: the encoding rotates nothing.
        """
        raise NotImplementedError

    def positions(self, n_keys: int, clamp_len: int, like: Tensor) -> list[LayerPositions]:
        """Return the positions of `forward` without the terms that are off, and the rotation.

        Distances are counted from the newest token, so angles do not grow with the stream. They are computed in
        float64 and rounded once.

        Args:
            n_keys: K.
            clamp_len: see `forward`.
            like: see `forward`.
        """
        of_layers = [of_layer.of_terms(self.terms) for of_layer in self(n_keys, clamp_len, like)]
        if not rotates(type(self)):
            return of_layers
        rotation_2SE = rotation(self.angles(distances_of_keys(n_keys, -1, like)), like)
        return [of_layer._replace(rotation_2SE=rotation_2SE) for of_layer in of_layers]


def rotates(encoding: type[Encoding]) -> bool:
    """Return whether an encoding has angles."""
    return encoding.angles is not Encoding.angles


ENCODINGS: dict[str, type[Encoding]] = {}


def register_encoding(name: str, terms: str = "a", **properties: Any) -> Callable[[type[Encoding]], type[Encoding]]:
    """Return a decorator that registers a subclass of `Encoding` under the name of a config's `encoding`.

    `table_HSE` or `sinusoids_SD` enter term (b) of the logits, and (d) if there is a `v_HE`; `bias_HS` enters (d). All
    are added before the division by sqrt(E). A checkpoint holds only the name, so the class must be registered before
    one is loaded.

    Args:
        name: letters, digits and underscores.
        terms: the terms (a)-(d) that the encoding has; `model.terms` can switch some of them off.
        properties: `absolute`, `projects`, `table` and `extrapolates` of an `EncodingKind`.

    Raises:
        OptionError: another class has the name, or a value is not allowed.
    """
    require(name.isidentifier(), "name", name, "must be letters, digits and underscores")
    good_terms = set(terms) <= set("abcd") and len(set(terms)) == len(terms)
    require(good_terms, "terms", terms, "must be letters of abcd, each at most once")

    def register(encoding: type[Encoding]) -> type[Encoding]:
        known = ENCODINGS.get(name, encoding)
        # A notebook cell that runs again defines the class again.
        same = (known.__module__, known.__qualname__) == (encoding.__module__, encoding.__qualname__)
        require(same, "name", name, f"is the name of another encoding, {known.__module__}.{known.__qualname__}")
        # (b) and (c) would depend on the place of a query or key in its stream, not on their distance alone.
        fits = not (rotates(encoding) and set("bc") & set(terms))
        require(fits, "terms", terms, "must be a or ad: angles rotate q and k")
        ENCODINGS[name] = encoding
        KINDS[name] = EncodingKind("".join(sorted(terms)), rotates=rotates(encoding), **properties)
        return encoding

    return register
