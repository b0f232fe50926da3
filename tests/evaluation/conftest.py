"""Trained runs that the tests of all commands share."""

import pytest

from tests.evaluation.small_runs import SmallRuns


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> SmallRuns:
    """Short runs of every kind of model, on one text."""
    return SmallRuns(tmp_path_factory.mktemp("runs"))
