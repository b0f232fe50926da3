"""Trained runs that the tests of all commands share; figures are kept instead of written."""

from collections.abc import Iterator

import pytest

from tests.evaluation.kept_figures import Figures, kept_figures
from tests.evaluation.small_runs import SmallRuns
from txl_lightning.data.published_corpora import PUBLISHED


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SmallRuns]:
    """Short runs of every kind of model, on one text; an lm1b of some sentences is accepted."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(PUBLISHED, "lm1b, <S> at both ends", {})
        yield SmallRuns(tmp_path_factory.mktemp("runs"))


@pytest.fixture(autouse=True)
def drawn() -> Iterator[Figures]:
    """Figures by the name of their file; their pictures, which take most of a command's time, are not drawn."""
    with kept_figures() as figures:
        yield figures
