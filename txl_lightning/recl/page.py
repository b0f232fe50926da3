"""Page of `txl recl`: curves, tables, and the text coloured by what long context gives each token."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import astuple
from pathlib import Path
from typing import Any

import numpy as np

from txl_lightning.evaluation.losses import NORMAL_95
from txl_lightning.recl.effective_context import Array, Integers
from txl_lightning.recl.report import notes, tables

TEMPLATE = Path(__file__).with_name("page.html")
MOST_BYTES = 1_800_000  # of passages
PASSAGE = 64  # positions
BEFORE = 64  # most text, in tokens, before a scored token
MOST_LETTERS = 200  # of a token
CUT = "\ufffd"  # the rest of a character
MOST_VALUES = 512  # losses of a token


def page(
    results: dict[str, Any],
    losses: Mapping[str, Array],
    positions: Integers,
    blocks: Integers,
    spell: Callable[[int, int], list[str]],
) -> str:
    """Return one HTML file of at most 2 MB. Passages that do not fit are left out, evenly over the text.

    Args:
        results: contents of `recl.json`.
        losses: l(c, t) of every model, [C, P], in nats.
        positions: t, ascending.
        blocks: block of each position.
        spell: returns the text of every token from one position to before another.
    """
    contexts = results["contexts"]
    n_shown = max(2, min(len(contexts), MOST_VALUES // len(losses)))
    shown_C = np.linspace(0, len(contexts) - 1, n_shown).astype(int)
    nll_ICP = np.stack([*losses.values()])[:, shown_C]
    hundredths_ICP = np.rint(100 * nll_ICP / np.log(2)).astype(int)  # of bits
    passages = []
    for places in _places_of_passages(blocks):
        hundredths = hundredths_ICP[:, :, places]
        passages.append(_passage(positions[places], hundredths, spell))
    chosen = _chosen(passages)
    n_chosen = 0
    for passage in chosen:
        n_chosen += sum(not isinstance(item, str) for item in passage)

    corpus = results["corpus"]["name"]
    n_blocks = results["positions"]["blocks"]
    n_positions = len(positions)
    data = {
        "about": f"{corpus}, {results['split']}: {n_positions:,} positions in {n_blocks} blocks.",
        "sample": (
            f"{n_chosen:,} of {n_positions:,} scored tokens, "
            f"in {len(chosen)} of {len(passages)} passages spread over the text. "
            f"A colour is the loss with {contexts[0]} tokens of context "
            f"minus the loss with {contexts[-1]}."
        ),
        "unit": results["unit"],
        "step": results["step"],
        "contexts": contexts,
        "shown": [contexts[c] for c in shown_C],
        "models": [_curve(model, results["unit"]) for model in results["models"]],
        "tables": [astuple(table) for table in tables(results)],
        "notes": notes(results),
        "passages": chosen,
    }
    return TEMPLATE.read_text("utf-8").replace("$data", _encode(data), 1)


def _encode(value: Any) -> str:
    """Return JSON that cannot end the element of a page that it stands in."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return text.replace("<", "\\u003c")


def _curve(model: dict[str, Any], unit: str) -> dict[str, Any]:
    """Return the curve of a model with the half width of its 95 % interval."""
    error_C = NORMAL_95 * np.nan_to_num(model[f"{unit}_standard_error"])
    return {
        "name": model["name"],
        "y": model[unit],
        "error": error_C.tolist(),
    }


def _places_of_passages(blocks: Integers) -> list[Integers]:
    """Return the places of the positions of each passage; a passage ends with its block."""
    found = []
    for block in np.unique(blocks):
        places = np.flatnonzero(blocks == block)
        for start in range(0, len(places), PASSAGE):
            found.append(places[start : start + PASSAGE])
    return found


def _chosen(passages: list[list[Any]]) -> list[list[Any]]:
    """Return all passages, or some that are spread evenly and together have about `MOST_BYTES`."""
    size = sum(len(_encode(passage).encode()) for passage in passages)
    n_passages = len(passages)
    n = max(1, min(n_passages, n_passages * MOST_BYTES // size))
    return [passages[k * n_passages // n] for k in range(n)]


def _passage(
    positions: Integers, hundredths_ICP: Integers, spell: Callable[[int, int], list[str]]
) -> list[Any]:
    """Return texts, and scored tokens as text, position, and the loss by model and context in hundredths of bits."""
    start = max(0, int(positions[0]) - BEFORE)
    stop = int(positions[-1]) + 1
    texts = [text[:MOST_LETTERS] for text in spell(start, stop)]
    items: list[Any] = []
    end = start
    for p, t in enumerate(positions.tolist()):
        begin = max(end, t - BEFORE)
        before = "".join(texts[begin - start : t - start])
        if begin > end or not items:
            before = f"…{before.lstrip(CUT)}"
        if before:
            items.append(before)
        losses = hundredths_ICP[:, :, p].tolist()
        items.append([texts[t - start], t, losses])
        end = t + 1
    return items
