"""Every value of `recl.json` and `losses.npz`, computed again from the losses of single windows and positions."""

import hashlib
import json
import math
import time
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from tests.evaluation.kept_figures import Figures, bands, curves, kept_figures
from tests.evaluation.scored import by_blocks
from tests.evaluation.small_runs import SmallRuns
from txl_lightning.config.schemas import LoggerConfig
from txl_lightning.evaluation.options import ReclOptions
from txl_lightning.recl import command
from txl_lightning.recl.command import line_series, run
from txl_lightning.recl.effective_context import relative_effective_context_lengths
from txl_lightning.recl.loss_by_context import context_gains, key_tokens
from txl_lightning.runs.trained import load_trained

CONTEXTS, FRACTIONS, THRESHOLD, SEED, SAMPLES = [4, 8, 12, 16], [0.3, 1.0], 0.02, 3, 25
N = 100  # positions
NAMES, LABELS = ["relative", "absolute", "lagging"], ["x", "y", "x"]
LAGGING = "py:tests.recl.lagging_model.Lagging"
GROUPS = {"x": ["relative", "lagging"], "y": ["absolute"]}
LIMITS = {"relative": None, "absolute": 8, "lagging": None}


class Measured(NamedTuple):
    """Results of a group of two runs and a function."""

    results: dict[str, Any]
    losses: dict[str, np.ndarray]  # [C, P], in float64
    arrays: dict[str, np.ndarray]  # of losses.npz
    blocks: np.ndarray
    tokens: bytes
    seconds: float
    figures: Figures
    page: str

    def model(self, name: str) -> dict[str, Any]:
        return self.results["models"][NAMES.index(name)]


@pytest.fixture(scope="module")
def measured(runs: SmallRuns, tmp_path_factory: pytest.TempPathFactory) -> Measured:
    directory, kept = tmp_path_factory.mktemp("values"), {}
    words = ["a cat ", "a bat ", "the 7 ", "an "]  # most of six bytes, as far as `lagging` looks back
    content = "".join(words[i] for i in np.random.default_rng(0).integers(0, 4, 600)).encode()
    n_train = len(content) * 9 // 10
    content = content[: n_train - 1] + b"!" + content[n_train:]  # the last token of the split occurs once
    (directory / "text.txt").write_bytes(content)
    given = {"models": [LAGGING], "names": NAMES, "groups": LABELS, "fractions": FRACTIONS, "threshold": THRESHOLD}
    given |= {"first_context": 4, "step": 4, "max_context": 16, "n_positions": N, "bootstrap": SAMPLES, "seed": SEED}
    given |= {"data_path": str(directory / "text.txt"), "num_threads": 1, "split": "train"}
    paths = [runs.checkpoint(kind) for kind in NAMES[:2]]
    measure = command._measure
    with kept_figures() as figures, pytest.MonkeyPatch.context() as patch:
        patch.setattr(command, "_measure", lambda *given: kept.update(given[2]) or measure(*given))
        started = time.perf_counter()
        run(ReclOptions(paths, logger=LoggerConfig(name="none"), **given), directory)
        seconds = time.perf_counter() - started
    results = json.loads((directory / "recl.json").read_text())
    with np.load(directory / "losses.npz", allow_pickle=False) as file:
        arrays = dict(file)
    page = (directory / "recl.md").read_text().replace("\\", "")  # without the escapes of Markdown
    return Measured(results, kept, arrays, arrays["blocks"], content[:n_train], seconds, figures, page)


def errors(values_CP: np.ndarray, blocks: np.ndarray) -> list[list[float]]:
    """Means, and their standard errors over blocks."""
    return np.array([(values_P.mean(), by_blocks(values_P, blocks, 1)[0]) for values_P in values_CP]).T.tolist()


def test_what_was_asked_and_read_is_stated(measured: Measured, runs: SmallRuns) -> None:
    results, positions = measured.results, measured.arrays["positions"]
    stated = {"contexts": CONTEXTS, "fractions": FRACTIONS, "threshold": THRESHOLD, "seed": SEED, "bootstrap": SAMPLES}
    stated |= {"split": "train", "first_context": 4, "step": 4, "context_unit": "token", "unit": "bpb"}
    stated |= {"precision": "32-true", "key_contexts": [4, 16], "key_gain": 2.0, "documents": "respect"}
    assert results.items() >= stated.items()
    checksum = hashlib.sha256(measured.tokens).hexdigest()
    assert results["corpus"].items() >= {"name": "text.txt", "level": "byte", "sha256": checksum}.items()
    n_blocks = len(set(measured.blocks.tolist()))
    assert results["positions"] == {"seed": None, "number": N, "blocks": n_blocks, "cut": 0}
    assert (n_blocks, positions.max()) == (30, len(measured.tokens) - 1)
    assert 0 < results["seconds"] < measured.seconds + 0.01


