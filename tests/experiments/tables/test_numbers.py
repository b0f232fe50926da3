"""Every number of every table, and every curve that is drawn, computed a second time from the result files."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from experiments import paper
from experiments.engine.profiles import Setup
from experiments.report.sections import Number, Section, Table, Text
from experiments.reproduce import SECTIONS
from experiments.tables import comparisons, table_6
from experiments.tables.intervals import SeedSpread
from tests.experiments.conftest import outcomes_of
from tests.experiments.tables.sample_outcomes import World
from tests.experiments.tables.test_intervals import NaiveSpread, naive_interval

ON, OFF = "recurrence-relative-full_loss", "no_recurrence-relative-full_loss"
PAPER_6 = {
    f"{'recurrence' if row.recurrence else 'no_recurrence'}-{row.encoding}-{row.loss}_loss": row
    for row in paper.TABLE_6
}
LOSSES = {"init": "bpc", "best": "bpc", "length": "tokens", "valid_init": "bpc", "valid_best": "bpc"}
# Table, row of its differences: the arm that should be better, the other, at which lengths; the paper's perplexities,
# worse and better. Names are shortened: + and - are with and without recurrence, full loss unless half.
DIFFERENCES = """
    table_6 recurrence_helps/init                               +relative -relative init 29.59 27.02
    table_6 recurrence_helps_at_the_best_lengths/best           +relative -relative best 29.02 26.77
    table_6 our_encoding_is_better/shaw_recurrence              +relative +shaw best 27.94 26.77
    table_6 our_encoding_is_better/shaw_half                    -relative/half -shaw/half best 30.50 30.10
    table_6 our_encoding_is_better/absolute_half                -relative/half -absolute/half best 30.97 30.10
    table_6 our_encoding_is_better/al_rfou_half                 -relative/half -al_rfou/half best 31.16 30.10
    table_6 half_loss_rescues_absolute_encodings/absolute       -absolute/half -absolute init
    table_6 half_loss_rescues_absolute_encodings/al_rfou        -al_rfou/half -al_rfou init
    table_7 recurrence_helps_without_long_dependencies/init     lines:+relative lines:-relative init 27.1 25.2
    table_10 recurrence_beats_longer_segments/full              +relative -relative/long=tokens best 27.98 26.77
    table_10 -relative/long=steps                               +relative -relative/long=steps best 27.98 26.77
    table_10 -relative/half/long=tokens                 +relative/half -relative/half/long=tokens best 28.83 28.33
    table_10 -relative/half/long=steps                  +relative/half -relative/half/long=steps best 28.83 28.33
    beyond beyond/relative_memory                               +relative -relative init
    beyond memory_helps_with_rope/init                          +rope -rope init
    beyond memory_helps_without_an_encoding/init                +none -none init
    beyond an_encoding_is_needed/relative                       +relative +none best
    beyond later_encodings_are_better/rope                      +rope +relative best
    beyond later_encodings_are_better/alibi                     +alibi +relative best
    beyond compression_pays/mean                +relative/memory_compressed_by_pooling +relative init
    beyond compression_pays/conv                +relative/memory_compressed_by_convolution +relative init
    beyond modern_recipe_helps/init             +relative/modern_recipe +relative init
    beyond beyond/+relative/no=pre-norm         +relative/modern_recipe +relative/no=pre-norm init
    beyond beyond/+relative/no=RMSNorm          +relative/modern_recipe +relative/no=RMSNorm init
    beyond beyond/+relative/no=gated_feed-forward   +relative/modern_recipe +relative/no=gated_feed-forward init
    beyond beyond/+relative/no=QK-norm          +relative/modern_recipe +relative/no=QK-norm init
    beyond beyond/+relative/no=separate_qkv     +relative/modern_recipe +relative/no=separate_qkv init
