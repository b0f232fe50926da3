"""RECL of a text whose effective context is known, of its exact model."""

import pytest

from examples.recall_oracle import TEXT
from tests.recl.small_recl import recl


@pytest.mark.parametrize(
    ("first_context", "length"),
    [(32, 48), (16, 16)],
)
def test_a_plateau_ends_the_length_and_not_the_context_within_a_percent(
    first_context, length, tmp_path
):
    (tmp_path / "recall.txt").write_text(TEXT.text(60_000, seed=1))
    options = {
        "models": ["py:examples.recall_oracle.oracle"],
        "data_path": str(tmp_path / "recall.txt"),
        "first_context": first_context,
        "max_context": 96,
        "n_positions": 500,
        "step": 16,
    }
    (model,) = recl(tmp_path, **options)["models"]
    for of_fraction in model["recl"].values():
        assert (of_fraction["value"], of_fraction["guarded"]) == (length, length)
    assert model["within_1_percent"] == 48
    c = (48 - first_context) // 16
    error = model["nll_standard_error"][c]
    assert model["nll"][c] == pytest.approx(TEXT.entropy(48), abs=4 * error)
