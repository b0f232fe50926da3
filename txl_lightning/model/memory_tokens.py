"""Memory tokens of a Recurrent Memory Transformer (Bulatov et al. 2022): their places around a segment, their mask."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from txl_lightning.config.architecture import TransformerXLConfig
from txl_lightning.model.positions import VisibleKeys


class MemoryTokens(nn.Module):
    """n memory tokens, read at places before a segment and written at places after it (§3.2 of the paper).

        row of a segment     [z ∘ tokens ∘ z]           z: the memory tokens, beside the scaled embeddings
        next z               outputs of the last layer, after norm and dropout, at the places after the segment

    Without `config.write_tokens` the row is [z ∘ tokens], and the next z are the outputs at the places of the present.
    Memory tokens pass all layers as tokens do: positions count them, and their states enter the memory of states. The
    tokens of a segment attend to the read places as to any earlier key.

        read       attend to all read places
        written    attend to read places, segment, and all written places

    Both attend to the memory of states only with `config.tokens_see_states`. With `same_length` there are no such
    rules: each place sees the nearest keys, as in the authors' code.

    A memory token may see keys after it, which have no distance. There terms (b) and (d) are what `relative_shift` has,
    in the authors' code as well: 0 for the next key, and for the d-th after that (q_{i+1} + v)·r_{K-d}, K being the
    number of all keys. So from n = 3 on they depend on the length of the row.

    Args:
        config: n, D, and where memory tokens are written.

    Attributes:
        initial: the memory tokens before a stream, drawn from N(0, 1), the scale of LayerNorm's outputs. The authors'
            code draws one and repeats it; an encoding without positions could never tell them apart.
    """

    def __init__(self, config: TransformerXLConfig) -> None:
        super().__init__()
        self.n, self.writes, self.see_states = config.n_tokens, config.write_tokens, config.tokens_see_states
        self.initial = nn.Parameter(torch.randn(self.n, config.d_model))

    def start(self, batch_size: int) -> Float[Tensor, "n B D"]:
        """Return the memory tokens before the first segment of B streams, with a gradient for the parameter."""
        return self.initial[:, None].expand(-1, batch_size, -1)

    def around(self, hidden_BTD: Float[Tensor, "B T D"], tokens_nBD: Float[Tensor, "n B D"]) -> Float[Tensor, "B Q D"]:
        """Return the row of a segment, Q = T + n or T + 2n places, from its scaled embeddings and the memory tokens."""
        # DDP waits for a gradient of every parameter; after the first segment that of `initial` is zero.
        z_BnD = tokens_nBD.transpose(0, 1) + 0.0 * self.initial
        return torch.cat([z_BnD, hidden_BTD, z_BnD] if self.writes else [z_BnD, hidden_BTD], dim=1)

    def see(self, visible: VisibleKeys, n_memory: int) -> VisibleKeys:
        """Return the keys that the places of a row may attend to.

        Args:
            visible: keys up to each place of the row; its mask is overwritten.
            n_memory: M, states before the row.
        """
        if visible.attention_len is not None:
            return visible
        mask_QK, n = visible.mask_TK, self.n
        written = slice(mask_QK.shape[0] - n, None), slice(mask_QK.shape[1] - n, None)
        for places, keys in [(slice(n), slice(n_memory, n_memory + n)), written][: 1 + self.writes]:
            mask_QK[places, keys] = 0.0
            if not self.see_states:
                mask_QK[places, :n_memory] = float("-inf")
        return visible._replace(causal=False)

    def last_places(self, n_last: int, n_tokens: int) -> int:
        """Return how many of the row's last places hold the last tokens and all that is written.

        Args:
            n_last: number of these tokens.
            n_tokens: T, those of the segment.
        """
        return n_last + self.n if self.writes else n_tokens + self.n

    def split(
        self, hidden_BQD: Float[Tensor, "B Q D"], n_last: int
    ) -> tuple[Float[Tensor, "B T D"], Float[Tensor, "n B D"]]:
        """Return the outputs of the last tokens and the memory tokens that were written, from all of `last_places`."""
        Q, n = hidden_BQD.shape[1], self.n
        end = Q - n if self.writes else Q
        written_BnD = hidden_BQD[:, end:] if self.writes else hidden_BQD[:, :n]
        # A copy: a checkpoint would hold all places of a view.
        written_nBD = written_BnD.transpose(0, 1).clone(memory_format=torch.contiguous_format)
        return hidden_BQD[:, end - n_last : end], written_nBD