"""


def read(setup: Setup, job: str, file: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((setup.runs / job / file).read_text())
    return content


def of_seeds(
    setup: Setup, arm: str, value: Callable[[dict[str, Any]], float], *, train: bool = False
) -> dict[str, Any]:
    """Values of one arm by seed, from the evaluations or the trainings of its runs."""
    found = {}
    for folder in setup.runs.glob(f"{arm}-seed*" if train else f"{arm}-seed*-lengths"):
        if train and folder.name.endswith("-lengths"):
            continue
        seed = folder.name.removeprefix(f"{arm}-seed").removesuffix("-lengths")
        found[seed] = value(read(setup, folder.name, "metrics.json" if train else "evaluation.json"))
    assert found
    return dict(sorted(found.items()))


def losses(setup: Setup, arm: str) -> dict[str, Any]:
    """Cells of an arm's losses: both lengths on both splits, and the attention length."""
    swept = {
        "init": lambda found: found["test"]["selected"]["init"]["bpc"],
        "best": lambda found: found["test"]["selected"]["best"]["bpc"],
        "length": lambda found: found["valid"]["sweep"]["attention_length"],
        "valid_init": lambda found: found["valid"]["sweep"]["init"]["bpc"],
        "valid_best": lambda found: found["valid"]["sweep"]["best"]["bpc"],
    }
    return {name: of_seeds(setup, arm, value) for name, value in swept.items()}


def check_row(table: Table, row: str, expected: Mapping[str, Any]) -> None:
    """Compare all cells of a row: text, a number, (value, low, high), values by seed, or values of heads in a list."""
    assert set(table.rows[row]) == set(expected) == {column.key for column in table.columns}
    for key, value in expected.items():
        cell = table.rows[row][key]
        where = f"{table.id} {row} {key}"
        if value is None or isinstance(value, str):
            assert cell == (value and Text(value)), where
            continue
        assert isinstance(cell, Number), where
        if isinstance(value, dict):
            assert cell.by_seed == value, where
        if isinstance(value, dict | list):
            values = list(value.values()) if isinstance(value, dict) else value
            n, mean = len(values), sum(values) / len(values)
            spread = key != "length" and n > 1  # attention lengths are shown as a range
            error = math.sqrt(sum((v - mean) ** 2 for v in values) / (n - 1) / n) if spread else None
            assert (cell.value, cell.standard_error) == (pytest.approx(mean), pytest.approx(error)), where
        elif isinstance(value, tuple):
            assert (cell.value, cell.low, cell.high) == pytest.approx(value), where
        else:
            assert (cell.value, cell.low, cell.high) == (pytest.approx(value), None, None), where


def units(table: Table, of: str = "ours") -> dict[str, str | None]:
    return {column.key: column.unit for column in table.columns if column.of == of}


def test_table_6(tables: dict[str, Table], finished: Setup) -> None:
    table = tables["table_6"]
    assert units(table) == {**LOSSES, "memory": "bpc"}
    assert units(table, "paper") == {"paper_init": "ppl", "paper_best": "ppl", "paper_length": "tokens"}
    assert list(table.rows) == list(PAPER_6)
    for arm, row in PAPER_6.items():
        first = read(finished, f"{arm}-seed1-lengths", "evaluation.json")["test"]["memory_at_evaluation"]
        theirs = {"paper_init": row.ppl_init, "paper_best": row.ppl_best, "paper_length": row.attention_length}
        memory = {"1": first["bpc"]} if first else None
        check_row(table, arm, {"arm": table.title(arm), **losses(finished, arm), "memory": memory, **theirs})
        words = ["recurrence" if row.recurrence else "no recurrence", row.loss]
        assert all(word in table.title(arm).replace(" loss", "").split(", ") for word in words)
    assert sum(row["memory"] is not None for row in table.rows.values()) == 2  # relative, without recurrence
    absolute = tables["table_6_full_loss"]
    assert units(absolute) == LOSSES
    for arm in ("no_recurrence-absolute-full_loss", "no_recurrence-al_rfou-full_loss"):
        check_row(absolute, arm, {"arm": absolute.title(arm), **losses(finished, arm)})


