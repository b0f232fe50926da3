"""Ablations of the far context: only far tokens change, effects known in closed form, every kind of model."""

from pathlib import Path

import numpy as np
import pytest

from tests.evaluation.recl.counting_models import SYMBOLS, Counting
from tests.evaluation.recl.pair_models import pair_text
from tests.evaluation.recl.small_recl import recl
from tests.evaluation.small_runs import SmallRuns
from txl_lightning.errors import OptionError
from txl_lightning.evaluation.recl.loss_by_context import (
    ABLATIONS,
    altered_windows,
    doubling_contexts,
    far_context_losses,
)
from txl_lightning.evaluation.scoring.tokenized_text import TokenizedText
from txl_lightning.evaluation.scoring.windows import window_reader

TOKENS = np.random.default_rng(0).integers(0, 50, 400).astype(np.uint8)
MODELS = "py:tests.evaluation.recl.counting_models"
COUNTING, LAGGING = f"{MODELS}.make_counting", f"{MODELS}.make_lagging"


def text_of(tokens: np.ndarray) -> TokenizedText:
    return TokenizedText(tokens, None, len(tokens))


@pytest.mark.parametrize("ablation", ABLATIONS[:3])
def test_only_tokens_before_the_near_ones_change(ablation: str) -> None:
    begins, nears, stops = np.array([0, 50, 370, 90]), np.array([20, 58, 390, 90]), np.array([30, 81, 400, 99])
    windows, firsts = altered_windows(TOKENS, begins, nears, stops, ablation, seed=1)
    assert firsts.tolist() == [0, 30, 61, 91]
    for begin, near, stop, first in zip(begins, nears, stops, firsts, strict=True):
        far, kept = np.split(windows[first : first + stop - begin], [near - begin])
        assert np.array_equal(kept, TOKENS[near:stop])
        if near == begin:
            continue
        assert not np.array_equal(far, TOKENS[begin:near])
        if ablation == "shuffle":
            assert sorted(far) == sorted(TOKENS[begin:near])
        elif ablation == "reverse":
            assert np.array_equal(far, TOKENS[begin:near][::-1])
        else:
            places = [s for s in range(400) if np.array_equal(TOKENS[s : s + len(far)], far)]
            assert places
            assert all(s + len(far) <= begin or s >= stop for s in places)
    again, _ = altered_windows(TOKENS, begins[1:2], nears[1:2], stops[1:2], ablation, seed=1)
    assert np.array_equal(again, windows[30:61])  # whatever else is altered
    other, _ = altered_windows(TOKENS, begins, nears, stops, ablation, seed=2)
    assert np.array_equal(other, windows) == (ablation == "reverse")


def test_other_text_is_drawn_from_both_sides_and_must_be_there() -> None:
    tokens = np.arange(100)
    found = set()
    for t in range(400):
        window, _ = altered_windows(tokens, np.array([40]), np.array([50]), np.array([60]), "replace", seed=t)
        found.add(int(window[0]))
    assert found == {*range(31), *range(60, 91)}
    with pytest.raises(OptionError, match="ablations=replace: the split has no other 50 tokens"):
        altered_windows(tokens, np.array([20]), np.array([70]), np.array([75]), "replace", seed=1)


def test_a_model_that_counts_ignores_the_order_and_misses_what_is_replaced() -> None:
    tokens = np.repeat([0, 1, 0], [400, 41, 400])
    position, contexts, N = np.array([440]), [5, 10, 20, 40], 40
    reader = window_reader(Counting())
    for ablation in ABLATIONS[:3]:
        losses = far_context_losses(reader, text_of(tokens), position, contexts, ablation, seed=1)[:, 0]
        seen = np.array([N if ablation != "replace" else c for c in contexts])  # of the 40 ones before the target
        np.testing.assert_allclose(losses, -np.log((seen + 1) / (N + SYMBOLS)), rtol=1e-12)
    random = far_context_losses(reader, text_of(TOKENS), np.arange(40, 400, 7), contexts, "shuffle", seed=1)
    assert not (random - random[-1]).any()


def test_contexts_are_doubled_on_the_grid() -> None:
    assert doubling_contexts([16, 32, 48, 64, 80]) == [16, 32, 64]
    assert doubling_contexts([4, 8, 12, 16]) == [4, 8]
    assert doubling_contexts([100, 150, 200, 250]) == [100, 200]


EVERY = list(ABLATIONS)


def test_what_a_model_never_sees_changes_nothing(runs: SmallRuns, tmp_path: Path) -> None:
    (model,) = recl(tmp_path, runs.checkpoint("extended"), ablations=EVERY, ablation_contexts=[4, 8, 12])["models"]
    found = model["far_context"]["ablations"]
    assert list(found) == EVERY
    for of_c in found.values():
        for c, x, low, high in zip([4, 8, 12], of_c["increase"], of_c["low"], of_c["high"], strict=True):
            assert (low < x < high) if c < model["limit"] else x == low == high == 0


def test_those_of_longer_windows_at_the_same_positions_are_not_reused(runs: SmallRuns, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_bytes(pair_text(60_000))
    path, given = runs.checkpoint("lstm"), {"ablations": ["shuffle"], "data_path": str(text)}
    given |= {"n_positions": 60, "position_windows": 4}
    fresh = recl(tmp_path / "fresh", path, **given, max_context=8)
    longer = recl(tmp_path / "store", path, **given, max_context=16)
    again = recl(tmp_path / "store", path, **given, max_context=8)
    assert longer["positions"] == again["positions"]
    for name in ("far_context", "loss_by_position"):
        assert again["models"][0][name] == fresh["models"][0][name]


def test_models_from_elsewhere_in_tokens_and_in_bytes(tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    path.write_bytes(pair_text(2000))
    given = {"data_path": str(path), "ablations": EVERY, "ablation_contexts": [4, 8, 12], "n_positions": 60}
    tokens = recl(tmp_path / "tokens", models=[COUNTING, LAGGING], names=["counting", "lagging"], **given)
    counting, lagging = (model["far_context"]["ablations"] for model in tokens["models"])
    assert counting["shuffle"]["increase"] == counting["reverse"]["increase"] == [0, 0, 0]
    assert counting["replace"]["increase"][0] != 0
    for of_c in lagging.values():
        assert of_c["increase"][0] > 0
        assert of_c["increase"][1:] == [0, 0]  # it looks six bytes back
    in_bytes = recl(
        tmp_path / "bytes", models=[COUNTING, LAGGING], names=["counting", "lagging"], context_unit="byte", **given
    )
    assert [model["loss_by_position"] for model in in_bytes["models"]] == [None, None]
    for by_tokens, by_bytes in zip(tokens["models"], in_bytes["models"], strict=True):  # their tokens are bytes
        for ablation, of_c in by_bytes["far_context"]["ablations"].items():
            expected = by_tokens["far_context"]["ablations"][ablation]["increase"]
            np.testing.assert_allclose(of_c["increase"], expected, rtol=0, atol=1e-12)
