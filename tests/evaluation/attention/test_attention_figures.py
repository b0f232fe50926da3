"""Figures 5, 6 and 7 of models from one head to the paper's 160, and tokens that can be read."""

from pathlib import Path

import numpy as np
import pytest

from tests.evaluation.kept_figures import Figures
from txl_lightning.evaluation.attention.report import distance_figure, printable, text_figure


@pytest.mark.parametrize(
    ("n_layer", "n_head", "n_distances", "n_panels"),
    [(1, 1, 1, 1), *(pytest.param(*sizes, marks=pytest.mark.slow) for sizes in ((4, 8, 128, 3), (16, 10, 640, 1)))],
)
def test_a_figure_by_distance_of_any_size(
    tmp_path: Path, pictures: None, n_layer: int, n_head: int, n_distances: int, n_panels: int
) -> None:
    rows = np.random.default_rng(0).dirichlet(np.ones(n_distances), n_layer * n_head)
    rows[0] = np.eye(n_distances)[0]  # zeros, which have no logarithm
    distance_figure(tmp_path / "f", {f"panel {i}": rows for i in range(n_panels)}, n_head, "where heads look")
    assert (tmp_path / "f.png").read_bytes().startswith(b"\x89PNG")
    svg = (tmp_path / "f.svg").read_text()
    for words in ("where heads look", f"layer {n_layer}", "relative position", f"evenly spread, 1/{n_distances}"):
        assert words in svg


def test_panels_of_the_terms_stand_one_below_the_other_to_be_read_on_a_phone(tmp_path: Path, drawn: Figures) -> None:
    rows = np.random.default_rng(0).dirichlet(np.ones(32), 12)
    distance_figure(tmp_path / "f", dict.fromkeys("abd", rows), 4, "terms")
    width, height = drawn["f.png"].get_size_inches()
    assert width <= 6 < height
    assert drawn["f.png"].axes[-1].get_xlabel() == "mean attention (share of 1); white line: evenly spread, 1/32"


@pytest.mark.parametrize(("symbols", "n_context"), [("a \n$", 24), (("the", "<eos>", "日本", "$5$", "naïve"), 20)])
def test_a_figure_of_text_of_any_symbols(
    tmp_path: Path, pictures: None, symbols: tuple[str, ...], n_context: int
) -> None:
    context = [symbols[i % len(symbols)] for i in range(n_context)]
    weights = np.random.default_rng(0).dirichlet(np.ones(n_context), 6)
    weights[3, :5] = 0
    heads, marked = {"layer 1, head 2": weights}, {"layer 1, head 2": weights > np.quantile(weights, 0.8)}
    text_figure(tmp_path / "f", heads, marked, context[:6], context, "a piece of $text$")
    assert (tmp_path / "f.png").read_bytes().startswith(b"\x89PNG")
    assert "farther than the target sees" in (tmp_path / "f.svg").read_text()


@pytest.mark.parametrize(
    ("symbol", "expected"),
    [
        ("a", "a"),
        (" ", "␣"),
        ("\n", "↵"),
        ("<eos>", "↵"),
        ("\x00", r"\x00"),
        ("\\", "\\"),
        ("é", "é"),
        ("日", r"\u65e5"),
        ("a b", "a␣b"),
        ("antidisestablishmentarianism", "antidisestabl…"),
    ],
)
def test_symbols_that_can_be_read(symbol: str, expected: str) -> None:
    assert printable(symbol) == expected