def test_table_7(tables: dict[str, Table], finished: Setup) -> None:
    table = tables["table_7"]
    assert units(table) == {"loss": "bpc", "difference": "bpc"}
    best = np.mean(list(losses(finished, f"shuffled_lines-{ON}")["init"].values()))
    for arm, ppl in ((ON, 25.2), ("recurrence-shaw-full_loss", 25.7), (OFF, 27.1)):
        loss = losses(finished, f"shuffled_lines-{arm}")["init"]
        above = {"difference": np.mean(list(loss.values())) - best, "paper": ppl, "paper_difference": ppl - 25.2}
        check_row(table, arm, {"arm": table.title(arm), "loss": loss, **above})


def test_table_8(tables: dict[str, Table], finished: Setup) -> None:
    table = tables["table_8"]
    fractions = {"r0.1": "tokens", "r0.5": "tokens", "r1.0": "tokens"}
    assert units(table) == {**fractions, "loss": "bpc", "limit": "tokens"}
    assert set(units(table, "paper").values()) == {"words"}
    keys = iter(table.rows)
    for group in (1, 2):
        for model in read(finished, f"recl-group{group}", "recl.json")["models"]:
            row = next(keys)
            (theirs,) = (r.recl for r in paper.TABLE_8 if (r.group, r.model) == (group, model["name"]))
            expected = {"arm": f"group {group}: {model['name']}", "limit": model["limit"]}
            for r in ("0.1", "0.5", "1.0"):
                found = model["recl"][r]
                high = None if r == "0.5" else found["high"]  # beyond the longest context
                expected |= {f"r{r}": (found["value"], found["low"], high), f"paper_r{r}": theirs[float(r)]}
                cell = table.number(row, f"r{r}")
                assert cell.at_least is (model["name"] == "QRNN")
            loss = table.number(row, "loss")
            assert (loss.value, loss.standard_error) == (model["bpc"][1], model["bpc_standard_error"][1])
            check_row(table, row, expected | {"loss": loss.value})


def test_differences_of_context_lengths(tables: dict[str, Table]) -> None:
    """The sample has 64 tokens for Transformer-XL at r = 0.1, 40 for the others, and the difference as 13 to 36."""
    table = tables["table_8_differences"]
    assert units(table) == {"difference": "tokens", "relative": "%"}
    assert units(table, "paper") == {"paper": "%"}
    paper_percent = {"qrnn": 80, "lstm": 125, "recurrence-shaw-full_loss": 75, OFF: 400 / 3}
    for row, percent in zip(table.rows, [*paper_percent.values(), 57200 / 128], strict=True):
        expected = {"difference": (24, 13, 36), "relative": (60, 32.5, 90), "paper": percent}
        check_row(table, row, {"arm": table.title(row), **expected})
        assert table.number(row, "difference").step == 8
    assert next(iter(table.rows)) == "recl_order/group1-qrnn"


def test_table_9(tables: dict[str, Table], finished: Setup) -> None:
    table = tables["table_9"]
    times = dict.fromkeys(("hidden", "lowest", "highest", "cached"), "×")
    assert units(table) == {**times, "milliseconds": "ms"}
    lines = read(finished, "speed", "speed.json")["results"]
    for line, theirs in zip(lines, (363, 773, None), strict=True):
        length, hidden = line["attention_len"], line["ratios"]["vanilla/hidden"]
        expected = {"hidden": hidden["median"], "lowest": hidden["min"], "highest": hidden["max"], "paper": theirs}
        expected |= {"cached": line["ratios"]["vanilla/cached"]["median"], "milliseconds": length * 0.03}
        check_row(table, f"char-{length}", {"arm": "characters", "length": length, **expected})


