"""The paper's numbers, typed a second time to catch typing errors."""

from dataclasses import astuple

import pytest

from experiments import paper

# model, parameters in millions or -, result, * if fine-tuned
RESULTS = {
    "TABLE_1": """
        Transformer-XL standard/151/24.0  Transformer-XL large/257/18.3  Adaptive Input/247/20.5  QRNN/151/33.0
        LSTM/-/48.7  LSTM + neural cache/-/40.8  GCNN-14/-/37.2  Hebbian + cache/-/29.9""",
    "TABLE_2": """
        Transformer-XL 12 layers/41/1.06  Transformer-XL 18 layers/88/1.03  Transformer-XL 24 layers/277/0.99
        Al-Rfou 12 layers/44/1.11  Al-Rfou 64 layers/235/1.06""",
    "TABLE_3": "Transformer-XL 24 layers/277/1.08  Al-Rfou 12 layers/-/1.18  Al-Rfou 64 layers/-/1.13",
    "TABLE_4": """
        Transformer-XL base/460/23.5  Transformer-XL large/800/21.8  Adaptive Input 0.46B/460/24.1
        Adaptive Input 1.0B/1000/23.7""",
    "TABLE_5": "Transformer-XL/24/54.52  AWD-LSTM/-/58.8  AWD-LSTM/-/57.3/*  MoS/-/54.44/*",
}
# with or without recurrence, encoding, loss: init, best, attention length
TABLE_6 = """
    + relative full 27.02 26.77 500    - relative full 29.59 29.02 260    - shaw full 29.75 29.75 120
    + shaw full 27.94 27.94 256        - relative half 30.10 30.10 120    - shaw half 30.50 30.50 120
    + relative half 28.69 28.33 460    - absolute half 30.97 30.97 120    - al_rfou half 31.16 31.16 120"""
# group, model, parameters: RECL at r = 0.1, 0.5, 1.0
TABLE_8 = """
    1 Transformer-XL 151 900 800 700; 1 QRNN - 500 400 300; 1 LSTM - 400 300 200; 2 Transformer-XL 128 700 600 500;
    2 Shaw encoding - 400 400 300; 2 no recurrence - 300 300 300; 2 Transformer - 128 128 128"""
# segment, recurrence, loss: best, init (as the paper orders them), attention length
TABLE_10 = """
    128 + full 26.77 27.02 500    128 + half 28.33 28.69 460
    176 - full 27.98 28.43 400    172 - half 28.83 28.83 120"""


def number(text: str) -> int | None:
    return None if text == "-" else int(text)


@pytest.mark.parametrize("name", RESULTS)
def test_results_of_whole_models(name: str) -> None:
    cells = [entry.strip().split("/") for line in RESULTS[name].splitlines() for entry in line.split("  ")]
    typed = [(model, number(size), float(result), bool(star)) for model, size, result, *star in filter(any, cells)]
    assert sorted(map(str, typed)) == sorted(str(astuple(row)) for row in getattr(paper, name).rows)


def test_a_result_is_found_by_its_model() -> None:
    assert paper.TABLE_1.row("QRNN").result == 33.0
    assert paper.TABLE_5.row("AWD-LSTM").result == 58.8
    assert paper.TABLE_5.row("AWD-LSTM", finetuned=True).result == 57.3


def test_table_6() -> None:
    words = TABLE_6.split()
    rows = [words[i : i + 6] for i in range(0, len(words), 6)]
    typed = {(r == "+", e, loss, float(init), float(best), int(length)) for r, e, loss, init, best, length in rows}
    assert len(rows) == len(paper.TABLE_6)
    assert typed == {astuple(row)[:-1] for row in paper.TABLE_6}
    assert {row.segment_len for row in paper.TABLE_6} == {128}
    assert paper.table_6(False, "shaw", "half").ppl_best == 30.5
    assert astuple(paper.TABLE_6_STANDARD) == (151, 23.43, {300: 23.35, 450: 23.16, 640: 23.09})


def test_table_7() -> None:
    typed = {(True, "relative"): 25.2, (True, "shaw"): 25.7, (False, "relative"): 27.1}
    assert {(row.recurrence, row.encoding): row.ppl for row in paper.TABLE_7} == typed


def test_table_8() -> None:
    typed = set()
    for row in TABLE_8.split(";"):
        group, *model, size, hard, half, all_ = row.split()
        typed.add((int(group), " ".join(model), number(size), int(hard), int(half), int(all_)))
    ours = {(row.group, row.model, row.parameters, *(row.recl[r] for r in (0.1, 0.5, 1.0))) for row in paper.TABLE_8}
    assert ours == typed


def test_table_9() -> None:
    assert sorted(paper.TABLE_9.items()) == [(800, 363), (1800, 773), (2800, 1409), (3800, 1874)]


def test_table_10() -> None:
    words = TABLE_10.split()
    rows = [words[i : i + 6] for i in range(0, len(words), 6)]
    typed = {
        (r == "+", "relative", loss, float(init), float(best), int(k), int(n)) for n, r, loss, best, init, k in rows
    }
    assert typed == {astuple(row) for row in paper.TABLE_10}
    for row in paper.TABLE_10[:2]:  # its first rows are Table 6's
        assert row.ppl_best == paper.table_6(True, loss=row.loss).ppl_best
