"""Entries of `recl.json`, tables, notes and figures of a group, from losses that are made up."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.colors import to_hex

from tests.evaluation.kept_figures import Figures
from txl_lightning.recl.figures import draw_figures
from txl_lightning.recl.loss_by_context import context_gains
from txl_lightning.recl.report import report_lines
from txl_lightning.recl.results import group_results

CONTEXTS = [4, 8, 12, 16]
NAMES = ["a", "b", "c"]
BLOCKS = np.arange(100) // 10
POSITIONS = np.arange(100) * 4 + 16


def made_up() -> dict[str, np.ndarray]:
    """Losses that fall with context, of c to a plateau and then further."""
    noise = np.random.default_rng(1).gamma(2.0, 0.5, (3, 1, 100))
    falls = np.array(
        [
            [3.0, 2.0, 1.5, 1.2],
            [3.0, 2.5, 2.4, 2.39],
            [3.0, 3.0, 1.0, 1.0],
        ]
    )
    return dict(zip(NAMES, noise + falls[:, :, None], strict=True))


def results(unit: str = "ppl", **options: Any) -> dict[str, Any]:
    found = group_results(
        made_up(), CONTEXTS, POSITIONS, BLOCKS, unit, **{"bootstrap": 20, **options}
    )
    found["split"] = "test"
    found["corpus"] = {"name": "text", "level": "token" if unit == "ppl" else "char"}
    for model in found["models"]:
        model.update(kind="made up", limit=None, scoring="one pass")
    return found


def mean_and_error(losses_P: np.ndarray) -> tuple[float, float]:
    """The mean and its standard error over blocks of equal size."""
    blocks = losses_P.reshape(10, 10).mean(axis=1)
    return float(losses_P.mean()), float(blocks.std(ddof=1) / np.sqrt(10))


def test_losses_have_means_and_errors_in_both_units() -> None:
    losses = made_up()["a"]
    ppl = results("ppl")["models"][0]
    bpc = results("bpc")["models"][0]
    for c in range(4):
        nll, error = mean_and_error(losses[c])
        assert ppl["nll"][c] == pytest.approx(nll)
        assert ppl["nll_standard_error"][c] == pytest.approx(error)
        assert ppl["ppl"][c] == pytest.approx(np.exp(nll))
        assert ppl["ppl_standard_error"][c] == pytest.approx(np.exp(nll) * error)
        assert bpc["bpc"][c] == pytest.approx(nll / np.log(2))
        assert bpc["bpc_standard_error"][c] == pytest.approx(error / np.log(2))


def test_gains_of_a_model() -> None:
    gains = context_gains(made_up()["a"], CONTEXTS, BLOCKS)
    bits = [doubling["bits"] for doubling in gains["doublings"]]
    assert bits == pytest.approx([1 / np.log(2), 0.8 / np.log(2)])
    assert [(doubling["from"], doubling["to"]) for doubling in gains["doublings"]] == [
        (4, 8),
        (8, 16),
    ]
    assert gains["share_of_gain"] == pytest.approx([0, 1 / 1.8, 1.5 / 1.8, 1])
    assert gains["within_1_percent"] == 16
    assert context_gains(made_up()["b"], CONTEXTS)["within_1_percent"] == 12
    rising = np.repeat([[2.0], [3.0]], 100, axis=1)
    assert context_gains(rising, [8, 16])["share_of_gain"] is None


def test_differences_are_paired_by_position() -> None:
    losses = made_up()
    found = results()["differences"]
    pairs = [one["model"] + one["minus"] for one in found]
    assert pairs == ["ab", "ac", "bc"]
    nll, error = mean_and_error(losses["a"][3] - losses["b"][3])
    assert found[0]["nll"][3] == pytest.approx(nll)
    assert found[0]["nll_standard_error"][3] == pytest.approx(error)
    assert found[0]["low"][3] == pytest.approx(nll - 1.96 * error)
    assert found[0]["high"][3] == pytest.approx(nll + 1.96 * error)


def table_rows(lines: list[str], first_cell: str) -> list[list[str]]:
    rows = [line.strip("| ").split(" | ") for line in lines if line.startswith("| ")]
    return [row for row in rows if row[0] == first_cell]


def test_the_first_table_says_how_far_a_model_looks() -> None:
    """Within 1 %, guarded RECL, the paper's RECL, each with its interval."""
    found = results(fractions=[0.5, 1.0])
    lines = report_lines(found)
    assert lines[0] == "How far does it look? Tokens of context; RECL in the group of a, b, c"
    assert (
        lines[2]
        == "| model | within 1 % | guarded r = 0.5 | guarded r = 1.0 | RECL r = 0.5 | RECL r = 1.0 |"
    )
    for model in found["models"]:
        cells = [model["name"], str(model["within_1_percent"])]
        for prefix, value in (("guarded_", "guarded"), ("", "value")):
            for r in ("0.5", "1.0"):
                length = model["recl"][r]
                least = "≥ " if length[f"{prefix}at_least"] else ""
                high_least = "≥ " if length[f"{prefix}high_at_least"] else ""
                interval = f"[{length[f'{prefix}low']}, {high_least}{length[f'{prefix}high']}]"
                cells.append(f"{least}{length[value]} {interval}")
        assert table_rows(lines, model["name"])[0] == cells