def test_models_are_described(measured: Measured, runs: SmallRuns) -> None:
    for name in NAMES[:2]:
        path, model = runs.checkpoint(name), measured.model(name)
        assert model["checkpoint"] == path
        assert model["sha256"] == hashlib.sha256(Path(path).read_bytes()).hexdigest()
        assert (model["step"], model["tokens_trained"]) == (2, 2 * 4 * 8)  # steps, streams, segment
    lagging = measured.model("lagging")
    assert lagging["checkpoint"] == LAGGING
    assert {lagging[field] for field in ("sha256", "step", "tokens_trained")} == {None}
    fields = ("name", "kind", "scoring", "limit", "clamp_len", "trained_len", "begin_of_text", "group")
    assert [[model[field] for field in fields] for model in measured.results["models"]] == [
        ["relative", "txl_smoke, relative, memory 8", "one pass", None, 15, 16, None, "x"],
        ["absolute", "txl_smoke, absolute, no recurrence", "direct", 8, -1, 8, None, "y"],
        ["lagging", "Lagging", "one pass", None, None, None, None, "x"],
    ]


@torch.no_grad()
def test_losses_are_those_of_single_windows(measured: Measured, runs: SmallRuns) -> None:
    tokens, positions = torch.tensor([[*measured.tokens]]), measured.arrays["positions"]
    model: Any = load_trained(runs.checkpoint("relative")).model
    alone = model.with_lengths(mem_len=0, same_length=False, clamp_len=15)
    for p, (i, c) in product((0, N - 1), enumerate(CONTEXTS)):
        window = tokens[:, positions[p] - c : positions[p] + 1]
        expected = float(alone.score(window[:, :-1], window[:, -1:], None)[0])
        assert measured.losses["relative"][i, p] == pytest.approx(expected, rel=1e-5)
    assert measured.arrays["models"].tolist() == NAMES
    assert measured.arrays["contexts"].tolist() == CONTEXTS
    stacked = [measured.losses[name] for name in NAMES]
    np.testing.assert_allclose(measured.arrays["nll"], stacked, rtol=1e-6, atol=1e-6)


