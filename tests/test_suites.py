"""The suites that make and CI run."""

import pytest

from tests.conftest import NUMERICS
from tests.docs.pages import ROOT


@pytest.mark.parametrize("place", NUMERICS)
def test_a_place_with_numbers_is_there(place: str) -> None:
    path, _, name = place.partition("::")

    assert (ROOT / path).exists()
    if name:
        assert f"def {name}(" in (ROOT / path).read_text("utf-8")


def test_ci_runs_the_test_command_of_the_readme() -> None:
    readme = (ROOT / "README.md").read_text("utf-8").splitlines()
    steps = (ROOT / ".ci/run").read_text("utf-8").splitlines()

    assert any(line.startswith("make test ") for line in readme)
    assert "step test make test" in steps