def test_the_second_table_has_losses_and_gains() -> None:
    found = results()
    model = found["models"][1]
    lines = report_lines(found)
    assert (
        "| model | kind | sees at most | ppl at 4 tokens | ppl at 16 tokens | bits 4 → 8 | bits 8 → 16 |"
        in lines
    )
    row = table_rows(lines, "b")[1]
    assert row[:3] == ["b", "made up", "no limit"]
    value = model["ppl"][0]
    error = model["ppl_standard_error"][0]
    assert row[3] == f"{value:.3f} ± {error:.3f}"
    assert row[5].startswith(f"{model['doublings'][0]['bits']:.3f} ± ")
    one = found["differences"][0]
    nll = one["nll"][3]
    low = one["low"][3]
    high = one["high"][3]
    interval = f"{nll:+.4f} [{low:+.4f}, {high:+.4f}]"
    assert table_rows(lines, "a − b") == [["a − b", interval]]


def test_a_length_that_ends_at_a_plateau_says_where_steps_gain_again() -> None:
    lines = report_lines(results(fractions=[1.0]))
    assert "c: RECL ends at a plateau, but later steps gain again: r = 1.0 from 4 to 12." in lines


def drawn_figures(drawn: Figures, directory: Path, **options: Any) -> dict[str, Axes]:
    draw_figures(results(**options), directory)
    return {
        name.removesuffix(".png"): figure.axes[0]
        for name, figure in drawn.items()
        if name.endswith(".png")
    }


def lines_of(axes: Axes) -> dict[str, Any]:
    return {str(line.get_label()): line for line in axes.get_lines()}


def test_a_model_has_one_colour_in_all_figures(drawn: Figures, tmp_path: Path) -> None:
    figures = drawn_figures(drawn, tmp_path, labels=["x", "y", "x"])
    colours: dict[str, set[str]] = {name: set() for name in NAMES}
    for axes in figures.values():
        for label, line in lines_of(axes).items():
            name = label.removesuffix(" (zero)")
            if name in colours:
                colours[name].add(to_hex(line.get_color()))
    assert [len(found) for found in colours.values()] == [1, 1, 1]
    assert len(set.union(*colours.values())) == 3
    assert len(figures) == 1 + 1 + 2 * 3


def test_figures_have_ticks_at_contexts_a_grey_threshold_and_a_zero_line(
    drawn: Figures, tmp_path: Path
) -> None:
    figures = drawn_figures(drawn, tmp_path)
    assert figures["contexts"].get_xticks().tolist() == CONTEXTS
    gains = figures["gains_r1.0"]
    assert gains.get_xticks().tolist() == CONTEXTS[:-1]
    assert "c → c'" in gains.get_xlabel()
    assert gains.get_yscale() == "symlog"
    threshold = lines_of(gains)["needed for a longer RECL"]
    assert (threshold.get_color(), threshold.get_linestyle()) == ("grey", "--")
    zero = lines_of(figures["differences"])["a (zero)"]
    assert zero.get_ydata() == [0, 0]


def test_figures_show_the_values_of_the_result(drawn: Figures, tmp_path: Path) -> None:
    found = results()
    figures = drawn_figures(drawn, tmp_path)
    first, second = found["models"][:2]
    assert lines_of(figures["contexts"])["b"].get_ydata().tolist() == second["ppl"]
    gains = lines_of(figures["gains_r0.5"])
    assert gains["b"].get_ydata().tolist() == second["recl"]["0.5"]["perplexity_gains"]
    needed = 0.01 * np.array(first["recl"]["0.5"]["perplexities"])
    assert gains["needed for a longer RECL"].get_ydata() == pytest.approx(needed)
    worse = lines_of(figures["differences"])["b"].get_ydata()
    assert worse == pytest.approx(np.negative(found["differences"][0]["nll"]))
