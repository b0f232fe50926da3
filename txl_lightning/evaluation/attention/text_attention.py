"""Attention on a piece of text: which tokens of the memory each target looks at (Figure 6)."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from txl_lightning.data.vocabulary.symbols import Vocabulary
from txl_lightning.errors import require
from txl_lightning.evaluation.attention.maps import Array, AttentionInputs, watched
from txl_lightning.model.attention import Attention
from txl_lightning.model.memory import Memory
from txl_lightning.model.transformer_xl import TransformerXL

MARKED, TARGETS = 0.2, 24


@dataclass(frozen=True)
class PieceAttention:
    """What heads give to the tokens before a piece of text.

    Args:
        position: of the piece's first target in the split.
        weights: by head (layer, head; both from 0), [Q, C]: attention of the query in front of each of the Q
            targets on the C tokens before the piece.
        marked: the same shape; the fifth of the C tokens that each target looks at most.
        targets: Q symbols.
        context: C symbols, the oldest first.
    """

    position: int
    weights: dict[tuple[int, int], Array]
    marked: dict[tuple[int, int], NDArray[np.bool_]]
    targets: list[str]
    context: list[str]


@torch.no_grad()
def piece_attention(
    model: TransformerXL,
    tokens: np.ndarray,
    vocabulary: Vocabulary,
    position: int | None,
    n_targets: int | None,
    heads: list[tuple[int, int]],
    segment_len: int,
) -> PieceAttention:
    """Attention of the last of the tokens before each target, on the memory.

    The text before is read in segments as in evaluation, so far back that every state of the memory is what it
    is in a stream; the piece is one segment. Without memory, the tokens before it in its segment are what
    it looks at.

    Args:
        model: in evaluation mode, with the lengths to look at.
        tokens: a split, one-dimensional.
        vocabulary: for the symbols.
        position: of the first target in the split; None for the middle, or as near to it as there is room.
        n_targets: Q; None for 24, or fewer in short segments: all of one, half of one without memory.
        heads: layer and head, from 0.
        segment_len: T.

    Raises:
        OptionError: the piece does not fit into a segment, or the split has too few tokens before or behind it.
    """
    config, device = model.config, next(model.parameters()).device
    longest = segment_len if config.mem_len else segment_len - 1
    if n_targets is None:
        n_targets = min(TARGETS, longest if config.mem_len else (segment_len + 1) // 2)
    require(
        1 <= n_targets <= longest, "text_tokens", n_targets, f"must be in 1 … {longest} (segment_len={segment_len})"
    )
    n_context = config.mem_len or segment_len - n_targets
    first, last = n_context + 1, len(tokens) - n_targets
    allowed = f"must leave room for memory and piece in the {len(tokens)} tokens of the split"
    require(first <= last, "mem_len" if config.mem_len else "segment_len", config.mem_len or segment_len, allowed)
    position = min(max(first, len(tokens) // 2), last) if position is None else position
    allowed = f"must be in {first} … {last}, the {len(tokens)} tokens of the split less memory and piece"
    require(first <= position <= last, "text_position", position, allowed)

    start = position - 1  # the first query, which is in front of the first target
    view = model.with_lengths(ext_len=0)
    boundaries = [start - n_context, start + n_targets]
    if config.mem_len:
        farthest = max(0, start - (config.n_layer + 1) * config.mem_len)
        boundaries = [*sorted({farthest, *range(start, farthest, -segment_len)}), start + n_targets]
    segments = [torch.from_numpy(tokens[a:b].astype(np.int64))[None].to(device) for a, b in pairwise(boundaries)]
    memory: Memory | None = None
    for segment_BT in segments[:-1]:
        _, memory = view(segment_BT, memory)

    seen: dict[int, Tensor] = {}

    def see(n: int, attention: Attention, inputs: AttentionInputs) -> None:
        seen[n] = attention.scores(*inputs)[:, 0].softmax(-1)

    with watched(view, see):
        view(segments[-1], memory)
    weights = {(n, h): seen[n][h, -n_targets:, :n_context].double().cpu().numpy() for n, h in heads}
    return PieceAttention(
        position=position,
        weights=weights,
        marked={head: most_attended(of_head) for head, of_head in weights.items()},
        targets=[symbol(vocabulary, token) for token in tokens[position : position + n_targets]],
        context=[symbol(vocabulary, token) for token in tokens[start - n_context : start]],
    )


def most_attended(weights_QC: Array) -> NDArray[np.bool_]:
    """The fifth of the C tokens with the most attention, row by row; of equals the later ones."""
    n_marked = max(1, round(MARKED * weights_QC.shape[1]))
    marked = np.zeros(weights_QC.shape, dtype=bool)
    np.put_along_axis(marked, np.argsort(weights_QC, axis=1, kind="stable")[:, -n_marked:], True, axis=1)
    return marked & (weights_QC > 0)


def symbol(vocabulary: Vocabulary, token: int) -> str:
    """One token as it is; a byte as the character of its number."""
    return vocabulary.symbols[token] if vocabulary.symbols else chr(token)
