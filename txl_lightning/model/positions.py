"""Distances between queries and keys: sinusoids, the relative shift, rotations, the mask."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from txl_lightning.model.shapes import Angles, Counts, Distances, Heads, Mask, Sinusoids, Tokens


def sinusoid(positions_S: Distances, d_model: int) -> Sinusoids:
    """Return R_s = [sin(s·f_0), …, sin(s·f_{D/2-1}), cos(s·f_0), …] with f_k = 10000^(-2k/D).

    This is Vaswani et al. 2017, §3.5, with sines first, then cosines, not interleaved, as in the
    paper's code.
    """
    even = torch.arange(
        0,
        d_model,
        2,
        dtype=positions_S.dtype,
        device=positions_S.device,
    )
    frequencies = 10000.0 ** -(even / d_model)
    angles = positions_S[:, None] * frequencies
    return torch.cat([angles.sin(), angles.cos()], dim=-1)


def distances_of_keys(n_keys: int, clamp_len: int, like: Tensor) -> Distances:
    """Return the distances K, K-1, …, 0 (S = K + 1), clamped, in float64 if the device has it."""
    precise = torch.float32 if like.device.type == "mps" else torch.float64
    distances = torch.arange(
        n_keys,
        -1,
        -1,
        dtype=precise,
        device=like.device,
    )
    if clamp_len > 0:
        return distances.clamp(max=clamp_len)
    return distances


def sinusoids_of_distances(
    n_keys: int,
    d_model: int,
    clamp_len: int,
    like: Tensor,
) -> Sinusoids:
    """Return the sinusoids for the distances K, K-1, …, 0 (S = K + 1).

    Distance K belongs to no key: its row lets `relative_shift` be a view. Angles are computed in
    float64 and rounded once.

    Args:
        n_keys: K.
        d_model: D.
        clamp_len: larger distances are encoded like this one; -1 or 0 for none.
        like: tensor with the result's type and device.
    """
    return sinusoid(distances_of_keys(n_keys, clamp_len, like), d_model).to(like.dtype)


def rotation(angles_SF: Angles, like: Tensor) -> Float[Tensor, "2 S E"]:
    """Return (cos, cos) and (-sin, sin) of the angles, E = 2F, in the type of `like` or float32."""
    cos = angles_SF.cos()
    sin = angles_SF.sin()
    cos_SE = torch.cat([cos, cos], dim=-1)
    sin_SE = torch.cat([-sin, sin], dim=-1)
    precise = torch.promote_types(like.dtype, torch.float32)
    return torch.stack([cos_SE, sin_SE]).to(precise)


def rotate(x_HBTE: Heads, rotation_2SE: Float[Tensor, "2 S E"]) -> Heads:
    """Rotate the newest T tokens' pairs (x_f, x_{f+F}), F = E/2, by their angles.

    A vector's halves are paired ("rotate_half", as in Llama in `transformers`), not neighbouring components.

    Args:
        x_HBTE: queries or keys.
        rotation_2SE: from `rotation`, for the distances S-1, …, 0 from the newest token.
    """
    T, E = x_HBTE.shape[2:]
    cos_TE, sin_TE = rotation_2SE[:, -T:].unbind()
    x = x_HBTE.to(cos_TE.dtype)
    partner = x.roll(E // 2, dims=-1)
    return (x * cos_TE).addcmul_(partner, sin_TE).to(x_HBTE.dtype)


def relative_shift(
    by_distance_XTS: Float[Tensor, "X T S"], n_keys: int | None = None
) -> Float[Tensor, "X T K"]:
    """Turn columns that count distances into columns that count keys, without a copy (appendix B).

    Row i in the input has a value for each distance K, K-1, …, 0; row i in the output has at column j the value for
    distance K - T + i - j. Written as one line with T·S numbers, S columns a row, that value is number
    i·S + T - i + j = T + i·(S-1) + j: so drop the first T numbers and read rows with S-1. Entries for keys after
    query i belong to the next row; the causal mask must hide them.

    Args:
        by_distance_XTS: values; columns after the first K + 1 are padding.
        n_keys: K; None for S - 1, without padding.
    """
    if n_keys is None:
        n_keys = by_distance_XTS.shape[2] - 1
    return _RelativeShift.apply(by_distance_XTS, n_keys)


class _RelativeShift(torch.autograd.Function):
    """Forward: the view. Backward: one copy; a slice's would first fill the whole gradient with zeros."""

    @staticmethod
    def forward(ctx: Any, by_distance_XTS: Tensor, n_keys: int) -> Tensor:
        X, T, S = by_distance_XTS.shape
        ctx.n_distances = S
        line = by_distance_XTS.view(X, T * S)
        return line[:, T:].view(X, T, S - 1)[..., :n_keys]

    @staticmethod
    def backward(ctx: Any, grad_XTK: Tensor) -> tuple[Tensor, None]:
        X, T, K = grad_XTK.shape
        S = ctx.n_distances
        line = grad_XTK.new_empty(X, T * S)
        line[:, :T].zero_()
        shifted = line[:, T:].view(X, T, S - 1)
        shifted[..., :K].copy_(grad_XTK)
        if S - 1 > K:
            shifted[..., K:].zero_()
        return line.view(X, T, S), None