def test_losses_have_means_and_errors_in_both_units(measured: Measured) -> None:
    for name in NAMES:
        model = measured.model(name)
        nll, error = errors(measured.losses[name], measured.blocks)
        np.testing.assert_allclose(model["nll"], nll, rtol=1e-9)
        np.testing.assert_allclose(model["nll_standard_error"], error, rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(model["bpb"], np.log2(np.exp(nll)), rtol=1e-9)
        np.testing.assert_allclose(model["bpb_standard_error"], np.array(error) * np.log2(np.e), rtol=1e-9, atol=1e-12)
        gains = [(4, 8, nll[0] - nll[1]), (8, 16, nll[1] - nll[3])]
        for found, (c, longer, gain) in zip(model["doublings"], gains, strict=True):
            assert (found["from"], found["to"]) == (c, longer)
            assert found["bits"] == pytest.approx(gain * math.log2(math.e), abs=1e-9)
            i, j = CONTEXTS.index(c), CONTEXTS.index(longer)
            of_gain, _ = by_blocks(measured.losses[name][i] - measured.losses[name][j], measured.blocks, 1)
            assert found["standard_error"] == pytest.approx(of_gain * math.log2(math.e), abs=1e-9)
        assert model["within_1_percent"] == next(c for c, x in zip(CONTEXTS, nll, strict=True) if x <= 1.01 * nll[-1])
        total = nll[0] - nll[-1]
        expected = pytest.approx([(nll[0] - x) / total for x in nll], abs=1e-6) if total > 0 else None
        assert model["share_of_gain"] == expected


def test_recl_is_that_of_the_group(measured: Measured) -> None:
    definition: dict[str, Any] = {"threshold": THRESHOLD, "bootstrap": SAMPLES, "seed": SEED, "limits": LIMITS}
    for group in GROUPS.values():
        losses = {name: measured.losses[name] for name in group}
        lengths = relative_effective_context_lengths(losses, CONTEXTS, FRACTIONS, blocks=measured.blocks, **definition)
        for name in group:
            assert measured.model(name)["recl"] == {str(r): vars(lengths[name][r]) for r in FRACTIONS}
    assert len({measured.model(name)["recl"]["0.3"]["value"] for name in NAMES}) > 1


def test_a_model_that_loses_with_context_has_no_share() -> None:
    losses = np.repeat([[2.0], [3.0]], 100, axis=1)
    assert context_gains(losses, [8, 16], np.arange(100))["share_of_gain"] is None
    assert key_tokens(losses, np.arange(100))["half_of_gain"] is None


def test_key_tokens(measured: Measured) -> None:
    positions, some = measured.arrays["positions"], set()
    for name in NAMES:
        assert measured.model(name)["key_tokens"] == key_tokens(measured.losses[name], positions)
        losses = 20 * measured.losses[name]  # so that falls of 0.1 nats count
        found, falls = key_tokens(losses, positions), (losses[0] - losses[-1]).tolist()
        key = [p for p, fall in enumerate(falls) if fall > 2]
        some.add(bool(key))
        assert found["positions"] == [int(positions[p]) for p in key]
        assert found["share"] == pytest.approx(len(key) / N)
        assert found["share_of_rises"] == pytest.approx(sum(fall < -2 for fall in falls) / N)
        assert found["nll"] == (pytest.approx(losses[:, key].mean(axis=1).tolist()) if key else None)
        largest = sorted(falls, reverse=True)
        halves = [k / N for k in range(1, N + 1) if sum(largest[:k]) >= sum(falls) / 2]
        assert found["half_of_gain"] == (pytest.approx(halves[0]) if sum(falls) > 0 else None)
    assert some == {True, False}


def test_differences_are_of_every_two_models(measured: Measured) -> None:
    assert measured.results["groups"] == [{"name": name, "models": models} for name, models in GROUPS.items()]
    pairs = [(a, b) for i, a in enumerate(NAMES) for b in NAMES[i + 1 :]]
    assert [(found["model"], found["minus"]) for found in measured.results["differences"]] == pairs
    for found, (a, b) in zip(measured.results["differences"], pairs, strict=True):
        mean, error = errors(measured.losses[a] - measured.losses[b], measured.blocks)
        np.testing.assert_allclose(found["nll"], mean, rtol=1e-9)
        np.testing.assert_allclose(found["nll_standard_error"], error, rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(np.array(found["nll"]) - found["low"], 1.96 * np.array(error), rtol=1e-6, atol=1e-12)
        np.testing.assert_allclose(np.add(found["low"], found["high"]) / 2, found["nll"], rtol=1e-6, atol=1e-12)


def test_every_cell_of_the_tables(measured: Measured) -> None:
    expected = []
    for model in measured.results["models"]:
        values = list(zip(model["bpb"], model["bpb_standard_error"], strict=True))[::3]  # at both ends of the grid
        values += [(found["bits"], found["standard_error"]) for found in model["doublings"]]
        cells = [f"{value:.3f} ± {error:.3f}" for value, error in values]
        limit, within = str(model["limit"] or "–"), str(model["within_1_percent"])
        expected.append([model["name"], model["kind"], limit, *cells, within])
        lengths = [model["recl"][str(r)] for r in FRACTIONS]
        ends = [("value", "at_least"), ("high", "high_at_least"), ("guarded", "guarded_at_least")]
        value, high, guarded = ([f"{'≥ ' if of_r[a] else ''}{of_r[x]}" for of_r in lengths] for x, a in ends)
        cells = [f"{value[i]} [{of_r['low']}, {high[i]}]" for i, of_r in enumerate(lengths)]
        expected.append([model["name"], model["group"], *cells, *guarded])
    for one in measured.results["differences"]:
        interval = f"{one['nll'][-1]:+.4f} [{one['low'][-1]:+.4f}, {one['high'][-1]:+.4f}]"
        expected.append([f"{one['model']} − {one['minus']}", interval])
    rows = [line.strip("| ").split(" | ") for line in measured.page.splitlines() if line.startswith("| ")]
    assert sorted(expected) == sorted(row for row in rows if row[0].split()[0] in NAMES)


def test_curves_of_gains_losses_and_differences(measured: Measured) -> None:
    """A difference is positive where the other model is worse than the first."""
    of_wandb = line_series(measured.results)
    for group, names in GROUPS.items():
        for r in map(str, FRACTIONS):
            expected = {name: measured.model(name)["recl"][r]["perplexity_gains"] for name in names}
            shortest = measured.model(names[0])["recl"][r]["perplexities"]
            expected["needed for a longer RECL"] = pytest.approx([THRESHOLD * perplexity for perplexity in shortest])
            shown = curves(measured.figures[f"gains_{group}_r{r}.svg"].axes[0])
            assert {name: y for name, (_, y) in shown.items()} == of_wandb[f"gains_{group}_r{r}"][1] == expected
    losses = {name: (CONTEXTS, measured.model(name)["bpb"]) for name in NAMES}
    assert curves(measured.figures["contexts.svg"].axes[0]) == losses
    (axes,), one = measured.figures["differences.svg"].axes, measured.results["differences"][0]
    worse, error = -np.array(one["nll"]), np.array(one["nll_standard_error"])
    assert curves(axes)[one["minus"]] == (CONTEXTS, pytest.approx(worse))
    assert bands(axes)[0] == (pytest.approx(worse - error), pytest.approx(worse + error))
