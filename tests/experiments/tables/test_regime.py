"""What depends on the regime, and prose: the marks of this run, the planned arms, the text that is at hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from experiments.engine.jobs import Outcomes, composed
from experiments.engine.profiles import PROFILES, Setup
from experiments.report.sections import Section, Text
from experiments.tables import prose, regime
from experiments.tables.arms import Arm
from experiments.tables.length_sweep import OFF, ON
from tests.experiments.tables.sample_outcomes import World, write_outcomes


def setup_of(profile: str, tmp_path: Path, *overrides: str) -> Setup:
    return Setup(PROFILES[profile], overrides, tmp_path / "report", planning=True)


def test_every_regime_has_the_tokens_of_the_profile(tmp_path: Path) -> None:
    setup = setup_of("evening", tmp_path)
    runs = regime._runs(setup)
    assert [len(arm_runs) for arm_runs in runs.values()] == [3, 3, 2, 2, 2, 2, 2]
    configs = {arm: composed(arm_runs[0].overrides) for arm, arm_runs in runs.items()}
    own = configs[ON]
    for config in configs.values():
        sizes = [(one.trainer.max_steps, one.data.batch_size * one.data.segment_len) for one in (config, own)]
        assert sizes[0] == sizes[1]
    memory, segments = (configs[Arm(variant=variant)] for variant in (regime.LONGER_MEMORY, regime.LONGER_SEGMENTS))
    assert memory.memory.mem_len == 2 * own.memory.mem_len
    assert (segments.memory.mem_len, segments.data.segment_len) == (2 * own.memory.mem_len, 2 * own.data.segment_len)
    without = configs[Arm(False, variant=regime.LONGER_SEGMENTS)].evaluation
    assert (without.ext_len, without.segment_len) == (3 * own.data.segment_len // 2, own.data.segment_len // 2)


def test_adam_is_no_other_regime_where_it_is_the_profiles_own(tmp_path: Path) -> None:
    adam = regime._runs(setup_of("evening", tmp_path, "optimizer=adam"))
    assert not any(arm.variant == regime.ADAM for arm in adam)
    assert regime._runs(setup_of("laptop", tmp_path)).keys() == {ON, OFF, Arm(variant=regime.ADAM)}


def test_the_marks_of_this_run_are_filled_in_after_judging(sections: list[Section]) -> None:
    section = next(one for one in sections if one.id == "regime")
    marks = ("holds", "does not hold", "within noise", None)
    claims = [{"id": claim.id, "mark": mark} for claim, mark in zip(regime.PAPERS_CLAIMS, marks, strict=False)]
    table = regime.with_marks(section, claims).tables[0]
    row = [table.rows[regime.THIS_RUN][claim.id] for claim in regime.PAPERS_CLAIMS[:5]]
    assert row == [Text("✓"), Text("✗"), Text("≈"), None, None]
    assert len(table.rows) == 1 + len(regime.EARLIER)
    assert table.title(regime.THIS_RUN).startswith("this run: Muon, ")
    pending = Section("regime", "", "", "pending")
    assert regime.with_marks(pending, claims) == pending


def test_prose_is_the_first_text_at_hand_and_scored_in_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prose, "at_hand", lambda data: data.name == "enwik8")
    setup = setup_of("laptop", tmp_path)
    jobs = prose.jobs(setup)
    assert [job.name for job in jobs if job.command == "train"] == [
        f"enwik8-{arm.key}-seed{seed}" for arm in (ON, OFF) for seed in setup.profile.seeds
    ]
    for job in jobs:
        if job.command == "evaluate":
            training = next(run for run in jobs if run.name in job.needs)
            evaluation = composed(training.overrides).evaluation
            stated = dict(word.split("=", 1) for word in job.overrides)  # the last one of an option counts
            tokens = int(stated["max_segments"]) * int(stated["batch_size"]) * evaluation.segment_len
            assert 0.9 * prose.MAX_TOKENS < tokens <= prose.MAX_TOKENS
            assert stated["attention_lengths"].count(",") == len(setup.profile.attention_lengths) - 1
    write_outcomes(setup, jobs, World())
    losses, differences = prose.section(setup, Outcomes(setup.runs, setup.figures, tuple(jobs))).tables
    assert list(losses.rows) == [f"enwik8-{arm.key}" for arm in (ON, OFF)]
    assert list(differences.rows) == ["prose/init", "prose/best"]


def test_without_prose_there_is_nothing_to_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prose, "at_hand", lambda data: False)
    setup = setup_of("laptop", tmp_path)
    assert prose.jobs(setup) == []
    found = prose.section(setup, Outcomes(setup.runs, setup.figures))
    assert found.tables == ()
    assert "on this machine" in found.here
    monkeypatch.setattr(prose, "at_hand", lambda data: True)
    for own in (("data=text8",), ("data=wikitext-2",)):
        assert prose.jobs(replace(setup, overrides=own)) == []