class VisibleKeys(NamedTuple):
    """Keys to which T queries, the last of K tokens, may attend.

    Args:
        mask_TK: 0 where a query may attend to a key, -inf elsewhere; [B, T, K] if streams differ.
        sees_memory: whether a mask [T, K] hides no key of the memory from any query.
        causal: whether queries see no keys after their position: only then a block of queries needs no later keys.
        only_queries: the queries whose output is read, if they are few; other queries' output has no meaning.
    """

    mask_TK: Tensor
    sees_memory: bool = False
    causal: bool = True
    only_queries: tuple[int, ...] = ()

    def block(self, first: int, end: int, n_keys: int) -> VisibleKeys:
        """Keep the mask for the queries `first` to `end` and the keys up to the last query."""
        return self._replace(mask_TK=self.mask_TK[..., first:end, :n_keys])

    @property
    def first_hidden(self) -> int:
        """First key that a mask [T, K] may hide; all queries see the keys before it."""
        if not (self.causal and self.sees_memory):
            return 0
        T, K = self.mask_TK.shape[-2:]
        return K - T


def attention_mask(
    n_queries: int, n_memory: int, filled: int, attention_len: int | None, like: Tensor
) -> Mask:
    """Return 0 where query i may attend to key j and -inf elsewhere, for K = M + T keys.

    The distance is M + i - j. The mask hides keys in the future (distance < 0), memory that was not
    written, and with `attention_len` keys at this distance or farther.

    Args:
        n_queries: T.
        n_memory: M.
        filled: how many newest states were written.
        attention_len: number of keys that a query sees, including itself; None for all.
        like: tensor with the result's type and device.
    """
    all_hidden_TK = like.new_full((n_queries, n_memory + n_queries), float("-inf"))
    mask_TK = all_hidden_TK.triu(n_memory + 1)
    mask_TK[:, : n_memory - filled] = float("-inf")
    if attention_len is not None:
        mask_TK += all_hidden_TK.tril(n_memory - attention_len)
    return mask_TK


def without_marks(tokens_BT: Tokens) -> Tokens:
    """Return the token numbers: a token that begins a document is marked as -1 - token.

    The mark stays with its token wherever streams are cut into segments, windows and extended
    context.
    """
    return torch.maximum(tokens_BT, ~tokens_BT)  # ~token is -1 - token


class StreamBounds(NamedTuple):
    """Where each stream's documents begin, and where its tokens end, within K = M + T keys.

    Args:
        first_BT: the first key in each token's document or episode.
        padding_B: number of padding places at each stream's end; None for none.
    """

    first_BT: Tokens
    padding_B: Counts | None = None

    @classmethod
    def of_segment(
        cls,
        marked_BT: Tensor | None,
        lengths_B: Tensor | None,
        n_tokens: int,
        n_memory: int,
        in_document_B: Tensor,
    ) -> StreamBounds:
        """Return a segment's bounds.

        Args:
            marked_BT: tokens, marked where a document begins; None if none begins among them.
            lengths_B: each stream's number of tokens; None if all have T.
            n_tokens: T.
            n_memory: M.
            in_document_B: how many newest states in the memory belong to the document before the tokens.
        """
        first_BT = (n_memory - in_document_B[:, None]).expand(-1, n_tokens)
        if marked_BT is not None:
            keys_T = torch.arange(
                n_memory,
                n_memory + n_tokens,
                device=marked_BT.device,
            )
            begins_BT = torch.where(marked_BT < 0, keys_T, first_BT)
            first_BT = begins_BT.cummax(dim=1).values
        padding_B = None
        if lengths_B is not None:
            padding_B = n_tokens - lengths_B.long()
        return cls(first_BT, padding_B)

    def hide_other_documents(self, mask_TK: Mask) -> Float[Tensor, "B T K"]:
        """Return every stream's mask: -inf also at the keys before each query's document."""
        keys_K = torch.arange(mask_TK.shape[1], device=mask_TK.device)
        return mask_TK.masked_fill(keys_K < self.first_BT[:, :, None], float("-inf"))

    def states_in_document(
        self, n_memory: int, appended: int, mem_len: int, in_document_B: Counts
    ) -> Counts:
        """Return how many newest states in the next memory belong to its last token's document.

        Args:
            n_memory: M, states in the memory before the tokens.
            appended: how many of the T places enter the next memory, including padding.
            mem_len: longest memory.
            in_document_B: this number for the memory before the tokens.
        """
        n_tokens_B = torch.full_like(in_document_B, appended)
        if self.padding_B is not None:
            n_tokens_B = (n_tokens_B - self.padding_B).clamp(min=0)
        last_B1 = (n_tokens_B[:, None] - 1).clamp(min=0)
        first_B = self.first_BT.gather(1, last_B1)[:, 0]
        n_states_B = (n_memory + n_tokens_B - first_B).clamp(max=mem_len)
        return torch.where(n_tokens_B > 0, n_states_B, in_document_B)


def roll_streams(
    x_BKD: Float[Tensor, "*_ B K D"], by_B: Counts | None
) -> Float[Tensor, "*_ B K D"]:
    """Roll every stream's K entries by its number of places; None rolls nothing."""
    if by_B is None:
        return x_BKD
    K = x_BKD.shape[-2]
    places_BK1 = (torch.arange(K, device=by_B.device) - by_B[:, None])[:, :, None] % K
    n_leading = x_BKD.ndim - places_BK1.ndim
    for _ in range(n_leading):
        places_BK1 = places_BK1[None]
    return x_BKD.take_along_dim(places_BK1, dim=-2)
