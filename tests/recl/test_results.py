"""Entries of `recl.json`, tables, notes and figures of a group, from losses that are made up."""

from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.colors import to_hex

from txl_lightning.recl.figures import draw_figures
from txl_lightning.recl.loss_by_context import group_results
from txl_lightning.recl.report import report_lines

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


def results(level: str = "token", **options: Any) -> dict[str, Any]:
    options.setdefault("bootstrap", 20)
    found = group_results(
        made_up(),
        CONTEXTS,
        POSITIONS,
        BLOCKS,
        level,
        **options,
    )
    found["split"] = "test"
    found["corpus"] = {"name": "text", "level": level}
    for model in found["models"]:
        model["kind"] = "made up"
    return found


def mean_and_error(losses_P: np.ndarray) -> tuple[float, float]:
    """The mean and its standard error over blocks of equal size."""
    blocks = losses_P.reshape(10, 10).mean(axis=1)
    return float(losses_P.mean()), float(blocks.std(ddof=1) / np.sqrt(10))


def test_losses_have_means_and_errors_in_both_units():
    losses = made_up()["a"]
    ppl = results("token")["models"][0]
    bpc = results("char")["models"][0]
    nll, error = mean_and_error(losses[2])
    assert (ppl["nll"][2], ppl["nll_standard_error"][2]) == pytest.approx((nll, error))
    assert ppl["ppl"][2] == pytest.approx(np.exp(nll))
    assert ppl["ppl_standard_error"][2] == pytest.approx(np.exp(nll) * error)
    assert bpc["bpc"][2] == pytest.approx(nll / np.log(2))


def test_within_1_percent_of_the_loss_with_the_longest_context():
    assert [model["within_1_percent"] for model in results()["models"]] == [16, 12, 12]


def test_differences_are_paired_by_position():
    losses = made_up()
    first, second, _ = results()["differences"]
    assert (second["model"], second["minus"]) == ("a", "c")
    nll, error = mean_and_error(losses["a"][3] - losses["b"][3])
    assert (first["nll"][3], first["nll_standard_error"][3]) == pytest.approx((nll, error))


def table_rows(lines: list[str], first_cell: str) -> list[list[str]]:
    rows = [line.strip("| ").split(" | ") for line in lines if line.startswith("| ")]
    return [row for row in rows if row[0] == first_cell]


def test_tables_have_lengths_and_losses():
    """Within 1 %, guarded RECL and the paper's RECL, each with its interval, come first."""
    found = results(fractions=[1.0])
    found["models"][1]["limit_reason"] = "its table of positions"
    lines = report_lines(found)
    assert "b: limit: its table of positions." in lines
    assert lines[0] == "How far does it look? Tokens of context; RECL in the group of a, b, c"
    assert lines[2] == "| model | within 1 % | guarded r = 1.0 | RECL r = 1.0 |"
    assert "| model | kind | sees at most | ppl at 4 tokens | ppl at 16 tokens |" in lines
    assert "c: RECL ends at a plateau, but later steps gain again: r = 1.0 from 4 to 12." in lines
    model = found["models"][0]
    length = model["recl"]["1.0"]
    assert length["at_least"]
    first, second = table_rows(lines, "a")
    assert first[1] == str(model["within_1_percent"])
    assert first[2].endswith(f"{length['guarded']} [{length['guarded_low']}, 16]")
    assert first[3] == f"≥ 16 [{length['low']}, 16]"
    assert second[3] == f"{model['ppl'][0]:.3f} ± {model['ppl_standard_error'][0]:.3f}"


def lines_of(axes: Axes) -> dict[str, Any]:
    """The lines of models, and of the gain that RECL needs, by name."""
    bars = axes.containers
    lines = {str(bar.get_label()).removesuffix(" (zero)"): bar.lines[0] for bar in bars}
    return {
        **lines,
        **{str(line.get_label()): line for line in axes.get_lines()},
    }


def test_figures_show_the_values_and_a_model_has_one_colour(drawn, tmp_path):
    found = results()
    draw_figures(found, tmp_path)
    axes = {name: figure.axes[0] for name, figure in drawn.items() if name.endswith(".png")}
    assert len(axes) == 1 + 1 + 3
    for name in NAMES:
        colours = {to_hex(lines_of(one)[name].get_color()) for one in axes.values()}
        assert len(colours) == 1

    second = found["models"][1]
    losses = axes["contexts.png"]
    assert losses.get_xticks().tolist() == CONTEXTS
    assert lines_of(losses)["b"].get_ydata().tolist() == second["ppl"]
    gains = axes["gains_r0.5.png"]
    assert gains.get_xticks().tolist() == CONTEXTS[:-1]
    assert "c → c'" in gains.get_title()
    assert gains.get_yscale() == "symlog"
    length = second["recl"]["0.5"]
    assert lines_of(gains)["b"].get_ydata().tolist() == length["perplexity_gains"]
    needed = lines_of(gains)["needed for a longer RECL"]
    assert (needed.get_color(), needed.get_linestyle()) == ("grey", "--")
    assert needed.get_ydata() == pytest.approx(0.01 * np.array(length["perplexities"]))
    differences = lines_of(axes["differences.png"])
    assert not differences["a"].get_ydata().any()
    of_pair = np.negative(found["differences"][0]["nll"])
    assert differences["b"].get_ydata() == pytest.approx(of_pair)
