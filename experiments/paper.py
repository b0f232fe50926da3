"""The paper's numbers (Dai et al. 2019); this project measured none of them."""

from __future__ import annotations

from dataclasses import dataclass

TABLE_1: dict[str, tuple[int | None, float]] = {
    "Transformer-XL": (151, 24.0),
    "QRNN": (151, 33.0),
    "LSTM": (None, 48.7),
}
"""Millions of parameters (None where the paper does not say) and test perplexity on WikiText-103, by kind of model."""


TABLE_2: dict[str, tuple[int | None, float]] = {
    "Transformer-XL": (41, 1.06),
    "Al-Rfou": (44, 1.11),
}
"""Millions of parameters and bits per byte (the paper says bpc) on enwik8, models of 12 layers."""


@dataclass(frozen=True)
class Table6Row:
    """A row in Table 6 or 10: WikiText-103, 128M parameters, perplexity.

    Args:
        recurrence: with memory.
        encoding: position encoding, under this project's names.
        loss: over all positions or a segment's last half.
        ppl_init: evaluated with the training lengths.
        ppl_best: evaluated with the best attention length.
        attention_length: shortest that reaches `ppl_best`, in tokens.
        segment_len: backpropagation length.
    """

    recurrence: bool
    encoding: str
    loss: str
    ppl_init: float
    ppl_best: float
    attention_length: int
    segment_len: int = 128


TABLE_6 = (
    Table6Row(True, "relative", "full", 27.02, 26.77, 500),
    Table6Row(True, "shaw", "full", 27.94, 27.94, 256),
    Table6Row(True, "relative", "half", 28.69, 28.33, 460),
    Table6Row(False, "relative", "full", 29.59, 29.02, 260),
    Table6Row(False, "relative", "half", 30.10, 30.10, 120),
    Table6Row(False, "shaw", "full", 29.75, 29.75, 120),
    Table6Row(False, "shaw", "half", 30.50, 30.50, 120),
    Table6Row(False, "absolute", "half", 30.97, 30.97, 120),
    Table6Row(False, "al_rfou", "half", 31.16, 31.16, 120),
)


TABLE_7 = {
    (True, "relative"): 25.2,
    (True, "shaw"): 25.7,
    (False, "relative"): 27.1,
}
"""Test perplexity on One Billion Word, whose sentences are shuffled, by recurrence and encoding."""


TABLE_8 = {
    (1, "Transformer-XL"): {"0.1": 900, "0.5": 800, "1.0": 700},
    (1, "QRNN"): {"0.1": 500, "0.5": 400, "1.0": 300},
    (1, "LSTM"): {"0.1": 400, "0.5": 300, "1.0": 200},
    (2, "Transformer-XL"): {"0.1": 700, "0.5": 600, "1.0": 500},
    (2, "Shaw encoding"): {"0.1": 400, "0.5": 400, "1.0": 300},
    (2, "no recurrence"): {"0.1": 300, "0.5": 300, "1.0": 300},
    (2, "Transformer"): {"0.1": 128, "0.5": 128, "1.0": 128},
}
"""Relative effective context length on WikiText-103 in words, by fraction r of hardest positions.

Group 1 has models of an equal budget, group 2 the ablation. Models have this project's names.
"""


TABLE_9 = {800: 363, 1800: 773, 2800: 1409, 3800: 1874}
"""Time per token of the vanilla model over Transformer-XL's, by attention length (enwik8)."""


TABLE_10 = (
    TABLE_6[0],
    TABLE_6[2],
    Table6Row(False, "relative", "full", 28.43, 27.98, 400, segment_len=176),
    Table6Row(False, "relative", "half", 28.83, 28.83, 120, segment_len=172),
)
"""Equal GPU memory: without recurrence, what its memory would take is spent on longer segments."""
