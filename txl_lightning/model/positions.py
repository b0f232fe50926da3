"""Distances between queries and keys: sinusoids, the relative shift, rotations, the mask."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor


def sinusoid(positions_S: Float[Tensor, " S"], d_model: int) -> Float[Tensor, "S D"]:
    """Return R_s = [sin(s·f_0), …, sin(s·f_{D/2-1}), cos(s·f_0), …] with f_k = 10000^(-2k/D).

    This is Vaswani et al. 2017, §3.5, with sines first, then cosines, not interleaved, as in the paper's code.
    """
    exponents = torch.arange(0, d_model, 2, dtype=positions_S.dtype, device=positions_S.device) / d_model
    angles = positions_S[:, None] * 10000.0**-exponents
    return torch.cat([angles.sin(), angles.cos()], dim=-1)


def distances_of_keys(n_keys: int, clamp_len: int, like: Tensor) -> Float[Tensor, " S"]:
    """Return the distances K, K-1, …, 0 (S = K + 1), clamped, in float64 where the device of `like` has it."""
    precise = torch.float32 if like.device.type == "mps" else torch.float64
    distances = torch.arange(n_keys, -1, -1, dtype=precise, device=like.device)
    return distances.clamp(max=clamp_len) if clamp_len > 0 else distances


def sinusoids_of_distances(n_keys: int, d_model: int, clamp_len: int, like: Tensor) -> Float[Tensor, "S D"]:
    """Return the sinusoids of distances K, K-1, …, 0 (S = K + 1).

    Distance K belongs to no key: its row lets `relative_shift` be a view. Angles are computed in float64 and
    rounded once.

    Args:
        n_keys: K.
        d_model: D.
        clamp_len: larger distances are encoded like this one; -1 or 0 for none.
        like: tensor with the type and device of the result.
    """
    return sinusoid(distances_of_keys(n_keys, clamp_len, like), d_model).to(like.dtype)


def rotation(angles_SF: Float[Tensor, "S F"], like: Tensor) -> Float[Tensor, "2 S E"]:
    """Return (cos, cos) and (-sin, sin) of the angles, E = 2F, in the type of `like`, but at least in float32."""
    cos, sin = angles_SF.cos(), angles_SF.sin()
    both = torch.stack([torch.cat([cos, cos], dim=-1), torch.cat([-sin, sin], dim=-1)])
    return both.to(torch.promote_types(like.dtype, torch.float32))


def rotate(x_HBTE: Float[Tensor, "H B T E"], rotation_2SE: Float[Tensor, "2 S E"]) -> Float[Tensor, "H B T E"]:
    """Rotate the pairs (x_f, x_{f+F}), F = E/2, of the newest T tokens by the angles of their distances T-1, …, 0.

    The halves of a vector are paired ("rotate_half", as in Llama of `transformers`), not neighbouring components.

    Args:
        x_HBTE: queries or keys.
        rotation_2SE: from `rotation`, of the distances S-1, …, 0 from the newest token.
    """
    cos_TE, sin_TE = rotation_2SE[:, -x_HBTE.shape[2] :].unbind()
    x = x_HBTE.to(cos_TE.dtype)
    return (x * cos_TE).addcmul_(x.roll(x.shape[-1] // 2, dims=-1), sin_TE).to(x_HBTE.dtype)


def relative_shift(by_distance_XTS: Float[Tensor, "X T S"], n_keys: int | None = None) -> Float[Tensor, "X T K"]:
    """Turn columns that count distances into columns that count keys, without a copy (appendix B).

    Row i of the input has a value for each of the distances K, K-1, …, 0; row i of the output has at column j
    the value for distance K - T + i - j. In a line of T·S numbers, S = K + 1, the first key of row i is number
    T + i·(S-1), so the result is a view that starts at number T. Entries of keys after query i belong to the next row;
    the causal mask must hide them.

    Args:
        by_distance_XTS: values; columns after the first K + 1 are padding.
        n_keys: K; None for S - 1, without padding.
    """
    shifted: Tensor = _RelativeShift.apply(by_distance_XTS, by_distance_XTS.shape[2] - 1 if n_keys is None else n_keys)
    return shifted


class _RelativeShift(torch.autograd.Function):
    """Forward: the view. Backward: the copy alone, where a slice would first fill the whole gradient with zeros."""

    @staticmethod
    def forward(ctx: Any, by_distance_XTS: Tensor, n_keys: int) -> Tensor:
        X, T, S = by_distance_XTS.shape
        ctx.n_distances = S
        return by_distance_XTS.view(X, T * S)[:, T:].view(X, T, S - 1)[..., :n_keys]

    @staticmethod
    def backward(ctx: Any, grad_XTK: Tensor) -> tuple[Tensor, None]:
        (X, T, K), S = grad_XTK.shape, ctx.n_distances
        grad = grad_XTK.new_empty(X, T * S)
        grad[:, :T].zero_()
        shifted = grad[:, T:].view(X, T, S - 1)
        shifted[..., :K].copy_(grad_XTK)
        if S - 1 > K:
            shifted[..., K:].zero_()
        return grad.view(X, T, S), None


class VisibleKeys(NamedTuple):
    """Keys to which T queries, the last of K tokens, may attend.

    Args:
        mask_TK: 0 where a query may attend to a key, -inf elsewhere; [B, T, K] if streams differ.
        sees_memory: whether a causal mask [T, K] hides no key before the first query's own, so that it is not read.
        causal: whether queries see no keys after their own: only then a block of queries needs no later keys.
        places: the only queries whose output is read, if they are few; the others may give anything.
    """

    mask_TK: Tensor
    sees_memory: bool = False
    causal: bool = True
    places: tuple[int, ...] = ()

    def part(self, queries: slice, n_keys: int) -> VisibleKeys:
        """Keep the mask of some queries, and of the first keys, up to that of the last of these queries."""
        return self._replace(mask_TK=self.mask_TK[..., queries, :n_keys])

    @property
    def first_hidden(self) -> int:
        """First key that a mask [T, K] may hide from a query; all queries see the keys before it."""
        T, K = self.mask_TK.shape[-2:]
        return K - T if self.causal and self.sees_memory else 0


def attention_mask(
    n_queries: int, n_memory: int, filled: int, attention_len: int | None, like: Tensor
) -> Float[Tensor, "T K"]:
    """Return 0 where query i may attend to key j and -inf elsewhere, for K = M + T keys.

    The distance is M + i - j. Hidden are keys in the future (distance < 0), memory that was not written, and,
    with `same_length`, distances of `attention_len` or more.

    Args:
        n_queries: T.
        n_memory: M.
        filled: number of states, counted from the newest, that were written.
        attention_len: number of keys that a query sees, itself included; None for all.
        like: tensor with the type and device of the result.
    """
    mask_TK = like.new_full((n_queries, n_memory + n_queries), float("-inf")).triu_(n_memory + 1)
    mask_TK[:, : n_memory - filled] = float("-inf")
    if attention_len is not None:
        mask_TK += torch.full_like(mask_TK, float("-inf")).tril_(n_memory - attention_len)
    return mask_TK


def without_marks(tokens_BT: Int[Tensor, "B T"]) -> Int[Tensor, "B T"]:
    """Return the numbers of tokens of which some are marked: -1 - token is a token that begins a document.

    The mark stays with its token wherever streams are cut into segments, windows and extended context.
    """
    return torch.maximum(tokens_BT, ~tokens_BT)


class OwnKeys(NamedTuple):
    """Where streams begin and end within K = M + T keys: their documents or episodes, and padding after their tokens.

    Args:
        first_BT: first key of each token's document.
        padding_B: number of places at the end of each stream that are padding; None for none.
    """

    first_BT: Int[Tensor, "B T"]
    padding_B: Int[Tensor, " B"] | None = None

    @classmethod
    def of(
        cls, marked_BT: Tensor | None, lengths_B: Tensor | None, n_tokens: int, n_memory: int, in_document_B: Tensor
    ) -> OwnKeys:
        """Return those of a segment.

        Args:
            marked_BT: tokens, marked where a document begins; None if none begins among them.
            lengths_B: number of each stream's tokens; None if all have T.
            n_tokens: T.
            n_memory: M.
            in_document_B: number of states of the memory, counted from the newest, of the document before the tokens.
        """
        first_BT = (n_memory - in_document_B[:, None]).expand(-1, n_tokens)
        if marked_BT is not None:
            places_T = torch.arange(n_memory, n_memory + n_tokens, device=marked_BT.device)
            first_BT = torch.where(marked_BT < 0, places_T, first_BT).cummax(dim=1).values
        return cls(first_BT, None if lengths_B is None else n_tokens - lengths_B.long())

    def hide_others(self, mask_TK: Float[Tensor, "T K"]) -> Float[Tensor, "B T K"]:
        """Return the mask of every stream: -inf also at the keys before each query's document."""
        keys_K = torch.arange(mask_TK.shape[1], device=mask_TK.device)
        return mask_TK.masked_fill(keys_K < self.first_BT[:, :, None], float("-inf"))

    def states(self, n_memory: int, appended: int, mem_len: int, in_document_B: Int[Tensor, " B"]) -> Int[Tensor, " B"]:
        """Return how many states of the next memory, counted from the newest, belong to the document of its last token.

        Args:
            n_memory: M of the memory before the tokens.
            appended: number of the T places that enter the next memory, padding among them.
            mem_len: longest memory.
            in_document_B: this number for the memory before the tokens.
        """
        own_B = torch.full_like(in_document_B, appended)
        own_B = own_B if self.padding_B is None else (own_B - self.padding_B).clamp(min=0)
        first_B = self.first_BT.gather(1, (own_B[:, None] - 1).clamp(min=0))[:, 0]
        return torch.where(own_B > 0, (n_memory + own_B - first_B).clamp(max=mem_len), in_document_B)


def shift(x_BKD: Float[Tensor, "*_ B K D"], by_B: Int[Tensor, " B"] | None) -> Float[Tensor, "*_ B K D"]:
    """Move the K entries of every stream by its number of places towards the end, and the last ones to the start."""
    if by_B is None:
        return x_BKD
    K = x_BKD.shape[-2]
    places_BK = (torch.arange(K, device=by_B.device) - by_B[:, None]) % K
    return x_BKD.take_along_dim(places_BK.view(*[1] * (x_BKD.ndim - 3), *places_BK.shape, 1), dim=-2)