def test_differences_of_speed(tables: dict[str, Table], finished: Setup) -> None:
    table = tables["table_9_differences"]
    lines = read(finished, "speed", "speed.json")["results"]
    rounds = [line["seconds_per_token"] for line in lines]
    logs = [
        [math.log(a / b) for a, b in zip(r["vanilla"]["rounds"], r["hidden"]["rounds"], strict=True)] for r in rounds
    ]
    grows = [[b - a for a, b in zip(*pair, strict=True)] for pair in (logs[:2], logs[1:])]
    titles = ["speed-up at 800", "speed-up at 1,800 / at 800", "speed-up at 3,000 / at 1,800"]
    for i, (values, theirs) in enumerate(zip((logs[0], *grows), (36200, 100 * (773 / 363 - 1), None), strict=True)):
        mean = sum(values) / 3
        half = 4.302653 * math.sqrt(sum((v - mean) ** 2 for v in values) / 2 / 3)  # 97.5 % of t with 2 degrees
        percent = tuple(100 * (math.exp(end) - 1) for end in (mean, mean - half, mean + half))
        expected = {"arm": f"characters: {titles[i]}", "difference": percent, "relative": percent, "paper": theirs}
        check_row(table, f"speed_up_grows/char-{i}", expected)
    assert units(table) == {"difference": "%", "relative": "%"}


def test_table_10(tables: dict[str, Table], finished: Setup) -> None:
    table = tables["table_10"]
    cost = {"segment": "tokens", "trained": "tokens", "steps": "steps", "seconds": "s", "peak": "MB"}
    assert units(table) == {**cost, **LOSSES}
    rows = {f"{ON[:-9]}{row.loss}_loss": row for row in paper.TABLE_10 if row.recurrence}
    for equal in ("tokens", "steps"):
        without = [row for row in paper.TABLE_10 if not row.recurrence]
        rows |= {f"{OFF[:-9]}{row.loss}_loss-longer_segments_equal_{equal}": row for row in without}
    assert set(table.rows) == set(rows)
    for arm, row in rows.items():
        metrics = read(finished, f"{arm}-seed1", "metrics.json")
        expected = {
            "segment": {128: 32, 176: 44, 172: 43}[row.segment_len],  # the profile's 32, longer by the paper's factor
            "trained": metrics["tokens"],
            "steps": metrics["steps"],
            "seconds": metrics["seconds"],
            "peak": metrics["peak_memory_bytes"] / 1024 / 1024,
            "paper_segment": row.segment_len,
            "paper_init": row.ppl_init,
            "paper_best": row.ppl_best,
            "paper_length": row.attention_length,
        }
        check_row(table, arm, {"arm": table.title(arm), **losses(finished, arm), **expected})
        assert f"{row.loss} loss" in table.title(arm)


def test_main_results(tables: dict[str, Table], finished: Setup) -> None:
    table = tables["main_results"]
    assert units(table) == {"parameters": "million", "loss": "bpc"}
    assert units(table, "paper") == {"paper_parameters": "million", "paper": "bpc"}
    theirs = {ON: (41, 1.06), "no_recurrence-al_rfou-half_loss": (44, 1.11)}  # of Table 2, 12 layers
    for arm in (ON, OFF, "no_recurrence-al_rfou-half_loss", "qrnn", "lstm"):
        size, loss = theirs.get(arm, (None, None))
        measured = {
            "parameters": read(finished, f"{arm}-seed1", "metrics.json")["parameters"] / 1e6,
            "loss": of_seeds(finished, arm, lambda found: found["test"]["selected"]["init"]["bpc"]),
        }
        check_row(table, arm, {"arm": table.title(arm), **measured, "paper_parameters": size, "paper": loss})


