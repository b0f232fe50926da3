"""Page for `txl recl`: curves, tables, and the text coloured by what long context gives each token."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from txl_lightning.recl.effective_context import Array, Entries, Integers
from txl_lightning.recl.report import notes, tables

TEMPLATE = Path(__file__).with_name("page.html")
MOST_BYTES = 1_800_000  # between passages
PASSAGE = 64  # positions
BEFORE = 64  # tokens shown before a passage's first position


def page(
    results: Entries,
    losses_ICP: Array,
    positions: Integers,
    blocks: Integers,
    spell: Callable[..., list[str]],
) -> str:
    """Return one HTML file, at most 2 MB. Passages that do not fit are left out, evenly over the text.

    A passage has the texts of all tokens from `start` on, and the losses of its positions by model
    and context, in hundredths of bits.

    Args:
        results: the parsed `recl.json`.
        losses_ICP: l_i(c, t), in nats.
        positions: t, ascending.
        blocks: block index per position.
        spell: returns every token's text from one position to before another.
    """
    hundredths_ICP = np.rint(losses_ICP / np.log(2) * 100).astype(int)
    passages = []
    for block in np.unique(blocks):
        places = np.flatnonzero(blocks == block)
        for first in range(0, len(places), PASSAGE):
            here = places[first : first + PASSAGE]
            start = max(0, int(positions[here[0]]) - BEFORE)
            passage = {
                "start": start,
                "texts": spell(start, int(positions[here[-1]]) + 1),
                "positions": positions[here].tolist(),
                "hundredths": hundredths_ICP[:, :, here]
                .transpose(
                    2,
                    0,
                    1,
                )
                .tolist(),
            }
            passages.append(passage)
    share = min(1, MOST_BYTES / len(_encode(passages).encode()))
    n_chosen = max(1, int(share * len(passages)))
    chosen = np.arange(n_chosen) * len(passages) // n_chosen
    data = {
        "results": results,
        "tables": tables(results),
        "notes": notes(results),
        "n_passages": len(passages),
        "passages": [passages[number] for number in chosen],
    }
    return TEMPLATE.read_text("utf-8").replace(
        "$data",
        _encode(data),
        1,
    )


def _encode(value: Any) -> str:
    """Return JSON that cannot end the HTML element that holds it."""
    text = json.dumps(
        value,
        ensure_ascii=False,
        allow_nan=False,
        separators=(",", ":"),
    )
    return text.replace("<", "\\u003c")
