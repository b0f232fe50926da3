"""Figures of the paper (Dai et al. 2019), to set ours beside. Nothing here was measured by us."""

from __future__ import annotations

from dataclasses import dataclass

from txl_lightning.reporting.paper_tables import TABLE_9 as TABLE_9


@dataclass(frozen=True)
class Table6Row:
    """One row of Table 6: WikiText-103, 128M parameters, backpropagation length 128, perplexity.

    Args:
        recurrence: with memory.
        encoding: position encoding, under this project's names.
        loss: over all positions of a segment or its last half.
        ppl_init: evaluated with the training lengths.
        ppl_best: evaluated with the best attention length.
        attention_length: the shortest that reaches `ppl_best`.
    """

    recurrence: bool
    encoding: str
    loss: str
    ppl_init: float
    ppl_best: float
    attention_length: int


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


def table_6(recurrence: bool, encoding: str = "relative", loss: str = "full") -> Table6Row:
    """The row of Table 6 with these settings."""
    return next(r for r in TABLE_6 if (r.recurrence, r.encoding, r.loss) == (recurrence, encoding, loss))


@dataclass(frozen=True)
class Table8Row:
    """One row of Table 8: relative effective context length on WikiText-103, in words.

    Args:
        group: 1 for models of an equal budget, 2 for the ablation.
        model: under this project's names.
        parameters: in millions; None where the table has none.
        recl: by fraction r of hardest positions.
    """

    group: int
    model: str
    parameters: int | None
    recl: dict[float, int]


TABLE_8 = (
    Table8Row(1, "Transformer-XL", 151, {0.1: 900, 0.5: 800, 1.0: 700}),
    Table8Row(1, "QRNN", None, {0.1: 500, 0.5: 400, 1.0: 300}),
    Table8Row(1, "LSTM", None, {0.1: 400, 0.5: 300, 1.0: 200}),
    Table8Row(2, "Transformer-XL", 128, {0.1: 700, 0.5: 600, 1.0: 500}),
    Table8Row(2, "Shaw encoding", None, {0.1: 400, 0.5: 400, 1.0: 300}),
    Table8Row(2, "no recurrence", None, {0.1: 300, 0.5: 300, 1.0: 300}),
    Table8Row(2, "Transformer", None, {0.1: 128, 0.5: 128, 1.0: 128}),
)
