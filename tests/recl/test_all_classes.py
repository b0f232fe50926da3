"""Every causal class of transformers is read exactly, or refused in words."""

import pytest

pytest.importorskip("transformers", reason="needs the extra hf")

from tests.recl.all_classes import model_types, outcome
from tests.recl.test_huggingface import pytestmark  # noqa: F401


@pytest.mark.full
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("model_type", model_types())
def test_losses_are_those_of_fresh_windows(model_type: str) -> None:
    found = outcome(model_type)
    if found.startswith(("not built", "refused")):
        pytest.skip(found)
    assert not found.startswith("wrong"), found
