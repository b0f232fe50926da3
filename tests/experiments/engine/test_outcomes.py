"""Results of trainings: unit, level and losses."""

import json
from pathlib import Path

import pytest

from experiments.engine.jobs import Job
from experiments.engine.outcomes import Outcomes
from txl_lightning.errors import UserError

JOB = Job("a", "train", (), "x")


@pytest.mark.parametrize(("level", "unit"), [("byte", "bpc"), ("char", "bpc"), ("word", "ppl")])
def test_a_training_result_knows_its_unit(level: str, unit: str, tmp_path: Path) -> None:
    corpus = {"name": "book", "level": level}
    counts = {"parameters": 3, "steps": 4, "tokens": 5}
    metrics = {"corpus": corpus, **counts, f"test/{unit}": 1.5, f"val/{unit}": 1.25, "test/nll": 9.0}
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "metrics.json").write_text(json.dumps(metrics))
    result = Outcomes(tmp_path, tmp_path).training(JOB)
    assert (result.unit, result.level, result.corpus) == (unit, level, "book")
    assert (result.loss(), result.loss("val")) == (1.5, 1.25)
    assert (result.parameters, result.steps, result.tokens) == (3, 4, 5)


def test_a_missing_or_damaged_result_is_named(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    outcomes = Outcomes(tmp_path, tmp_path)
    for content in (None, "{", "[]"):
        if content is not None:
            (tmp_path / "a" / "metrics.json").write_text(content)
        with pytest.raises(UserError, match=r"a/metrics.json: (cannot be read|holds no JSON object)"):
            outcomes.metrics(JOB)
