"""Every number of every table, and every curve that is drawn, computed a second time from the result files."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from experiments import paper
from experiments.engine.jobs import composed
from experiments.engine.profiles import Setup
from experiments.report.sections import Number, Section, Table, Text
from experiments.reproduce import SECTIONS
from experiments.tables import beyond, comparisons, regime, table_6, table_10
from experiments.tables.intervals import SeedSpread, student
from experiments.tables.memory import saved_bytes
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
    table_6 half_loss_rescues_absolute_encodings/absolute_random_half   -absolute/half -absolute/random_half init
    table_6 half_loss_rescues_absolute_encodings/al_rfou_random_half    -al_rfou/half -al_rfou/random_half init
    table_6 beside/half_loss/relative                           -relative/half -relative init 29.59 30.10
    table_6 beside/half_loss/relative_random_half               -relative/half -relative/random_half init
    table_7 recurrence_helps_without_long_dependencies/init     lines:+relative lines:-relative init 27.1 25.2
    table_10 recurrence_beats_longer_segments/full              +relative -relative/long=memory best 27.98 26.77
    table_10 beside/-relative/long=tokens                       +relative -relative/long=tokens best 27.98 26.77
    table_10 beside/-relative/long=steps                        +relative -relative/long=steps best 27.98 26.77
    table_10 beside/-relative/half/long=tokens          +relative/half -relative/half/long=tokens best 28.83 28.33
    table_10 beside/-relative/half/long=steps           +relative/half -relative/half/long=steps best 28.83 28.33
    regime regime/own                                           +relative -relative init
    regime regime/adam                                          +relative/Adam -relative/Adam init
    regime regime/longer_memory                         +relative/memory_twice_as_long -relative init
    regime regime/longer_segments       +relative/segments_twice_as_long -relative/segments_twice_as_long init
    beyond beyond/relative_memory                               +relative -relative init
    beyond memory_helps_with_rope/init                          +rope -rope init
    beyond memory_helps_without_an_encoding/init                +none -none init
    beyond an_encoding_is_needed/relative                       +relative +none best
    beyond later_encodings_are_better/rope                      +rope +relative best
    beyond later_encodings_are_better/alibi                     +alibi +relative best
    beyond a_gate_replaces_an_encoding/none     +none/forget_gate +none best
    beyond a_gate_replaces_an_encoding/relative +none/forget_gate +relative best
    beyond forgetting_helps/init                +relative/forget_gate +relative init
    beyond gates_behind_attention_help/head     +relative/gate_of_every_head +relative init
    beyond gates_behind_attention_help/element  +relative/gate_of_every_element +relative init
    beyond a_gated_residual_helps/init          +relative/gated_residual +relative init
    beyond memory_tokens_are_a_memory/4         +relative/4_memory_tokens_and_no_states -relative init
    beyond memory_tokens_are_a_memory/16        +relative/16_memory_tokens_and_no_states -relative init
    beyond memory_tokens_replace_states/4       +relative/4_memory_tokens_and_no_states +relative init
    beyond memory_tokens_replace_states/16      +relative/16_memory_tokens_and_no_states +relative init
    beyond memory_tokens_add_to_states/4        +relative/4_memory_tokens_and_states +relative/k=1 init
    beyond memory_tokens_add_to_states/16       +relative/16_memory_tokens_and_states +relative/k=1 init
    beyond memory_tokens_need_gradients/init    +relative/16_memory_tokens_and_no_states +relative/16=alone init
    beyond gradients_help/1                     +relative/k=1 +relative init
    beyond gradients_help/3                     +relative/k=3 +relative init
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
    of = "selected" if arm.endswith(("and_states", "no_states", "or_gradient")) else "sweep"  # memory tokens: no sweep
    swept = {
        "init": lambda found: found["test"]["selected"]["init"]["bpc"],
        "best": lambda found: found["test"]["selected"]["best"]["bpc"],
        "length": lambda found: found["valid"]["sweep"]["attention_length"],
        "valid_init": lambda found: found["valid"][of]["init"]["bpc"],
        "valid_best": lambda found: found["valid"][of]["best"]["bpc"],
    }
    absent = {"length": None} if of == "selected" else {}
    return {name: of_seeds(setup, arm, value) for name, value in swept.items() if name not in absent} | absent


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
    halves = tables["table_6_losses"]
    assert units(halves) == LOSSES
    encodings, scored = ("absolute", "al_rfou", "relative"), ("full", "random_half", "half")
    assert list(halves.rows) == [f"no_recurrence-{name}-{loss}_loss" for name in encodings for loss in scored]
    for arm in halves.rows:
        check_row(halves, arm, {"arm": halves.title(arm), **losses(finished, arm)})


def test_table_7(tables: dict[str, Table], finished: Setup) -> None:
    table = tables["table_7"]
    assert units(table) == {"loss": "bpc", "difference": "bpc"}
    best = np.mean(list(losses(finished, f"shuffled_lines-{ON}")["init"].values()))
    for arm, ppl in ((ON, 25.2), ("recurrence-shaw-full_loss", 25.7), (OFF, 27.1)):
        loss = losses(finished, f"shuffled_lines-{arm}")["init"]
        above = {"difference": np.mean(list(loss.values())) - best, "paper": ppl, "paper_difference": ppl - 25.2}
        check_row(table, arm, {"arm": table.title(arm), "loss": loss, **above})


def recl_of_seeds(setup: Setup, group: int) -> dict[str, dict[str, Any]]:
    """Entries of the models of a group, by seed, by name."""
    found: dict[str, dict[str, Any]] = {}
    for folder in sorted(setup.runs.glob(f"recl-group{group}-seed*")):
        for model in read(setup, folder.name, "recl.json")["models"]:
            found.setdefault(model["name"], {})[folder.name[-1]] = model
    return found


def test_table_8(tables: dict[str, Table], finished: Setup) -> None:
    table = tables["table_8"]
    lengths = {"r0.1": "tokens", "r0.5": "tokens", "r1.0": "tokens", "guarded": "tokens"}
    assert units(table) == {**lengths, "loss": "bpc", "limit": "tokens"}
    assert set(units(table, "paper").values()) == {"words"}
    keys = iter(table.rows)
    for group in (1, 2):
        for name, models in recl_of_seeds(finished, group).items():
            row = next(keys)
            (theirs,) = (r.recl for r in paper.TABLE_8 if (r.group, r.model) == (group, name))
            expected: dict[str, Any] = {"arm": f"group {group}: {name}", "limit": models["1"]["limit"]}
            for r in ("0.1", "0.5", "1.0"):
                expected[f"r{r}"] = {seed: model["recl"][r]["value"] for seed, model in models.items()}
                expected[f"paper_r{r}"] = theirs[float(r)]
                assert table.number(row, f"r{r}").at_least == (True if name == "QRNN" and r != "0.1" else None)
            expected["guarded"] = {seed: model["recl"]["0.1"]["guarded"] for seed, model in models.items()}
            expected["loss"] = {seed: model["bpc"][1] for seed, model in models.items()}
            assert table.number(row, "guarded").at_least == (True if name == "LSTM" else None)
            check_row(table, row, expected)
    assert len(recl_of_seeds(finished, 1)["QRNN"]) == 3


def test_differences_of_context_lengths(tables: dict[str, Table], finished: Setup) -> None:
    """The spread between seeds is pooled over the five differences; the guarded RECL of the LSTM is a lower bound."""
    table = tables["table_8_differences"]
    assert units(table) == {"difference": "tokens", "relative": "%"}
    assert units(table, "paper") == {"paper": "%"}
    percent = [80, 125, 75, 400 / 3, 57200 / 128]
    keys = ["group1-qrnn", "group1-lstm"]
    keys += [f"group2-{arm}" for arm in ("recurrence-shaw-full_loss", OFF, "no_recurrence-al_rfou-half_loss")]
    assert list(table.rows) == [f"{kind}/{key}" for kind in ("recl_order", "guarded") for key in keys]
    for kind, value in (("recl_order", "value"), ("guarded", "guarded")):
        sides = {}
        for group in (1, 2):
            own, *others = (
                [m["recl"]["0.1"][value] for m in of.values()] for of in recl_of_seeds(finished, group).values()
            )
            sides |= {(group, i): (own, other) for i, other in enumerate(others)}
        differences = [[a - b for a, b in zip(*pair, strict=True)] for pair in sides.values()]
        freedom = sum(len(of) - 1 for of in differences)
        variance = sum((d - sum(of) / len(of)) ** 2 for of in differences for d in of) / freedom
        for key, theirs, of, (_, other) in zip(keys, percent, differences, sides.values(), strict=True):
            mean, half = sum(of) / len(of), student(freedom) * math.sqrt(variance / len(of))
            low = None if (kind, key) == ("guarded", "group1-lstm") else mean - half
            ends = (mean, low, mean + half)
            relative = tuple(end if end is None else 100 * end / (sum(other) / len(other)) for end in ends)
            row = f"{kind}/{key}"
            expected = {"difference": ends, "relative": relative, "paper": theirs if kind == "recl_order" else None}
            check_row(table, row, {"arm": table.title(row), **expected})
            assert table.number(row, "difference").step == 8


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
    grows = [b - a for a, b in zip(logs[0], logs[-1], strict=True)]
    ends = {"shortest": ("speed-up at 800", logs[0], 36200), "growth": ("speed-up at 3,000 / at 800", grows, None)}
    assert list(table.rows) == [f"speed_up_grows/char-{key}" for key in ends]
    for key, (title, values, theirs) in ends.items():
        mean = sum(values) / 3
        half = 4.302653 * math.sqrt(sum((v - mean) ** 2 for v in values) / 2 / 3)  # 97.5 % of t with 2 degrees
        percent = tuple(100 * (math.exp(end) - 1) for end in (mean, mean - half, mean + half))
        expected = {"arm": f"characters: {title}", "difference": percent, "relative": percent, "paper": theirs}
        check_row(table, f"speed_up_grows/char-{key}", expected)
    assert units(table) == {"difference": "%", "relative": "%"}


def test_table_10(tables: dict[str, Table], finished: Setup) -> None:
    table = tables["table_10"]
    cost = {"segment": "tokens", "trained": "tokens", "steps": "steps", "seconds": "s", "memory": "MB"}
    assert units(table) == {**cost, **LOSSES}
    rows = {f"{ON[:-9]}{row.loss}_loss": row for row in paper.TABLE_10 if row.recurrence}
    for equal in ("tokens", "steps"):
        without = [row for row in paper.TABLE_10 if not row.recurrence]
        rows |= {f"{OFF[:-9]}{row.loss}_loss-longer_segments_equal_{equal}": row for row in without}
    equal = f"{OFF}-longer_segments_equal_memory"
    rows[equal] = next(row for row in without if row.loss == "full")
    assert set(table.rows) == set(rows)
    configs = {job.name: composed(job.overrides) for job in table_10.jobs(finished) if job.command == "train"}
    longest = configs[f"{equal}-seed1"].data.segment_len
    assert longest % 8 == 0
    assert longest > 32
    assert table.number(equal, "memory").value <= table.number(ON, "memory").value
    for arm, row in rows.items():
        metrics = read(finished, f"{arm}-seed1", "metrics.json")
        expected = {
            # the profile's 32, longer by the paper's factor
            "segment": longest if arm == equal else {128: 32, 176: 44, 172: 43}[row.segment_len],
            "trained": metrics["tokens"],
            "steps": metrics["steps"],
            "seconds": metrics["seconds"],
            "memory": saved_bytes(configs[f"{arm}-seed1"]) / 1024 / 1024,
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
    key, size = f"{ON}-dynamic_evaluation", read(finished, f"{ON}-seed1", "metrics.json")["parameters"] / 1e6
    learned = read(finished, "dynamic-seed1", "evaluation.json")
    static, dynamic = learned["test"]["bpc"], learned["test"]["dynamic"]
    measured = {"parameters": size, "loss": dynamic["bpc"], "paper_parameters": 277, "paper": 0.94}
    check_row(table, key, {"arm": "Transformer-XL, dynamic evaluation", **measured})
    (note,) = table.notes
    gain, half = dynamic["below_static"]["bpc"], 1.96 * dynamic["below_static"]["standard_error"]["bpc"]
    assert f"the first 128,000 tokens of test. Static evaluation has {static:.3f} bpc there" in note
    assert f"dynamic is {gain:.3f} below, 95 % interval [{gain - half:.3f}, {gain + half:.3f}]." in note
    assert f"Validation chose lr {learned['dynamic']['lr']:g} and decay {learned['dynamic']['decay']:g}." in note


def test_main_results_without_dynamic_evaluation(finished: Setup) -> None:
    outcomes = outcomes_of(finished)
    others = frozenset(job.name for job in outcomes.jobs if job.name != "dynamic-seed1")
    table = SECTIONS["main_results"].section(finished, replace(outcomes, finished=others)).tables[0]
    assert f"{ON}-dynamic_evaluation" not in table.rows
    assert table.rows
    assert not table.notes


@pytest.mark.parametrize("optimizer", ["muon", "adam"])
@pytest.mark.parametrize("suffix", ["", "_centred"])
def test_shapes_of_attention(tables: dict[str, Table], finished: Setup, optimizer: str, suffix: str) -> None:
    """The heads of all runs with an optimizer, of the terms as trained or of the centred split."""
    rows: dict[str, list[list[float]]] = {name: [] for name in ("all", "a", "b", "d")}
    folders = sorted(finished.runs.glob("attention-adam-seed*" if optimizer == "adam" else "attention-seed*"))
    for folder in folders:
        with np.load(folder / "attention.npz") as file:
            for name, heads in rows.items():
                of_file = file[name if name == "all" else name + suffix].tolist()
                heads += [[v / sum(row) for v in row] for row in of_file]
    flat = {t: [sum(-v * math.log(v) for v in row) / math.log(40) for row in rows[t]] for t in rows}
    far = {t: [sum(j * v for j, v in enumerate(row)) for row in rows[t]] for t in rows}
    unlike = {
        t: [sum(abs(v - w) for v, w in zip(*pair, strict=True)) / 2 for pair in zip(rows[t], rows["all"], strict=True)]
        for t in rows
    }
    n = 6 * len(folders)
    assert len(rows["all"]) == n >= 12
    split, words = ("centred", "q centred") if suffix else ("trained", "as trained")
    block, named = f"{optimizer}-{split}", f"{optimizer.capitalize()}, {words}: "
    titles = {"all": "all terms", "a": "(a) content", "b": "(b) content and position", "d": "(d) position"}
    for t, title in titles.items():
        last = None if t == "all" else unlike[t]
        expected = {"arm": named + title, "flatness": flat[t], "distance": far[t], "unlike": last}
        check_row(tables["figures_5_to_7"], f"{block}-{t}", expected)
    assert units(tables["figures_5_to_7"]) == {"flatness": None, "distance": "tokens", "unlike": None}
    nine = [0.9] * n
    pairs = {  # two sides, and the one that is 100 %
        "a_uniform": (flat["a"], nine, nine),
        "b_unlike_a": (unlike["a"], unlike["b"], unlike["a"]),
        "b_unlike_d": (unlike["d"], unlike["b"], unlike["d"]),
        "d_nearer": (far["a"], far["d"], far["a"]),
        "d_flatter": (flat["d"], flat["b"], flat["b"]),
    }
    table = tables["figures_5_to_7_differences"]
    assert len(table.rows) == 4 * len(pairs)
    for key, (one, other, whole) in pairs.items():
        values = [a - b for a, b in zip(one, other, strict=True)]
        mean = sum(values) / n
        half = student(n - 1) * math.sqrt(sum((v - mean) ** 2 for v in values) / (n - 1) / n)
        ends = (mean, mean - half, mean + half)
        relative = tuple(100 * end / (sum(whole) / n) for end in ends)
        expected = {"difference": ends, "relative": relative, "paper": None}
        row = f"terms_look_as_described/{block}-{key}"
        check_row(table, row, {"arm": table.title(row), **expected})
        assert table.title(row).startswith(named)


def test_beyond(tables: dict[str, Table], finished: Setup) -> None:
    table = tables["beyond"]
    more = {"parameters": None, "states": None, "tokens": None, "lr": None, "speed": "tokens/s", "peak": "MB"}
    assert units(table) == {**LOSSES, "recl": "tokens", **more}
    recl = {model["name"]: model["recl"]["0.1"] for model in read(finished, "recl-beyond", "recl.json")["models"]}
    assert len(table.rows) == len(beyond.NAMED) == 27
    runs = {job.name: job for job in beyond.jobs(finished)}
    for arm in table.rows:
        found = recl.get(table.title(arm))
        expected = {
            "recl": (found["value"], found["low"], found["high"]) if found else None,
            "parameters": read(finished, f"{arm}-seed1", "metrics.json")["parameters"],
            "states": 0 if arm.startswith("no_") or "no_states" in arm else 32,
            "tokens": int(tokens[1]) if (tokens := re.search(r"(\d+)_memory_tokens", arm)) else 0,
            "lr": composed(runs[f"{arm}-seed1"].overrides).optimizer.lr,
            "speed": of_seeds(finished, arm, lambda it: it["tokens"] / it["seconds"], train=True),
            "peak": of_seeds(finished, arm, lambda it: it["peak_memory_bytes"] / 1024 / 1024, train=True),
        }
        check_row(table, arm, {"arm": table.title(arm), **losses(finished, arm), **expected})


def test_regime(tables: dict[str, Table], finished: Setup) -> None:
    table = tables["regime_losses"]
    assert units(table) == {"on": "bpc", "off": "bpc", "lr": None}
    own = "memory_twice_as_long"
    for row, words in (
        ("own", ""),
        ("adam", "-Adam"),
        ("longer_memory", f"-{own}"),
        ("longer_segments", "-segments_twice_as_long"),
    ):
        on, off = (losses(finished, arm)["init"] for arm in (f"{ON}{words}", OFF if own in words else f"{OFF}{words}"))
        config = composed(next(job.overrides for job in regime.jobs(finished) if job.name == f"{ON}{words}-seed1"))
        check_row(table, row, {"arm": table.title(row), "on": on, "off": off, "lr": config.optimizer.lr})
    titles = [table.title(row).split(", ") for row in table.rows]
    assert [title[0] for title in titles] == ["Muon", "Adam", "Muon", "Muon"]
    assert [title[-1] for title in titles] == ["memory 32", "memory 32", "memory 64", "memory 64"]


def arm_named(short: str) -> str:
    """Return the key of an arm from its short name in `DIFFERENCES`."""
    sign, name, *rest = re.fullmatch(r"(?:lines:)?([+-])(\w+)(.*)", short).groups()  # type: ignore[union-attr]
    words = (
        rest[0]
        .replace("/half", "")
        .replace("/random_half", "")
        .replace("/no=", "-recipe_without_")
        .replace("/k=1", "-gradient_through_1_earlier_segment")
        .replace("/k=3", "-gradient_through_3_earlier_segments")
        .replace("/16=alone", "-16_memory_tokens_and_no_states_or_gradient")
        .replace("/long=", "-longer_segments_equal_")
    )
    loss = re.findall("/((?:random_)?half)", short)
    words = words.replace("/", "-") or ("-equal_parameters" if name in ("rope", "alibi", "none") else "")
    key = f"{'recurrence' if sign == '+' else 'no_recurrence'}-{name}-{loss[0] if loss else 'full'}_loss"
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


def spread_between_seeds(setup: Setup, value: Callable[[dict[str, Any]], float]) -> NaiveSpread:
    """Variance of what arm and seed leave of a value of the evaluations, by removing their means in turn.

    All arms share a seed, so that arms and seeds of a text take as many degrees of freedom as there are, less one.
    """
    texts: dict[bool, dict[tuple[str, str], float]] = {True: {}, False: {}}
    for folder in setup.runs.glob("*-lengths"):
        arm, seed = folder.name.removesuffix("-lengths").rsplit("-seed", 1)
        selected = read(setup, folder.name, "evaluation.json")["test"]["selected"]
        texts[arm.startswith("shuffled_lines")][arm, seed] = value(selected)
    total, freedom = 0.0, 0
    for runs in texts.values():
        for _ in range(200):
            for side in (0, 1):
                for name in {key[side] for key in runs}:
                    keys = [key for key in runs if key[side] == name]
                    mean = sum(runs[key] for key in keys) / len(keys)
                    runs.update({key: runs[key] - mean for key in keys})
        total += sum(rest**2 for rest in runs.values())
        freedom += len(runs) - len({arm for arm, _ in runs}) - len({seed for _, seed in runs}) + 1
    return NaiveSpread(total / freedom, freedom)


def spread_of_gains(setup: Setup) -> NaiveSpread:
    """Variance between the seeds of the arms of which a run gained."""
    arms: dict[str, list[float]] = {}
    for folder in setup.runs.glob("*-lengths"):
        selected = read(setup, folder.name, "evaluation.json")["test"]["selected"]
        gain = selected["init"]["nll"] - selected["best"]["nll"] if chose_longer(selected) else 0.0
        arms.setdefault(re.sub(r"-seed\d+-lengths", "", folder.name), []).append(gain)
    kept = [values for values in arms.values() if any(values)]
    freedom = sum(len(values) - 1 for values in kept)
    return NaiveSpread(sum(sum((v - sum(vs) / len(vs)) ** 2 for v in vs) for vs in kept) / freedom, freedom)


def of_a_difference(spread: NaiveSpread) -> NaiveSpread:
    return NaiveSpread(2 * spread.variance, spread.freedom)


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
        at: of_a_difference(spread_between_seeds(finished, lambda selected, at=at: selected[at]["nll"]))
        for at in ("init", "best")
    }
    judged = set()
    for name, row, better, worse, at, *ppl in (line.split() for line in DIFFERENCES.strip().splitlines()):
        prefix, sign, short = re.fullmatch(r"(beyond/|beside/)?([+-])?(.*)", row).groups()  # type: ignore[union-attr]
        row = f"{prefix or ''}{arm_named(sign + short)}" if sign else row
        one, other = (token_losses(finished, arm_named(arm), at) for arm in (worse, better))
        one, other = one[: len(other)], other[: len(one)]  # of the seeds that both have
        low, _, high = naive_interval(in_blocks(one) - in_blocks(other), spreads[at])
        table = tables[f"{name}_differences"]
        assert units(table) == {"difference": "bpc", "relative": "%", "tokens": "tokens"}
        theirs = (float(ppl[0]), float(ppl[1])) if ppl else None
        check_difference(table, row, (low, one.mean() - other.mean(), high), one.mean(), theirs)
        judged.add((name, row))
    names = ("table_6", "table_7", "table_10", "regime", "beyond")
    shown = {(name, row) for name in names for row in tables[f"{name}_differences"].rows}
    assert {(name, row) for name, row in shown if "only_ours" not in row} == judged


def test_gains_of_longer_attention(tables: dict[str, Table], finished: Setup) -> None:
    spread = spread_of_gains(finished)
    arms = {"ours": ON, "recurrence-shaw-full_loss": "recurrence-shaw-full_loss"}
    arms["no_recurrence-shaw-half_loss"] = "no_recurrence-shaw-half_loss"
    gains = {
        name: token_losses(finished, arm, "init") - token_losses(finished, arm, "best") for name, arm in arms.items()
    }
    loss = token_losses(finished, ON, "init").mean()
    own = token_losses(finished, OFF, "init") - token_losses(finished, OFF, "best")
    low, _, high = naive_interval(in_blocks(own), spread)
    row, worse = "only_ours_gains_from_longer_attention/ours_no_recurrence", token_losses(finished, OFF, "init").mean()
    check_difference(tables["table_6_differences"], row, (low, own.mean(), high), worse, (29.59, 29.02))
    for name in arms:  # in this world only ours chose a longer attention
        of_value = spread if name == "ours" else of_a_difference(spread)
        low, _, high = naive_interval(in_blocks(gains["ours"]), of_value)
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
        "recl-group1-seed1/gains_r0.1": "Figure 3, group 1",
        "recl-group1-seed1/contexts": "Figure 4, group 1",
        "recl-group1-seed1/differences": "Figure 4, group 1, as differences",
        "recl-group2-seed1/gains_r0.1": "Figure 3, group 2",
        "recl-group2-seed1/contexts": "Figure 4, group 2",
        "recl-group2-seed1/differences": "Figure 4, group 2, as differences",
        "speed/speed": "Time per token by attention length",
        "attention-seed1/by_distance": "Figure 5",
        "attention-seed1/text": "Figure 6",
        "attention-seed1/terms": "Figure 7",
        "recl-beyond/gains_r0.1": "Gain of a longer context, at the hardest tenth of positions",
        "recl-beyond/contexts": "Loss by context, all positions",
        "recl-beyond/differences": "Loss minus that of the relative encoding, ± standard error of the difference",
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
    assert "reads with one of 32 tokens, first seed" in notes["table_6"]
    shuffled = read(finished, f"shuffled_lines-{ON}-seed1", "metrics.json")
    assert f"{shuffled['parameters']:,} parameters, {shuffled['steps']:,} steps" in here["table_7"]
    assert f"sample, byte level, {first['tokens']:,} tokens of training." in here["main_results"]
    assert "800 positions of sample (test), in 30 blocks over" in here["table_8"]
    assert "grows from 8 to 16 in steps of 8" in here["table_8"]
    assert "the memory has 32 tokens" in " ".join(here["table_10"].replace("recurrence ", "").split())
    assert (
        "6 heads each, averaged over 5,000 tokens of sample (valid) that see all 40 relative" in here["figures_5_to_7"]
    )
    assert "over 40 relative positions" in notes["figures_5_to_7"]
    assert "mean distance 19.5;" in notes["figures_5_to_7"]
