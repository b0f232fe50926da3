"""Use of context: positions, losses by context, gains, key tokens; groups of models, also of plain functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
import torch
from torch import Tensor

from txl_lightning.errors import require
from txl_lightning.evaluation.losses import NORMAL_95, Integers, standard_error, window_losses, window_reader
from txl_lightning.model.language_model import LanguageModel
from txl_lightning.recl.effective_context import Array, EffectiveContext, relative_effective_context_lengths
from txl_lightning.recl.page import page

KEY_GAIN = 2.0  # nats
NEAR = 0.01  # of the loss at the longest context
FEWEST_BLOCKS = 30  # for intervals from resampled blocks
WIDTH = 4  # of a block, in grids of contexts: the windows that only its ends need are then about an eighth more


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
    losses_CP = window_losses(reader, tokens, positions, contexts)
    nll, error = mean_and_error(losses_CP, blocks)
    options = {"limits": {"model": reader.limit}, "blocks": blocks, **recl_options}
    recl = relative_effective_context_lengths({"model": losses_CP}, contexts, **options)["model"]
    return ContextCurve(nll.tolist(), error.tolist(), recl, context_gains(losses_CP, contexts, blocks))


def mean_and_error(losses_CP: Array, blocks: Integers | None = None) -> tuple[Array, Array]:
    """Return the mean over positions and its standard error over blocks (nan for a single block), both [C]."""
    units_P = np.arange(losses_CP.shape[1]) if blocks is None else blocks
    errors = [standard_error(losses_P, units_P)[0] for losses_P in losses_CP]
    return losses_CP.mean(axis=1), np.array(errors, dtype=np.float64)  # None becomes nan


def loss_differences(losses: Mapping[str, Array], blocks: Integers) -> list[dict[str, Any]]:
    """Return the difference of mean losses of every two models at each context, paired by position, in nats.

    The standard error is over blocks of the differences, which fluctuate less than the losses of either model. `low`
    and `high` are the ends of the 95 % interval, 1.96 standard errors on either side.
    """
    entries = []
    for name, other in combinations(losses, 2):
        mean_C, error_C = mean_and_error(losses[name] - losses[other], blocks)
        values = {"nll": mean_C, "nll_standard_error": error_C}
        values |= {"low": mean_C - NORMAL_95 * error_C, "high": mean_C + NORMAL_95 * error_C}
        entries.append({"model": name, "minus": other, **{key: value.tolist() for key, value in values.items()}})
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
    within = contexts[int(np.argmax(mean_C <= (1 + NEAR) * mean_C[-1]))]
    share = ((mean_C[0] - mean_C) / total).tolist() if total > 0 else None
    return {"doublings": doublings, "within_1_percent": within, "share_of_gain": share}


def key_tokens(losses_CP: Array, positions: Integers) -> dict[str, Any]:
    """Return the key tokens of a model, targets whose loss falls by over 2 nats on the grid (Fang et al. 2025).

        key tokens      t with d(t) = l(a, t) - l(b, t) > 2 nats, for the shortest context a and the longest b
        share           |{t: d(t) > 2}| / P; of rises: |{t: d(t) < -2}| / P
        half of gain    k / P for the smallest k whose k largest d(t) sum to at least half of sum_t d(t); evenly
                        spread gains have a half; None if this sum, the total gain, is not above 0

    Fang et al. choose tokens by the losses of one strong model for all models, and demand l(b, t) < 2 nats too.

    Args:
        losses_CP: l(c, t), in nats.
        positions: t.
    """
    falls_P = losses_CP[0] - losses_CP[-1]
    key_P, total = falls_P > KEY_GAIN, falls_P.sum()
    k = int(np.argmax(np.sort(falls_P)[::-1].cumsum() >= total / 2)) + 1
    found: dict[str, Any] = {"share": float(key_P.mean()), "share_of_rises": float((falls_P < -KEY_GAIN).mean())}
    found |= {"half_of_gain": k / len(falls_P) if total > 0 else None, "positions": positions[key_P].tolist()}
    return {**found, "nll": losses_CP[:, key_P].mean(axis=1).tolist() if key_P.any() else None}


def position_blocks(
    n_tokens: int, n_positions: int, contexts: Sequence[int], seed: int | None = None
) -> tuple[Integers, Integers]:
    """Return P positions t, ascending, each with the longest context before it, and the block of each position.

    The split is divided into equal stretches. The block of a stretch ends at its last token, or with a seed at one
    drawn from those at which the block fits into the stretch. Positions within a block are Δ apart, the step of the
    grid of C contexts. One window of tokens then serves up to C positions of a block, and P_b positions need
    P_b + C - 1 windows, the last C - 1 of them shorter.

        rasters = ⌈P Δ / (positions with the longest context before them)⌉
        blocks = max(30, P / (4 C rasters)), at most P

    On an uneven grid, Δ is its smallest step.

    Larger blocks would save at most an eighth of the tokens, but fewer blocks make wider intervals. Where the split
    is too short for P positions that are Δ apart, blocks have `rasters` positions in each step.

    Args:
        n_tokens: tokens of the split.
        n_positions: P.
        contexts: the grid, ascending.
        seed: of the places of the blocks in their stretches; None for the ends.

    Raises:
        OptionError: the split has fewer such positions.
    """
    max_context = contexts[-1]
    allowed = f"must be below the {n_tokens} tokens of the split"
    require(max_context < n_tokens, "max_context", max_context, allowed)
    available = n_tokens - max_context
    allowed = f"must be in 1 … {available}, the positions of the split with {max_context} tokens before them"
    require(1 <= n_positions <= available, "n_positions", n_positions, allowed)

    step = int(np.diff(contexts).min())
    rasters = -(-n_positions * step // available)
    n_blocks = min(n_positions, max(FEWEST_BLOCKS, n_positions // (WIDTH * len(contexts) * rasters)))
    longest = -(-n_positions // n_blocks) * step
    before_first = 0 if (n_tokens - 1) // n_blocks >= max_context + longest else max_context - 1
    room = n_tokens - 1 - before_first
    ends = np.arange(n_blocks + 1, dtype=np.int64) * room // n_blocks
    sizes = np.diff(-(-ends * n_positions // room))  # in proportion to the stretches, so that each has room
    generator, positions = np.random.default_rng(seed), []
    for size, length, end in zip(sizes.tolist(), np.diff(ends).tolist(), ends[1:].tolist(), strict=True):
        block = before_first + end - _offsets(size, length, step)[::-1]
        if seed is not None and size:
            first = max(max_context, before_first + end - length + 1)
            block -= generator.integers(block[0] - first + 1)
        positions.append(block)
    return np.concatenate(positions), np.repeat(np.cumsum(sizes > 0) - 1, sizes)


def _offsets(size: int, length: int, step: int) -> Integers:
    """Return `size` different offsets in 0 … length - 1, ascending: multiples of `step`, then rasters between them."""
    step = min(step, length)
    rasters = min(step, -(-size // (length // step)))
    firsts = np.arange(rasters, dtype=np.int64) * step // rasters
    offsets = (firsts[:, None] + np.arange(0, length, step)).ravel()
    return np.sort(offsets[offsets < length][:size])


class LossFunction:
    """Language model of a function from tokens to losses.

    Args:
        function: takes tokens, [B, T + 1], and returns the loss in nats of each but the first, [B, T], as a tensor or
            an array: -log P(x_t | x_0 … x_{t-1}).
    """

    def __init__(self, function: Callable[[Tensor], Any]) -> None:
        self.function = function

    def score(self, tokens_BT: Tensor, targets_BT: Tensor, state: None = None) -> tuple[Tensor, None]:
        """Return the losses of the targets; the first tokens are context if targets are fewer."""
        nll_BT = torch.as_tensor(self.function(torch.cat([tokens_BT, targets_BT[:, -1:]], dim=1)))
        return nll_BT[:, -targets_BT.shape[1] :], state


def compare(
    models: Mapping[str, LanguageModel | Callable[[Tensor], Any]],
    tokens: np.ndarray,
    contexts: Sequence[int],
    n_positions: int = 1000,
    texts: Sequence[str] | None = None,
    **definition: Any,
) -> tuple[dict[str, Any], str]:
    """Return the curves, RECL and their intervals, as `recl.json` has them, and the page, one HTML file.

    Args:
        models: language models, or functions as `LossFunction` describes them, by name.
        tokens: the text, one-dimensional.
        contexts: the grid, ascending.
        n_positions: positions to score, as `position_blocks` chooses them.
        texts: text of each token; None to show numbers.
        definition: fractions, threshold, bootstrap and seed of `relative_effective_context_lengths`.
    """
    t_P, block_P = position_blocks(len(tokens), n_positions, contexts)
    losses = {}
    for name, model in models.items():
        reader = window_reader(model if isinstance(model, LanguageModel) else LossFunction(model))
        losses[name] = window_losses(reader, tokens, t_P, contexts)
    shown = [f" {token}" for token in tokens.tolist()] if texts is None else list(texts)
    about: dict[str, Any] = {"split": f"{len(tokens):,} tokens", "corpus": {"name": "text", "level": "token"}}
    results = about | group_results(losses, contexts, t_P, block_P, "ppl", **definition)
    for model in results["models"]:
        model |= {"kind": type(models[model["name"]]).__name__, "limit": None, "scoring": "one pass"}
    return results, page(results, losses, t_P, block_P, lambda begin, stop: shown[begin:stop])


def group_results(
    losses: Mapping[str, Array],
    contexts: Sequence[int],
    positions: Integers,
    blocks: Integers,
    unit: str,
    context_unit: str = "token",
    labels: Sequence[str] | None = None,
    limits: Mapping[str, int | None] | None = None,
    begins: Integers | int = 0,
    **definition: Any,
) -> dict[str, Any]:
    """Return the entries of `recl.json` that follow from losses.

    Args:
        losses: l(c, t) of every model, [C, P], in nats.
        contexts: c.
        positions: t, [P].
        blocks: block of each position, [P].
        unit: ppl, exp of a loss, or bpc, a loss in bits.
        context_unit: token or byte.
        labels: group of each model; None for one group of all.
        limits: tokens that each model can see.
        begins: first token that the context of each position may have, [P].
        definition: fractions, threshold, bootstrap and seed of `relative_effective_context_lengths`.
    """
    label_of = dict(zip(losses, labels or ["all"] * len(losses), strict=True))
    groups = {label: [name for name in losses if label_of[name] == label] for label in dict.fromkeys(label_of.values())}
    definition = dict[str, Any](fractions=[0.1, 0.5, 1.0], threshold=0.01, bootstrap=1000, seed=1) | definition
    lengths: dict[str, Any] = {}
    for names in groups.values():
        own = {name: losses[name] for name in names}
        found = relative_effective_context_lengths(own, contexts, limits=limits, blocks=blocks, **definition)
        lengths |= {name: {str(float(r)): vars(length) for r, length in of.items()} for name, of in found.items()}
    models = []
    for name, losses_CP in losses.items():
        nll_C, error_C = mean_and_error(losses_CP, blocks)
        value_C, slope_C = (np.exp(nll_C),) * 2 if unit == "ppl" else (nll_C / np.log(2), 1 / np.log(2))
        curves = {"nll": nll_C, unit: value_C}
        curves |= {"nll_standard_error": error_C, f"{unit}_standard_error": slope_C * error_C}
        model = {"name": name, **{key: of_C.tolist() for key, of_C in curves.items()}}
        model |= {**context_gains(losses_CP, contexts, blocks), "group": label_of[name], "recl": lengths[name]}
        models.append(model | {"key_tokens": key_tokens(losses_CP, positions) if context_unit == "token" else None})
    steps = {*np.diff(contexts).tolist()}
    step, n_blocks = steps.pop() if len(steps) == 1 else None, len(np.unique(blocks))
    cut = int((positions - contexts[-1] < begins).sum())
    results = {"unit": unit, "context_unit": context_unit, "contexts": list(contexts), "first_context": contexts[0]}
    results |= {"step": step, **definition, "key_contexts": [contexts[0], contexts[-1]], "key_gain": KEY_GAIN}
    results |= {"models": models, "differences": loss_differences(losses, blocks)}
    results["groups"] = [{"name": label, "models": names} for label, names in groups.items()]
    return {**results, "positions": {"number": len(positions), "blocks": n_blocks, "cut": cut}}
