"""Use of context by one model: losses by context and by position, gains, classes of tokens, far context altered."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from txl_lightning.data.documents import mark, without_marks
from txl_lightning.errors import OptionError
from txl_lightning.evaluation.recl.effective_context import Array, EffectiveContext, relative_effective_context_lengths
from txl_lightning.evaluation.scoring.standard_errors import NORMAL_95, standard_error
from txl_lightning.evaluation.scoring.windows import (
    Integers,
    WindowReader,
    check_positions,
    context_losses,
    loss_grid,
    span_losses,
    window_losses,
    window_reader,
)
from txl_lightning.model.language_model import LanguageModel

if TYPE_CHECKING:
    from txl_lightning.evaluation.scoring.tokenized_text import TokenizedText

NEAR = 0.01  # of the loss at the longest context
SINGLE = 16  # first positions, each in a bin of its own
DROP = "drop"
ABLATIONS = ("shuffle", "reverse", "replace", DROP)


@dataclass(frozen=True)
class ContextCurve:
    """Loss of a model by context, and its RECL in a group of one.

    Args:
        nll: mean loss over the positions at each context, in nats.
        standard_error: standard error of `nll` over the blocks of positions, in nats.
        recl: RECL by fraction r of hardest positions.
        gains: how the loss falls with context, from `context_gains`.
    """

    nll: list[float]
    standard_error: list[float]
    recl: dict[float, EffectiveContext]
    gains: dict[str, Any]


def context_curve(
    model: LanguageModel,
    tokens: np.ndarray,
    positions: Integers,
    contexts: Sequence[int],
    trained_len: int | None = None,
    clamp_len: int | None = None,
    blocks: Integers | None = None,
    **recl_options: Any,
) -> ContextCurve:
    """Measure a model's loss at several contexts and its RECL on its own.

    The model keeps its training mode and its lengths. Under `torch.distributed` all ranks must call this function.

    Args:
        model: any language model.
        tokens: the split, one-dimensional.
        positions: positions t of the targets, from `position_blocks`.
        contexts: the grid c_0, c_0 + Δ, ….
        trained_len: see `window_reader`.
        clamp_len: see `window_reader`.
        blocks: block of each position, from `position_blocks`; None for a block per position.
        recl_options: fractions, threshold, bootstrap and seed of `relative_effective_context_lengths`.
    """
    reader = window_reader(model, trained_len, clamp_len)
    losses_CP = loss_grid(reader, tokens, positions, contexts)
    nll, error = mean_and_error(losses_CP, blocks)
    options = {"limits": {"model": reader.limit}, "blocks": blocks, **recl_options}
    recl = relative_effective_context_lengths({"model": losses_CP}, contexts, **options)["model"]
    return ContextCurve(nll.tolist(), error.tolist(), recl, context_gains(losses_CP, contexts, blocks))


def mean_and_error(losses_CP: Array, blocks: Integers | None = None) -> tuple[Array, Array]:
    """Return the mean over positions and its standard error over blocks (nan for a single block), both [C]."""
    units_P = np.arange(losses_CP.shape[1]) if blocks is None else blocks
    errors = [standard_error(losses_P, units_P)[0] for losses_P in losses_CP]
    return losses_CP.mean(axis=1), np.array(errors, dtype=np.float64)  # None becomes nan


def mean_and_interval(values_CP: Array, blocks: Integers, mean: str, error: str) -> dict[str, list[float]]:
    """Return the mean over positions and its standard error over blocks, [C], by these names, and `low` and `high`.

    These are the ends of the 95 % interval, 1.96 standard errors on either side.
    """
    mean_C, error_C = mean_and_error(values_CP, blocks)
    ends = {"low": mean_C - NORMAL_95 * error_C, "high": mean_C + NORMAL_95 * error_C}
    return {name: values_C.tolist() for name, values_C in {mean: mean_C, error: error_C, **ends}.items()}


def loss_differences(losses: Mapping[str, Array], blocks: Integers) -> list[dict[str, Any]]:
    """Return the difference of mean losses of every two models at each context, paired by position, in nats.

    The standard error is over blocks of the differences, which fluctuate less than the losses of either model.
    """
    entries = []
    for name, other in combinations(losses, 2):
        found = mean_and_interval(losses[name] - losses[other], blocks, "nll", "nll_standard_error")
        entries.append({"model": name, "minus": other, **found})
    return entries


def context_gains(losses_CP: Array, contexts: Sequence[int], blocks: Integers | None = None) -> dict[str, Any]:
    """Return how the mean loss f(c) of a model falls with context.

        gain of a doubling    (f(c) - f(2c)) / ln 2, in bits, for every c with c and 2c on the grid
        near the end          the first c with f(c) <= 1.01 · f(longest context)
        share of the gain     (f(c_0) - f(c)) / (f(c_0) - f(longest context)); None if nothing is gained

    Args:
        losses_CP: l(c, t), in nats.
        contexts: c.
        blocks: block of each position; None for a block per position.
    """
    mean_C = losses_CP.mean(axis=1)
    place = {c: i for i, c in enumerate(contexts)}
    doublings = []
    for c in contexts:
        if 2 * c in place:
            gain, error = mean_and_error((losses_CP[place[c]] - losses_CP[place[2 * c]])[None] / np.log(2), blocks)
            doublings.append({"from": c, "to": 2 * c, "bits": float(gain[0]), "standard_error": float(error[0])})
    total = float(mean_C[0] - mean_C[-1])
    return {
        "doublings": doublings,
        "within_1_percent": contexts[int(np.argmax(mean_C <= (1 + NEAR) * mean_C[-1]))],
        "share_of_gain": ((mean_C[0] - mean_C) / total).tolist() if total > 0 else None,
    }


def key_tokens(
    losses_CP: Array, contexts: Sequence[int], positions: Integers, key_contexts: Sequence[int], key_gain: float
) -> dict[str, Any]:
    """Return the key tokens of a model, targets whose loss falls by much between two contexts a < b (Fang et al. 2025).

        key tokens      t with d(t) = l(a, t) - l(b, t) > key_gain
        share           |{t: d(t) > key_gain}| / P; of rises: |{t: d(t) < -key_gain}| / P
        half of gain    k / P for the smallest k whose k largest d(t) sum to at least half of sum_t d(t); evenly
                        spread gains have a half; None if this sum, the total gain, is not above 0

    Fang et al. choose tokens by the losses of one strong model for all models, and demand l(b, t) < 2 nats too.

    Args:
        losses_CP: l(c, t), in nats.
        contexts: c.
        positions: t.
        key_contexts: a and b, contexts of the grid.
        key_gain: smallest fall, in nats.
    """
    short_P, long_P = (losses_CP[contexts.index(c)] for c in key_contexts)
    falls_P = short_P - long_P
    key_P, total = falls_P > key_gain, falls_P.sum()
    k = int(np.argmax(np.sort(falls_P)[::-1].cumsum() >= total / 2)) + 1
    return {
        "share": float(key_P.mean()),
        "share_of_rises": float((falls_P < -key_gain).mean()),
        "half_of_gain": k / len(falls_P) if total > 0 else None,
        "nll": losses_CP[:, key_P].mean(axis=1).tolist() if key_P.any() else None,
        "positions": positions[key_P].tolist(),
    }


def block_gains(losses: Mapping[str, Array], blocks: Integers) -> dict[str, Array]:
    """Return the mean of l(c_0, t) - l(c, t) over the positions of each block, [C, blocks], in nats, by model."""
    names, block_P = np.unique(blocks, return_inverse=True)
    share_PB = np.zeros((len(blocks), len(names)))
    share_PB[np.arange(len(blocks)), block_P] = 1 / np.bincount(block_P)[block_P]
    return {name: (losses_CP[:1] - losses_CP) @ share_PB for name, losses_CP in losses.items()}


def token_classes(
    losses_CP: Array,
    contexts: Sequence[int],
    tokens: np.ndarray,
    positions: Integers,
    further: Mapping[str, NDArray[np.bool_]],
) -> dict[str, dict[str, list[Any]]]:
    """Return the mean loss of classes of target tokens at each context, and how many positions are in each class.

        within     the target occurs among the c tokens before it
        farther    it occurs only farther back in the text
        new        it does not occur earlier in the text
        frequent   it is one of the most frequent tokens, which together are half of the text
        rare       it is none of them

    Args:
        losses_CP: l(c, t), in nats.
        contexts: c.
        tokens: the text, its documents marked or not.
        positions: t.
        further: members of other classes, [P], by name.
    """
    tokens = without_marks(tokens)
    distance_P = _distances(tokens, positions)
    counts = np.bincount(tokens)
    by_count = np.argsort(-counts, kind="stable")
    enough = int(np.searchsorted(counts[by_count].cumsum(), len(tokens) / 2)) + 1
    frequent_P = np.isin(tokens[positions], by_count[:enough])
    c_C1 = np.asarray(contexts)[:, None]
    members: dict[str, NDArray[np.bool_]] = {
        "within": (distance_P > 0) & (distance_P <= c_C1),
        "farther": distance_P > c_C1,
        "new": distance_P == 0,
        "frequent": frequent_P,
        "rare": ~frequent_P,
        **further,
    }
    found = {}
    for name, member in members.items():
        member_CP = np.broadcast_to(member, losses_CP.shape)
        pairs = zip(losses_CP, member_CP, strict=True)
        nll = [float(losses_P[member_P].mean()) if member_P.any() else None for losses_P, member_P in pairs]
        found[name] = {"nll": nll, "positions": member_CP.sum(axis=1).tolist()}
    return found


def _distances(tokens: np.ndarray, positions: Integers) -> Integers:
    """Return how far back the target of each position last occurred, [P]; 0 if it did not."""
    order = np.argsort(tokens, kind="stable")  # by token, then by place
    before = np.full(len(tokens), -1, dtype=np.int64)
    repeated = tokens[order[1:]] == tokens[order[:-1]]
    before[order[1:][repeated]] = order[:-1][repeated]
    return np.where(before[positions] >= 0, positions - before[positions], 0)


def position_losses(reader: WindowReader, tokens: np.ndarray, ends: Integers, length: int) -> Array:
    """Return the loss, [T, W], in nats, of the p-th target, p = 1 … T, of each of W windows read from a fresh state.

    Window w reads x_{t-T} … x_{t-1}; its p-th target has the p tokens of the window before it. T is `length`, or the
    tokens that the model sees. Under `torch.distributed` the windows are divided over the ranks: all ranks must call
    this function, and all get the whole result.

    Args:
        reader: reader from `window_reader`; its model is in evaluation mode during the call.
        tokens: the split, one-dimensional.
        ends: t, the last target of each window.
        length: tokens of a window.
    """
    length = reader.visible(length)
    lengths = np.full(len(ends), length)
    return window_losses(reader, tokens, ends - length, lengths, reader.all_losses, length).T


def binned_by_position(losses_TW: Array, blocks_W: Integers) -> dict[str, Any]:
    """Return the mean loss of bins of positions, in nats, with its standard error over the blocks of the windows.

    The first 16 positions have a bin each; a later bin is an eighth as long as the positions before it.
    """
    T, edges = len(losses_TW), [1]
    while edges[-1] <= T:
        edges.append(min(edges[-1] + (1 if edges[-1] <= SINGLE else edges[-1] // 8), T + 1))
    binned = np.stack([losses_TW[a - 1 : b - 1].mean(axis=0) for a, b in pairwise(edges)])
    nll, error = mean_and_error(binned, blocks_W)
    bins = {"first": edges[:-1], "last": [edge - 1 for edge in edges[1:]]}
    return {**bins, "nll": nll.tolist(), "nll_standard_error": error.tolist(), "windows": losses_TW.shape[1]}


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
) -> Array:
    """Return the losses, [C, P], after the longest context, of which all tokens farther than c away are altered.

    These are ablations of Khandelwal et al. 2018, who also drop the far tokens.

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

    Raises:
        OptionError: the text is too short to replace tokens by others.
    """
    if pieces is None:
        longest = reader.visible(contexts[-1])
        check_positions(positions, longest, len(text.tokens))
        begin_P = np.maximum(positions - longest, text.document_begins(positions))
        first_P, stop_P, sizes_P = positions, positions + 1, np.ones(len(positions))
        near_CP = np.maximum(positions - np.minimum(contexts, longest)[:, None], begin_P)
    else:
        from txl_lightning.evaluation.scoring.tokenized_text import byte_spans  # imports tokenizers

        begins_CP, first_P, stop_P, sizes_P = byte_spans(text, pieces, positions, contexts)
        begin_P = reader.visible_begins(begins_CP[-1], first_P, stop_P)
        near_CP = np.maximum(begins_CP, begin_P)
    losses = []
    for near_P in near_CP:
        altered, place_P = altered_windows(text.tokens, begin_P, near_P, stop_P, ablation, seed)
        if pieces is None and text.documents is None:
            losses.append(context_losses(reader, altered, place_P + longest, longest))
        else:
            bounds = (place_P, first_P - begin_P + place_P, stop_P - begin_P + place_P)
            losses.append(span_losses(reader, altered, *bounds) / sizes_P)
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
        generator, size = np.random.default_rng((seed, ABLATIONS.index(ablation), near, stop)), near - begin
        if ablation == "reverse":
            far = tokens[begin:near][::-1]
        elif ablation == "shuffle":
            far = tokens[begin:near][generator.permutation(size)]
        else:
            start = _elsewhere(len(tokens), size, begin, stop, generator)
            far = tokens[start : start + size]
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
