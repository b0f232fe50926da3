"""Attention on a piece of text: the tokens of the memory that each target attends to (Figure 6)."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from txl_lightning.data.documents import without_marks
from txl_lightning.data.vocabulary import Vocabulary
from txl_lightning.errors import require
from txl_lightning.evaluation.attention.maps import Array, AttentionInputs, watched
from txl_lightning.model.attention import Attention
from txl_lightning.model.memory import Memory
from txl_lightning.model.transformer_xl import TransformerXL

MARKED_SHARE = 0.2  # of the context, for each target
DEFAULT_TARGETS = 24


@dataclass(frozen=True)
class TextAttention:
    """Attention of some heads from a piece of text to the tokens before it.

    Args:
        position: position of the first target in the split.
        weights: attention by head (layer, head; both from 0), [Q, C], of the query before each of the Q targets
            on the C tokens before the piece.
        marked: by head, [Q, C]: the fifth of the C tokens that each target attends to most.
        targets: Q symbols.
        context: C symbols, the oldest first.
    """

    position: int
    weights: dict[tuple[int, int], Array]
    marked: dict[tuple[int, int], NDArray[np.bool_]]
    targets: list[str]
    context: list[str]


@torch.no_grad()
def text_attention(
    model: TransformerXL,
    tokens: np.ndarray,
    vocabulary: Vocabulary,
    position: int | None,
    n_targets: int | None,
    heads: list[tuple[int, int]],
    segment_len: int,
) -> TextAttention:
    """Return the attention on the memory of the query before each target.

    The text before the piece is read in segments, as in evaluation, from so far back that every state of the
    memory equals that of a stream. The piece is one segment. Without memory, the context is the tokens before the
    piece in its segment.

    Args:
        model: model in evaluation mode, its lengths set.
        tokens: a split, one-dimensional.
        vocabulary: vocabulary of the symbols.
        position: position of the first target in the split; None for the middle, or the nearest that fits.
        n_targets: Q; None for 24, or fewer in short segments: a whole segment, or half of one without memory.
        heads: layer and head, from 0.
        segment_len: T.

    Raises:
        OptionError: the piece does not fit into a segment, or the split has too few tokens before or after it.
    """
    config, device = model.config, next(model.parameters()).device
    longest = segment_len if config.mem_len else segment_len - 1
    require(longest >= 1, "segment_len", segment_len, "must be >= 2 without memory: a target needs context")
    if n_targets is None:
        n_targets = min(DEFAULT_TARGETS, longest if config.mem_len else (segment_len + 1) // 2)
    require(
        1 <= n_targets <= longest, "text_tokens", n_targets, f"must be in 1 … {longest} (segment_len={segment_len})"
    )
    n_context = config.mem_len or segment_len - n_targets
    first, last = n_context + 1, len(tokens) - n_targets
    allowed = f"must leave room for memory and piece in the {len(tokens)} tokens of the split"
    require(first <= last, "mem_len" if config.mem_len else "segment_len", config.mem_len or segment_len, allowed)
    position = min(max(first, len(tokens) // 2), last) if position is None else position
    allowed = f"must be in {first} … {last}, the {len(tokens)} tokens of the split minus memory and piece"
    require(first <= position <= last, "text_position", position, allowed)

    start = position - 1  # the first query: the token before the first target
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
    return TextAttention(
        position=position,
        weights=weights,
        marked={head: most_attended(of_head) for head, of_head in weights.items()},
        targets=[_symbol(vocabulary, token) for token in without_marks(tokens[position : position + n_targets])],
        context=[_symbol(vocabulary, token) for token in without_marks(tokens[start - n_context : start])],
    )


def most_attended(weights_QC: Array) -> NDArray[np.bool_]:
    """Mark the fifth of the C tokens with the most attention in every row; of equal ones, the later."""
    n_marked = max(1, round(MARKED_SHARE * weights_QC.shape[1]))
    marked = np.zeros(weights_QC.shape, dtype=bool)
    np.put_along_axis(marked, np.argsort(weights_QC, axis=1, kind="stable")[:, -n_marked:], True, axis=1)
    return marked & (weights_QC > 0)


def _symbol(vocabulary: Vocabulary, token: int) -> str:
    """Return the symbol of a token; a byte becomes the character with its number, a token of BPE its text."""
    if vocabulary.level == "bpe":
        return vocabulary.decode([token])
    return vocabulary.symbols[token] if vocabulary.symbols else chr(token)
