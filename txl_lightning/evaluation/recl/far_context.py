"""Ablations of the far context (Khandelwal et al. 2018): the tokens farther than c away are altered or dropped."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from txl_lightning.data.documents import mark, without_marks
from txl_lightning.errors import OptionError
from txl_lightning.evaluation.language_models.tokenized_text import TokenizedText, byte_spans
from txl_lightning.evaluation.recl.effective_context import Array
from txl_lightning.evaluation.recl.loss_by_context import NORMAL_95, mean_and_error
from txl_lightning.evaluation.scoring.windows import (
    Integers,
    WindowReader,
    check_positions,
    context_losses,
    span_losses,
)

DROP = "drop"
ALTERED = ("shuffle", "reverse", "replace")
ABLATIONS = (*ALTERED, DROP)


def doubling_contexts(contexts: Sequence[int]) -> list[int]:
    """Return the contexts c_0, 2 c_0, 4 c_0, … of a grid, without its longest context."""
    return [c for c in contexts[:-1] if c % contexts[0] == 0 and (c // contexts[0]).bit_count() == 1]


def far_context_losses(
    reader: WindowReader,
    text: TokenizedText,
    positions: Integers,
    contexts: Sequence[int],
    ablation: str,
    seed: int,
    pieces: Integers | None = None,
    batch_tokens: int | None = None,
) -> Array:
    """Return the losses, [C, P], after the longest context, of which all tokens farther than c away are altered.

        tokens read: A(x_{t-N}, …, x_{t-c-1}), x_{t-c}, …, x_{t-1}       for every c, with N the longest context

        shuffle    A puts them in a random order
        reverse    A reverses their order
        replace    A puts as many successive tokens of the text there, which do not overlap the window

    A model with a limit reads fewer than N tokens; only those that it reads are altered. At c = N nothing is altered.
    All windows of a position have equal lengths, so a model that ignores the altered tokens has equal losses. What is
    drawn depends on the seed, the ablation and the place of the far tokens alone: it is the same for all models and
    for any division of the positions.

    Args:
        reader: reader of the model.
        text: tokens of the model.
        positions: t, in tokens; in bytes with `pieces`.
        contexts: c, ascending to N, in tokens; in bytes with `pieces`, cut to whole tokens as in `byte_losses`.
        ablation: shuffle, reverse or replace.
        seed: seed of the random order and of the places of other text.
        pieces: bounds of the pieces of text, for contexts in bytes; the losses are then per byte.
        batch_tokens: context tokens in a batch; None for the default of the model's device.

    Raises:
        OptionError: the text is too short to replace tokens by others.
    """
    if pieces is None:
        longest = reader.visible(contexts[-1])
        check_positions(positions, longest, len(text.tokens))
        losses = []
        for c in contexts:
            near_P = positions - min(c, longest)
            altered, first_P = altered_windows(text.tokens, positions - longest, near_P, positions + 1, ablation, seed)
            losses.append(context_losses(reader, altered, first_P + longest, longest, batch_tokens))
        return np.stack(losses)
    spans = byte_spans(text, pieces, positions, contexts)
    begin_P = spans.begins_CP[-1]
    if reader.limit is not None:
        begin_P = np.minimum(np.maximum(begin_P, spans.stops_P - 1 - reader.limit), spans.firsts_P - 1)
    losses = []
    for begin_of_near_P in spans.begins_CP:
        near_P = np.maximum(begin_of_near_P, begin_P)
        altered, first_P = altered_windows(text.tokens, begin_P, near_P, spans.stops_P, ablation, seed)
        moved_P = first_P - begin_P
        bounds = (begin_P + moved_P, spans.firsts_P + moved_P, spans.stops_P + moved_P)
        losses.append(span_losses(reader, altered, *bounds, batch_tokens=batch_tokens) / spans.sizes_P)
    return np.stack(losses)


def altered_windows(
    tokens: np.ndarray, begins: Integers, nears: Integers, stops: Integers, ablation: str, seed: int
) -> tuple[np.ndarray, Integers]:
    """Return the windows [begin, stop) one after another, [begin, near) altered, and the first place of each.

    Args:
        tokens: the text.
        begins: first token of each window.
        nears: first token that stays as it is.
        stops: token after each window.
        ablation: shuffle, reverse or replace.
        seed: seed of the random order and of the places of other text.

    Raises:
        OptionError: the text is too short to replace tokens by others.
    """
    parts = []
    for begin, near, stop in zip(begins.tolist(), nears.tolist(), stops.tolist(), strict=True):
        far = tokens[begin:near]
        if ablation == "reverse":
            far = far[::-1]
        else:
            generator = np.random.default_rng((seed, ABLATIONS.index(ablation), near, stop))
            if ablation == "shuffle":
                far = far[generator.permutation(len(far))]
            else:
                start = _elsewhere(len(tokens), near - begin, begin, stop, generator)
                far = tokens[start : start + near - begin]
        # Documents of a marked text begin where they began.
        parts += [mark(without_marks(far), tokens[begin:near] < 0), tokens[near:stop]]
    sizes = stops - begins
    return np.concatenate(parts), np.cumsum(sizes) - sizes


def _elsewhere(n_tokens: int, size: int, begin: int, stop: int, generator: np.random.Generator) -> int:
    """Draw the first of `size` tokens that do not overlap [begin, stop)."""
    before, after = max(0, begin - size + 1), max(0, n_tokens - size - stop + 1)
    if before + after == 0:
        raise OptionError("ablations", "replace", f"the split has no other {size} tokens to put there")
    start = int(generator.integers(before + after))
    return start if start < before else start - before + stop


def loss_increases(increases_KP: Array, blocks: Integers) -> dict[str, Any]:
    """Return the mean increase of the loss at each c, in nats, with its error and 95 % interval over blocks."""
    mean_K, error_K = mean_and_error(increases_KP, blocks)
    return {
        "increase": mean_K.tolist(),
        "standard_error": error_K.tolist(),
        "low": (mean_K - NORMAL_95 * error_K).tolist(),
        "high": (mean_K + NORMAL_95 * error_K).tolist(),
    }
