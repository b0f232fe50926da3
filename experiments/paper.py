"""Numbers of the paper (Dai et al. 2019); none of them was measured by this project."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class ResultRow:
    """One row of Tables 1 to 5: a model and its result on the test split.

    Args:
        model: as the paper calls it.
        parameters: in millions; None where the paper does not say.
        result: in the table's unit; None for a model that the table does not have.
        finetuned: with the two-step fine-tuning of Table 5.
    """

    model: str
    parameters: int | None
    result: float | None
    finetuned: bool = False


@dataclass(frozen=True)
class ResultTable:
    """One of Tables 1 to 5.

    Args:
        corpus: name in the paper.
        unit: ppl (perplexity of words), bpc (bits per character) or bpb: the paper calls bits per byte of enwik8 bpc.
        rows: in the paper's order.
    """

    corpus: str
    unit: Literal["ppl", "bpc", "bpb"]
    rows: tuple[ResultRow, ...]

    def row(self, model: str, finetuned: bool = False) -> ResultRow:
        """Return the row of a model."""
        return next(row for row in self.rows if (row.model, row.finetuned) == (model, finetuned))


TABLE_1 = ResultTable(
    "WikiText-103",
    "ppl",
    (
        ResultRow("LSTM", None, 48.7),
        ResultRow("LSTM + neural cache", None, 40.8),
        ResultRow("GCNN-14", None, 37.2),
        ResultRow("QRNN", 151, 33.0),
        ResultRow("Hebbian + cache", None, 29.9),
        ResultRow("Transformer-XL standard", 151, 24.0),
        ResultRow("Adaptive Input", 247, 20.5),
        ResultRow("Transformer-XL large", 257, 18.3),
    ),
)

TABLE_2 = ResultTable(
    "enwik8",
    "bpb",
    (
        ResultRow("Al-Rfou 12 layers", 44, 1.11),
        ResultRow("Al-Rfou 64 layers", 235, 1.06),
        ResultRow("Transformer-XL 12 layers", 41, 1.06),
        ResultRow("Transformer-XL 18 layers", 88, 1.03),
        ResultRow("Transformer-XL 24 layers", 277, 0.99),
    ),
)

TABLE_3 = ResultTable(
    "text8",
    "bpc",
    (
        ResultRow("Al-Rfou 12 layers", None, 1.18),
        ResultRow("Al-Rfou 64 layers", None, 1.13),
        ResultRow("Transformer-XL 24 layers", 277, 1.08),
    ),
)

TABLE_4 = ResultTable(
    "One Billion Word",
    "ppl",
    (
        ResultRow("Adaptive Input 0.46B", 460, 24.1),
        ResultRow("Adaptive Input 1.0B", 1000, 23.7),
        ResultRow("Transformer-XL base", 460, 23.5),
        ResultRow("Transformer-XL large", 800, 21.8),
    ),
)

TABLE_5 = ResultTable(
    "Penn Treebank",
    "ppl",
    (
        ResultRow("AWD-LSTM", None, 58.8),
        ResultRow("Transformer-XL", 24, 54.52),
        ResultRow("AWD-LSTM", None, 57.3, finetuned=True),
        ResultRow("MoS", None, 54.44, finetuned=True),
    ),
)


MAIN_RESULTS = {1: TABLE_1, 2: TABLE_2, 3: TABLE_3, 4: TABLE_4, 5: TABLE_5}


@dataclass(frozen=True)
class Table6Row:
    """One row of Table 6 or 10: WikiText-103, 128M parameters, perplexity.

    Args:
        recurrence: with memory.
        encoding: position encoding, under this project's names.
        loss: over all positions of a segment or its last half.
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
"""Rows of the ablation; the last rows of the table, with the model of Table 1, are `TABLE_6_STANDARD`."""


@dataclass(frozen=True)
class Table6StandardRow:
    """Last rows of Table 6: the model of Table 1 (recurrence, relative encoding, full loss), perplexity.

    Args:
        parameters: in millions.
        ppl_init: evaluated with the training lengths.
        ppl: by attention length; the longest is the best.
    """

    parameters: int
    ppl_init: float
    ppl: dict[int, float]


TABLE_6_STANDARD = Table6StandardRow(151, 23.43, {640: 23.09, 450: 23.16, 300: 23.35})


@dataclass(frozen=True)
class Table7Row:
    """One row of Table 7: One Billion Word, sentences shuffled, 20 layers of about 300M parameters, perplexity.

    Args:
        recurrence: with memory.
        encoding: position encoding, under this project's names.
        ppl: perplexity on the test split.
    """

    recurrence: bool
    encoding: str
    ppl: float


TABLE_7 = (Table7Row(True, "relative", 25.2), Table7Row(True, "shaw", 25.7), Table7Row(False, "relative", 27.1))


@dataclass(frozen=True)
class Table8Row:
    """One row of Table 8: relative effective context length on WikiText-103, in words.

    Args:
        group: 1 for models of an equal budget, 2 for the ablation.
        model: under this project's names.
        parameters: in millions; None where the table has none.
        recl: in words, by fraction r of hardest positions.
    """

    group: int
    model: str
    parameters: int | None
    recl: dict[float, int]


TABLE_9 = {800: 363, 1800: 773, 2800: 1409, 3800: 1874}
"""Time per token of the vanilla model over that of Transformer-XL, by attention length (enwik8)."""

TABLE_8 = (
    Table8Row(1, "Transformer-XL", 151, {0.1: 900, 0.5: 800, 1.0: 700}),
    Table8Row(1, "QRNN", None, {0.1: 500, 0.5: 400, 1.0: 300}),
    Table8Row(1, "LSTM", None, {0.1: 400, 0.5: 300, 1.0: 200}),
    Table8Row(2, "Transformer-XL", 128, {0.1: 700, 0.5: 600, 1.0: 500}),
    Table8Row(2, "Shaw encoding", None, {0.1: 400, 0.5: 400, 1.0: 300}),
    Table8Row(2, "no recurrence", None, {0.1: 300, 0.5: 300, 1.0: 300}),
    Table8Row(2, "Transformer", None, {0.1: 128, 0.5: 128, 1.0: 128}),
)


TABLE_10 = (
    Table6Row(True, "relative", "full", 27.02, 26.77, 500),
    Table6Row(True, "relative", "half", 28.69, 28.33, 460),
    Table6Row(False, "relative", "full", 28.43, 27.98, 400, segment_len=176),
    Table6Row(False, "relative", "half", 28.83, 28.83, 120, segment_len=172),
)
"""Equal GPU memory: without recurrence, what its memory would take is spent on longer segments."""