def test_shapes_of_attention(tables: dict[str, Table], finished: Setup) -> None:
    with np.load(finished.runs / "attention" / "attention.npz") as file:
        rows = {name: [[v / sum(row) for v in row] for row in file[name].tolist()] for name in ("all", "a", "b", "d")}
    flat = {t: [sum(-v * math.log(v) for v in row) / math.log(40) for row in rows[t]] for t in rows}
    far = {t: [sum(j * v for j, v in enumerate(row)) for row in rows[t]] for t in rows}
    unlike = {
        t: [sum(abs(v - w) for v, w in zip(*pair, strict=True)) / 2 for pair in zip(rows[t], rows["all"], strict=True)]
        for t in rows
    }
    titles = {"all": "all terms", "a": "(a) content", "b": "(b) content and position", "d": "(d) position"}
    for t, title in titles.items():
        last = None if t == "all" else unlike[t]
        expected = {"arm": title, "flatness": flat[t], "distance": far[t], "unlike": last}
        check_row(tables["figures_5_to_7"], t, expected)
    assert units(tables["figures_5_to_7"]) == {"flatness": None, "distance": "tokens", "unlike": None}
    nine = [0.9] * 6
    pairs = {  # two sides, and the one that is 100 %
        "a_uniform": (flat["a"], nine, nine),
        "b_unlike_a": (unlike["a"], unlike["b"], unlike["a"]),
        "b_unlike_d": (unlike["d"], unlike["b"], unlike["d"]),
        "d_nearer": (far["a"], far["d"], far["a"]),
        "d_flatter": (flat["d"], flat["b"], flat["b"]),
    }
    table = tables["figures_5_to_7_differences"]
    assert list(table.rows) == [f"terms_look_as_described/{key}" for key in pairs]
    for key, (one, other, whole) in pairs.items():
        values = [a - b for a, b in zip(one, other, strict=True)]
        mean = sum(values) / 6
        half = 2.570582 * math.sqrt(sum((v - mean) ** 2 for v in values) / 5 / 6)  # 97.5 % of t with 5 degrees
        ends = (mean, mean - half, mean + half)
        relative = tuple(100 * end / (sum(whole) / 6) for end in ends)
        expected = {"difference": ends, "relative": relative, "paper": None}
        row = f"terms_look_as_described/{key}"
        check_row(table, row, {"arm": table.title(row), **expected})


def test_beyond(tables: dict[str, Table], finished: Setup) -> None:
    table = tables["beyond"]
    more = {"parameters": None, "states": None, "speed": "tokens/s", "peak": "MB"}
    assert units(table) == {**LOSSES, "recl": "tokens", **more}
    recl = {model["name"]: model["recl"]["0.1"] for model in read(finished, "recl-beyond", "recl.json")["models"]}
    assert len(table.rows) == 15
    for arm in table.rows:
        found = recl.get(table.title(arm))
        expected = {
            "recl": (found["value"], found["low"], found["high"]) if found else None,
            "parameters": read(finished, f"{arm}-seed1", "metrics.json")["parameters"],
            "states": 0 if arm.startswith("no_") else 128,
            "speed": of_seeds(finished, arm, lambda it: it["tokens"] / it["seconds"], train=True),
            "peak": of_seeds(finished, arm, lambda it: it["peak_memory_bytes"] / 1024 / 1024, train=True),
        }
        check_row(table, arm, {"arm": table.title(arm), **losses(finished, arm), **expected})


def arm_named(short: str) -> str:
    """Return the key of an arm from its short name in `DIFFERENCES`."""
    sign, name, *rest = re.fullmatch(r"(?:lines:)?([+-])(\w+)(.*)", short).groups()  # type: ignore[union-attr]
    words = (
        rest[0].replace("/half", "").replace("/no=", "-recipe_without_").replace("/long=", "-longer_segments_equal_")
    )
    words = ("-equal_parameters" if name in ("rope", "alibi", "none") else "") + words.replace("/", "-")
    key = f"{'recurrence' if sign == '+' else 'no_recurrence'}-{name}-{'half' if '/half' in short else 'full'}_loss"
    return f"{'shuffled_lines-' * short.startswith('lines:')}{key}{words}"


def token_losses(setup: Setup, arm: str, at: str) -> np.ndarray:
    """Losses of all positions, a row per seed."""
    folders = sorted(setup.runs.glob(f"{arm}-seed*-lengths"))
    return np.stack([np.load(folder / f"losses_test_{at}.npz")["nll"].astype(float) for folder in folders])


def in_blocks(losses_SN: np.ndarray) -> np.ndarray:
    """Means of the twelve blocks of 1,028 or 1,029 tokens that 12,345 tokens make."""
    return np.stack([[block.mean() for block in np.array_split(row, 12)] for row in losses_SN])


