"""Page for `txl recl`: curves, tables, and the text coloured by what long context gives each token."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from txl_lightning.recl.effective_context import Array, Entries, Integers
from txl_lightning.recl.report import notes, tables

TEMPLATE = Path(__file__).with_name("page.html")
MOST_BYTES = 1_800_000  # between passages
PASSAGE = 64  # positions
BEFORE = 64  # tokens shown before a passage's first position
CUT = "\ufffd"  # the rest of a character
MOST_VALUES = 512  # per token


def page(
    results: Entries,
    losses: Mapping[str, Array],
    positions: Integers,
    blocks: Integers,
    spell: Callable[[int, int], list[str]],
) -> str:
    """Return one HTML file, at most 2 MB. Passages that do not fit are left out, evenly over the text.

    Args:
        results: the parsed `recl.json`.
        losses: l(c, t) for every model, [C, P], in nats.
        positions: t, ascending.
        blocks: block index per position.
        spell: returns every token's text from one position to before another.
    """
    contexts = results["contexts"]
    last = len(contexts) - 1
    n_shown = min(len(contexts), MOST_VALUES // len(losses))
    shown_C = np.linspace(0, last, max(2, n_shown)).astype(int)
    nll_ICP = np.stack([*losses.values()])[:, shown_C]
    bits_ICP = nll_ICP / np.log(2)
    hundredths_ICP = np.rint(100 * bits_ICP).astype(int)
    passages = []
    size = 0
    for block in np.unique(blocks):
        places = np.flatnonzero(blocks == block)
        for start in range(0, len(places), PASSAGE):
            of_passage = places[start : start + PASSAGE]
            hundredths = hundredths_ICP[:, :, of_passage]
            passage = _passage(positions[of_passage], hundredths, spell)
            size += len(_encode(passage).encode())
            passages.append(passage)
    n_passages = len(passages)
    n_chosen = max(1, min(n_passages, n_passages * MOST_BYTES // size))
    chosen = [passages[k * n_passages // n_chosen] for k in range(n_chosen)]
    data = {
        "results": results,
        "shown": [contexts[c] for c in shown_C],
        "tables": tables(results),
        "notes": notes(results),
        "n_passages": n_passages,
        "passages": chosen,
    }
    template = TEMPLATE.read_text("utf-8")
    return template.replace("$data", _encode(data), 1)


def _encode(value: Any) -> str:
    """Return JSON that cannot end the HTML element that holds it."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c")


def _passage(
    positions: Integers,
    hundredths_ICP: Integers,
    spell: Callable[[int, int], list[str]],
) -> list[Any]:
    """Return texts, and scored tokens as text, position, and the loss by model and context in hundredths of bits."""
    start = max(0, int(positions[0]) - BEFORE)
    texts = spell(start, int(positions[-1]) + 1)
    first = int(positions[0]) - start
    texts_before = "".join(texts[:first])
    items: list[Any] = [f"…{texts_before.lstrip(CUT)}"]
    end = start + first
    for p, t in enumerate(positions.tolist()):
        before = "".join(texts[end - start : t - start])
        if before:
            items.append(before)
        hundredths = hundredths_ICP[:, :, p].tolist()
        items.append([texts[t - start], t, hundredths])
        end = t + 1
    return items
