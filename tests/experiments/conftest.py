"""One finished reproduction of the laptop profile with all arms, from invented result files; shared by many tests."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from experiments.arms import OFF, ON
from experiments.engine.jobs import Outcomes, merge
from experiments.engine.plan import Plan
from experiments.engine.profiles import PROFILES, Setup
from experiments.report.pages import assemble
from experiments.reproduce import SECTIONS
from experiments.sections import Section, Table
from tests.experiments.tables.sample_outcomes import World, draw_figures, small_corpus, write_outcomes


def outcomes_of(setup: Setup, world: World | None = None) -> Outcomes:
    """Return the outcomes of all sections; with a world, after writing them."""
    jobs = merge({name: table.jobs(setup) for name, table in SECTIONS.items()})
    if world:
        write_outcomes(setup, jobs, world)
        draw_figures(setup)
    return Outcomes(setup.runs, setup.figures, tuple(jobs), frozenset(job.name for job in jobs))


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Setup:
    folder = tmp_path_factory.mktemp("reproduction")
    profile = replace(PROFILES["laptop"], seeds=(1, 2), seeds_of={arm.key: (1, 2, 3) for arm in (ON, OFF)})
    setup = Setup(profile, small_corpus(folder), folder / "report")
    outcomes_of(setup, World())
    return setup


@pytest.fixture(scope="session")
def sections(finished: Setup) -> list[Section]:
    return [table.section(finished, outcomes_of(finished)) for table in SECTIONS.values()]


@pytest.fixture(scope="session")
def tables(sections: list[Section]) -> dict[str, Table]:
    return {table.id: table for section in sections for table in section.tables}


@pytest.fixture(scope="session")
def results(finished: Setup, sections: list[Section]) -> dict[str, Any]:
    """Return `results.json` as it is read: job i took i + 1.5 seconds and has the key i."""
    outcomes = outcomes_of(finished)
    for i, job in enumerate(outcomes.jobs):
        (finished.runs / job.name / "job.json").write_text(json.dumps({"seconds": i + 1.5}))
    keys = {job.name: str(i) for i, job in enumerate(outcomes.jobs)}
    plan = Plan(replace(finished, command="make it"), list(outcomes.jobs), keys, [{}])
    found: dict[str, Any] = json.loads(json.dumps(assemble(plan, outcomes, sections, 5000.0)))
    return found