def chose_longer(selected: dict[str, Any]) -> bool:
    return bool(selected["attention_length"] and selected["attention_length"] > selected["init"]["attention_length"])


def spread_between_seeds(setup: Setup, value: Callable[[dict[str, Any]], float], skip_zeros: bool) -> NaiveSpread:
    """Pool the variance of a value of the evaluations over all arms."""
    arms: dict[str, list[float]] = {}
    for folder in setup.runs.glob("*-lengths"):
        found = value(read(setup, folder.name, "evaluation.json")["test"]["selected"])
        arms.setdefault(re.sub(r"-seed\d+-lengths", "", folder.name), []).append(found)
    kept = [values for values in arms.values() if any(values) or not skip_zeros]
    freedom = sum(len(values) - 1 for values in kept)
    return NaiveSpread(sum(sum((v - sum(vs) / len(vs)) ** 2 for v in vs) for vs in kept) / freedom, freedom)


def check_difference(
    table: Table, row: str, nats: tuple[float, float, float], worse: float, theirs: tuple[float, float] | None
) -> None:
    """Compare effect and ends (to 4 % of the width: the judge draws at random) in bits, percent, and the paper's."""
    for column, factor in (("difference", 1 / math.log(2)), ("relative", 100 / worse)):
        cell = table.number(row, column)
        low, effect, high = (factor * value for value in nats)
        assert cell.value == pytest.approx(effect, rel=1e-5), (row, column)
        assert (cell.low, cell.high) == pytest.approx((low, high), abs=0.04 * (high - low)), (row, column)
    expected = 100 * (1 - math.log(theirs[1]) / math.log(theirs[0])) if theirs else None
    cell = table.rows[row]["paper"]
    assert (cell.value if isinstance(cell, Number) else None) == pytest.approx(expected), row
    assert table.number(row, "tokens").value == 12_345


def test_differences_of_losses(tables: dict[str, Table], finished: Setup) -> None:
    spreads = {
        at: spread_between_seeds(finished, lambda selected, at=at: selected[at]["nll"], False)
        for at in ("init", "best")
    }
    judged = set()
    for name, row, better, worse, at, *ppl in (line.split() for line in DIFFERENCES.strip().splitlines()):
        prefix, sign, short = re.fullmatch(r"(beyond/)?([+-])?(.*)", row).groups()  # type: ignore[union-attr]
        row = f"{prefix or ''}{arm_named(sign + short)}" if sign else row
        one, other = (token_losses(finished, arm_named(arm), at) for arm in (worse, better))
        low, _, high = naive_interval(in_blocks(one), in_blocks(other), spreads[at])
        table = tables[f"{name}_differences"]
        assert units(table) == {"difference": "bpc", "relative": "%", "tokens": "tokens"}
        theirs = (float(ppl[0]), float(ppl[1])) if ppl else None
        check_difference(table, row, (low, one.mean() - other.mean(), high), one.mean(), theirs)
        judged.add((name, row))
    names = ("table_6", "table_7", "table_10", "beyond")
    shown = {(name, row) for name in names for row in tables[f"{name}_differences"].rows}
    assert {(name, row) for name, row in shown if "only_ours" not in row} == judged


def test_gains_of_longer_attention(tables: dict[str, Table], finished: Setup) -> None:
    def gain(selected: dict[str, Any]) -> float:
        return selected["init"]["nll"] - selected["best"]["nll"] if chose_longer(selected) else 0.0

    spread = spread_between_seeds(finished, gain, True)
    arms = {"ours": ON, "recurrence-shaw-full_loss": "recurrence-shaw-full_loss"}
    arms["no_recurrence-shaw-half_loss"] = "no_recurrence-shaw-half_loss"
    gains = {
        name: token_losses(finished, arm, "init") - token_losses(finished, arm, "best") for name, arm in arms.items()
    }
    loss = token_losses(finished, ON, "init").mean()
    for name in arms:  # in this world only ours chose a longer attention
        other = None if name == "ours" else 0 * in_blocks(gains[name])
        low, _, high = naive_interval(in_blocks(gains["ours"]), other, spread)
        row = f"only_ours_gains_from_longer_attention/{name}"
        check_difference(tables["table_6_differences"], row, (low, gains["ours"].mean(), high), loss, (27.02, 26.77))


