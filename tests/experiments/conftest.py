"""One finished reproduction of the laptop profile with all arms, from invented result files; shared by many tests."""

from __future__ import annotations

from dataclasses import replace

import pytest

from experiments.engine.jobs import merge
from experiments.engine.outcomes import Outcomes
from experiments.engine.profiles import PROFILES
from experiments.engine.setup import Setup
from experiments.report.sections import Section, Table
from experiments.reproduce import SECTIONS
from tests.experiments.tables.sample_outcomes import World, draw_figures, small_corpus, write_outcomes


def outcomes_of(setup: Setup, world: World | None = None) -> Outcomes:
    """Return the outcomes of all sections; with a world, after writing them."""
    jobs = merge({name: table.jobs(setup) for name, table in SECTIONS.items()})
    if world:
        write_outcomes(setup, jobs, world)
        draw_figures(setup)
    return Outcomes(setup.runs, setup.figures, tuple(jobs))


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Setup:
    folder = tmp_path_factory.mktemp("reproduction")
    setup = Setup(replace(PROFILES["laptop"], leave_out=()), small_corpus(folder), folder / "report")
    outcomes_of(setup, World())
    return setup


@pytest.fixture(scope="session")
def sections(finished: Setup) -> list[Section]:
    return [table.section(finished, outcomes_of(finished)) for table in SECTIONS.values()]


@pytest.fixture(scope="session")
def tables(sections: list[Section]) -> dict[str, Table]:
    return {table.id: table for section in sections for table in section.tables}
