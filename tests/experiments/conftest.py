"""One finished reproduction of the laptop profile with all arms, from invented result files; shared by many tests."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from experiments.claims import judged
from experiments.engine.jobs import Job, Outcomes, merge
from experiments.engine.plan import Plan, Stopwatch
from experiments.engine.profiles import PROFILES, Setup
from experiments.report.pages import assemble
from experiments.report.sections import Section, Table
from experiments.reproduce import SECTIONS
from experiments.tables.length_sweep import OFF, ON
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
    seeds_of = {f"{OFF.key}-longer_segments_equal_tokens": (1, 2)}
    seeds_of |= {f"shuffled_lines-{arm.key}": (1, 2, 3, 4) for arm in (ON, OFF)}
    profile = replace(PROFILES["laptop"], leave_out=(), seeds_others=(1, 2, 3), seeds_of=seeds_of)
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
def jobs(finished: Setup) -> list[Job]:
    """All jobs, with records of the seconds that each took: 1.5, 2.5 and so on."""
    found = list(outcomes_of(finished).jobs)
    for i, job in enumerate(found):
        (finished.runs / job.name / "job.json").write_text(json.dumps({"seconds": i + 1.5}))
    return found


@pytest.fixture(scope="session")
def results(
    finished: Setup, jobs: list[Job], sections: list[Section], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Any]:
    """Return the results of `assemble`; the key of job i is i, and the clock stood at 5,000 seconds."""
    clock = tmp_path_factory.mktemp("clock") / "clock.json"
    clock.write_text(json.dumps({"began": "2026-11-24T03:00:00+00:00", "seconds": 5000.0}))
    keys = {job.name: f"{i:064x}" for i, job in enumerate(jobs)}
    plan = Plan(replace(finished, command="make it"), jobs, keys, [{}])
    return assemble(plan, outcomes_of(finished), sections, judged(sections), Stopwatch(clock, restart=False))