def test_the_spread_of_gains_leaves_out_arms_that_kept_the_length_of_training(
    finished: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    pooled: list[list[list[float]]] = []

    def record(arms: list[list[float]]) -> SeedSpread:
        pooled.append(arms)
        return SeedSpread(1e-6, 9)

    monkeypatch.setattr(comparisons, "pooled_spread", record)
    table_6.section(finished, outcomes_of(finished))
    arms: dict[str, list[float]] = {}
    for folder in finished.runs.glob("*-lengths"):
        selected = read(finished, folder.name, "evaluation.json")["test"]["selected"]
        if chose_longer(selected):
            gain = selected["init"]["nll"] - selected["best"]["nll"]
            arms.setdefault(re.sub(r"-seed\d+-lengths", "", folder.name), []).append(gain)
    assert sorted(map(sorted, pooled[-1])) == sorted(map(sorted, arms.values()))


def test_differences_of_words_are_in_perplexity(finished: Setup, tmp_path: Path) -> None:
    """Of losses w and b in nats, exp(w) − exp(b) where both are means over all tokens and seeds."""
    setup = Setup(finished.profile, finished.overrides, tmp_path)
    outcomes = outcomes_of(setup, World(level="word"))
    found = {table.id: table for table in table_6.section(setup, outcomes).tables}
    row = "recurrence_helps/init"
    worse, better = (token_losses(setup, arm, "init").mean() for arm in (OFF, ON))
    table = found["table_6_differences"]
    assert units(table)["difference"] == "ppl"
    assert table.number(row, "difference").value == pytest.approx(math.exp(worse) - math.exp(better), rel=1e-5)
    low, relative = table.number(row, "difference").low, table.number(row, "relative").low
    assert low == pytest.approx(math.exp(better) * (math.exp((relative or 0) / 100 * worse) - 1), rel=1e-5)
    first = read(setup, f"{ON}-seed1-lengths", "evaluation.json")["test"]["selected"]
    assert (found["table_6"].number(ON, "init").by_seed or {})["1"] == first["init"]["ppl"]
    assert found["table_6"].number(ON, "init").digits == 2


def test_curves_of_table_6(finished: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    """Curves are drawn under the name of their arm; the first seed of each by length, every seed by training tokens."""
    drawn: dict[str, tuple[Any, ...]] = {}

    def record(path: Path, *words: Any, log_x: bool = False, dashed_label: str = "") -> None:
        drawn[path.stem] = (*words, log_x, dashed_label)

    monkeypatch.setattr(table_6, "line_figure", record)
    SECTIONS["table_6"].section(finished, outcomes_of(finished))
    curves, x_label, y_label, _, dashed, log_x, meaning = drawn["table_6_attention_lengths"]
    titles = {
        "recurrence, relative, full loss": ON,
        "recurrence, Shaw, full loss": "recurrence-shaw-full_loss",
        "no recurrence, relative, full loss": OFF,
        "no recurrence, relative, half loss": "no_recurrence-relative-half_loss",
        "no recurrence, Vaswani, half loss": "no_recurrence-absolute-half_loss",
        "no recurrence, Al-Rfou, half loss": "no_recurrence-al_rfou-half_loss",
    }
    assert list(curves) == list(titles)
    for title, arm in titles.items():
        sweep = read(finished, f"{arm}-seed1-lengths", "evaluation.json")["valid"]["sweep"]
        points = {row["attention_length"]: row["bpc"] for row in sweep["lengths"]}
        points = {sweep["init"]["attention_length"]: sweep["init"]["bpc"]} | points
        assert curves[title] == [(sorted(points), [points[n] for n in sorted(points)])]
        far = [(row["attention_length"], row["bpc"]) for row in sweep.get("unclamped", [])]
        assert dashed.get(title) == ([tuple(map(list, zip(*far, strict=True)))] if far else None)
    assert len(dashed) == 3
    assert ("attention length" in x_label, y_label, log_x) == (True, "validation loss (bits per byte)", True)
    assert meaning == "distances not clamped"
    curves, x_label, y_label, *_ = drawn["learning_curves"]
    assert (x_label, y_label) == ("training tokens", "validation loss (bits per byte)")
    assert list(curves) == ["recurrence, relative, full loss", "no recurrence, relative, full loss"]
    for title in curves:
        for seed, line in enumerate(curves[title], 1):
            text = (finished.runs / f"{titles[title]}-seed{seed}" / "validation.jsonl").read_text()
            rows = [json.loads(row) for row in text.splitlines()]
            assert line == ([row["tokens"] for row in rows], [row["val/bpc"] for row in rows])
        assert len(curves[title]) == 3


def test_figures_of_jobs_stand_above_their_captions(sections: list[Section], finished: Setup) -> None:
    figures = [figure for section in sections for figure in section.figures]
    found = {}
    for figure in figures:
        copied = finished.directory / figure.png
        for source in finished.runs.glob("*/*.png"):
            if source.read_bytes() == copied.read_bytes():
                found[f"{source.parent.name}/{source.stem}"] = figure.caption.partition(".")[0].partition(":")[0]
    assert found == {
        "recl-group1/gains_r0.1": "Figure 3, group 1",
        "recl-group1/contexts": "Figure 4, group 1",
        "recl-group2/gains_r0.1": "Figure 3, group 2",
        "recl-group2/contexts": "Figure 4, group 2",
        "speed/speed": "Time per token by attention length",
        "attention/by_distance": "Figure 5",
        "attention/text": "Figure 6",
        "attention/terms": "Figure 7",
        "recl-beyond/gains_r0.1": "Gain of a longer context, at the hardest tenth of positions",
        "recl-beyond/contexts": "Loss by context, all positions, ± standard error",
    }


def test_words_about_the_runs_have_their_numbers(sections: list[Section], finished: Setup) -> None:
    here = {section.id: section.here for section in sections}
    (samples,) = (section.samples for section in sections if section.samples)
    drawn = [("sample 1", "def", " f(x):", " g(y):\n"), ("sample 2", "def", " f(x):", " h(z):\n")]
    assert [(s.title, s.context, s.truth, s.text) for s in samples] == drawn
    for words in ("3 tokens of the test split", "500 new tokens", "40 most likely", "temperature 1."):
        assert words in here["appendix_e"]
    notes = {table.id: " ".join(table.notes) for section in sections for table in section.tables}
    first = read(finished, f"{ON}-seed1", "metrics.json")
    sizes = f"{first['parameters']:,} parameters, {first['steps']:,} steps"
    assert f"sample, {sizes}, segments of 32. Every row is scored on 12,345 tokens of the test split" in here["table_6"]
    assert "chosen on the first 50,000 tokens of validation" in here["table_6"]
    assert "at most 0.001 bpc above the best" in notes["table_6"]
    assert "reads with one of 128 tokens, first seed" in notes["table_6"]
    shuffled = read(finished, f"shuffled_lines-{ON}-seed1", "metrics.json")
    assert f"{shuffled['parameters']:,} parameters, {shuffled['steps']:,} steps" in here["table_7"]
    assert f"sample, byte level, {first['tokens']:,} tokens of training." in here["main_results"]
    assert "800 positions of sample (test), in 30 blocks" in here["table_8"]
    assert "grows from 8 to 16 in steps of 8" in here["table_8"]
    assert "the memory has 128 tokens" in " ".join(here["table_10"].replace("recurrence ", "").split())
    assert "6 heads, averaged over 5,000 tokens of sample (valid) that see all 40 relative" in here["figures_5_to_7"]
    assert "over 40 relative positions" in notes["figures_5_to_7"]
    assert "mean distance 19.5;" in notes["figures_5_to_7"]
