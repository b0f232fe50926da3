"""Evaluation of runs: lengths chosen on validation, what is scored, tokens that a difference rests on."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from experiments.engine.jobs import Job, Outcomes, Pending, composed
from experiments.engine.profiles import PROFILES, Setup
from experiments.report.sections import Text
from experiments.tables.arms import Arm, training
from experiments.tables.comparisons import Comparison, compare, compare_gains, comparisons_table, shared_blocks
from experiments.tables.length_sweep import evaluations, sweep_job
from experiments.tables.table_6 import differences
from tests.experiments.tables.sample_outcomes import write_outcomes
from txl_lightning.errors import UserError

ON, OFF = Arm(), Arm(False)


@pytest.fixture
def setup(tmp_path: Path) -> Setup:
    return Setup(PROFILES["laptop"], (), tmp_path)


def write_losses(setup: Setup, runs: dict[Arm, list[Job]], starts: dict[Arm, int]) -> None:
    """Write losses of positions `starts[arm]` to 2,500; a run with recurrence is best at 128, with 0.5 more."""
    for arm, arm_runs in runs.items():
        for run in arm_runs:
            folder = setup.runs / sweep_job(arm, run, setup).name
            folder.mkdir(parents=True)
            rows = {n: {"attention_length": n, "losses": f"{n}.npz", "nll": 1.0 + (run.seed or 0)} for n in (64, 128)}
            selected = {"init": rows[64], "best": rows[128 if arm == ON else 64]}
            (folder / "evaluation.json").write_text(
                json.dumps({"corpus": {"sha256": "ab"}, "test": {"selected": selected}})
            )
            positions = np.arange(2500)[starts[arm] :]
            for n in rows:
                nll = (positions >= 1000) + (run.seed or 0) + (0.5 if n == 128 else 0.0)
                np.savez(folder / f"{n}.npz", nll=nll[::-1], positions=positions[::-1])


def test_blocks_hold_the_tokens_that_every_file_of_them_has(setup: Setup) -> None:
    runs = {arm: [training(arm, seed, setup) for seed in (1, 2)] for arm in (ON, OFF)}
    write_losses(setup, runs, {ON: 100, OFF: 0})
    found = evaluations(runs, setup, Outcomes(setup.runs, setup.figures))
    on, off, best = ([run.losses(at) for run in found[arm]] for arm, at in ((ON, "init"), (OFF, "init"), (ON, "best")))
    (on_SB, off_SB, best_SB), weights_B = shared_blocks(on, off, best)
    assert weights_B.tolist() == [1200, 1200]  # of the positions 100 … 1299 and 1300 … 2499; losses rise at 1000
    assert on_SB.tolist() == off_SB.tolist() == [[1.25, 2], [2.25, 3]]
    assert best_SB.tolist() == [[1.75, 2.5], [2.75, 3.5]]
    assert shared_blocks(off)[1].tolist() == [1250, 1250]
    assert [[run.chose_longer for run in found[arm]] for arm in (ON, OFF)] == [[True] * 2, [False] * 2]


@pytest.mark.parametrize(
    ("n_tokens", "n_blocks"), [(400, 1), (2500, 2), (30_000, 30), (245_550, 30), (245_579, 30), (669_440, 33)]
)
def test_blocks_are_as_long_as_thirty_of_them_allow(n_tokens: int, n_blocks: int, tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", nll=np.ones(n_tokens), positions=np.arange(1, n_tokens + 1))
    _, weights_B = shared_blocks([tmp_path / "a.npz"])
    assert (len(weights_B), weights_B.sum()) == (n_blocks, n_tokens)
    assert weights_B.max() - weights_B.min() <= 1


def test_a_difference_rests_on_the_tokens_of_its_own_two_arms(setup: Setup) -> None:
    """A third arm of the table that was scored on fewer tokens takes none away."""
    third = Arm(True, "shaw")
    runs = {arm: [training(arm, seed, setup) for seed in (1, 2)] for arm in (ON, OFF, third)}
    write_losses(setup, runs, {ON: 100, OFF: 0, third: 2000})
    trained = [run for arm_runs in runs.values() for run in arm_runs]
    write_outcomes(setup, trained)
    evaluated = [sweep_job(arm, run, setup) for arm, arm_runs in runs.items() for run in arm_runs]
    outcomes = Outcomes(setup.runs, setup.figures, (*trained, *evaluated))
    losses = evaluations(runs, setup, outcomes)
    pairs = {"wide": (ON, OFF), "narrow": (third, OFF)}
    found = {name: compare(name, *pair, "init", losses, outcomes) for name, pair in pairs.items()}
    found["gain"] = compare_gains("gain", ON, None, losses, outcomes)
    found["more gain"] = compare_gains("more gain", ON, third, losses, outcomes)
    assert [comparison.title for comparison in found.values()] == [
        "no recurrence − recurrence (relative, full loss), training’s lengths",
        "no recurrence, relative − recurrence, Shaw (full loss), training’s lengths",
        "gain of longer attention: recurrence, relative, full loss",
        "gain of longer attention: relative − Shaw (recurrence, full loss)",
    ]
    table = comparisons_table("table_6", "Table 6: title", "bpc", 3, list(found.values()))
    assert [table.number(name, "tokens").value for name in found] == [2400, 500, 2400, 500]
    assert table.caption == "Table 6: differences with 95 % intervals"


def test_files_that_share_no_token_or_were_cut_off_are_named(tmp_path: Path) -> None:
    for name, first in (("a", 0), ("b", 10)):
        np.savez(tmp_path / f"{name}.npz", nll=np.ones(10), positions=np.arange(first, first + 10))
    with pytest.raises(UserError, match=r"no token of the test split .*a\.npz, .*b\.npz"):
        shared_blocks([tmp_path / "a.npz"], [tmp_path / "b.npz"])
    content = (tmp_path / "a.npz").read_bytes()
    for length in (0, 200, len(content) - 30):
        (tmp_path / "a.npz").write_bytes(content[:length])
        with pytest.raises(UserError, match=r"a\.npz: cannot be read \(.*\); delete its folder"):
            shared_blocks([tmp_path / "a.npz"])


def test_runs_with_other_segments_are_scored_on_as_many_tokens(tmp_path: Path) -> None:
    """`max_segments` counts segments, whose length differs between the arms."""
    setup = Setup(replace(PROFILES["laptop"], evaluate=("max_segments=200",)), (), tmp_path)
    scored, lengths = [], []
    for arm in (Arm(), Arm(False, loss="half"), Arm(False, longer="equal tokens")):
        run = training(arm, 1, setup)
        words = dict(word.split("=", 1) for word in sweep_job(arm, run, setup).overrides)
        evaluation = composed(run.overrides).evaluation
        lengths.append(evaluation.segment_len)
        scored.append(int(words["max_segments"]) * evaluation.segment_len)
    assert len(set(lengths)) == 3
    assert scored[0] == 200 * lengths[0]
    assert all(0 <= scored[0] - tokens < segment_len for tokens, segment_len in zip(scored, lengths, strict=True))


def test_evaluations_are_those_that_are_finished(setup: Setup) -> None:
    runs = {arm: [training(arm, seed, setup) for seed in (1, 2)] for arm in (ON, OFF)}
    write_losses(setup, runs, {ON: 0, OFF: 0})
    finished = frozenset({sweep_job(ON, runs[ON][1], setup).name})
    found = evaluations(runs, setup, Outcomes(setup.runs, setup.figures, finished=finished))
    assert {arm: [one.seed for one in read] for arm, read in found.items()} == {ON: [2]}
    with pytest.raises(Pending, match=runs[ON][0].name):
        Outcomes(setup.runs, setup.figures, finished=finished).metrics(runs[ON][0])


def test_a_planned_difference_is_pending_until_both_sides_have_a_run(setup: Setup) -> None:
    runs = {arm: [training(arm, seed, setup) for seed in (1, 2)] for arm in (ON, OFF)}
    write_losses(setup, runs, {ON: 0, OFF: 0})
    trained = [run for arm_runs in runs.values() for run in arm_runs]
    write_outcomes(setup, trained)
    evaluated = {arm: [sweep_job(arm, run, setup) for run in arm_runs] for arm, arm_runs in runs.items()}
    jobs = (*trained, *evaluated[ON], *evaluated[OFF])

    def found(*evaluations_done: Job) -> list[Comparison]:
        done = frozenset(job.name for job in (*trained, *evaluations_done))
        outcomes = Outcomes(setup.runs, setup.figures, jobs, done)
        losses = evaluations(runs, setup, outcomes)
        return [compare("a", ON, OFF, "init", losses, outcomes), compare_gains("b", ON, OFF, losses, outcomes)]

    none, one, all_of_them = found(evaluated[ON][0]), found(evaluated[ON][0], *evaluated[OFF]), found(*jobs)
    assert [(it.difference, it.relative, it.tokens, it.pending) for it in none] == [(None, None, None, 3)] * 2
    assert [(it.difference is None, it.tokens, it.pending) for it in one] == [(False, 2500, 1)] * 2
    assert [it.pending for it in all_of_them] == [0, 0]
    columns = [column.key for column in comparisons_table("t", "T", "bpc", 3, none).columns]
    assert columns == ["arm", "difference", "relative", "pending", "paper"]
    table = comparisons_table("t", "T", "bpc", 3, [*none, replace(all_of_them[0], key="c", untested="Nothing new.")])
    assert [table.rows["a"][key] for key in ("difference", "relative", "untested")] == [None, None, None]
    assert (table.number("a", "pending").value, table.rows["c"]["untested"]) == (3, Text("Nothing new."))
    assert "pending" not in [column.key for column in comparisons_table("t", "T", "bpc", 3, all_of_them).columns]


def test_the_best_lengths_are_not_tested_where_no_run_without_recurrence_chose_a_longer_one(setup: Setup) -> None:
    runs = {arm: [training(arm, seed, setup) for seed in (1, 2)] for arm in (ON, OFF)}
    write_losses(setup, runs, {ON: 0, OFF: 0})  # without recurrence 64 is best, which is training's
    trained = [run for arm_runs in runs.values() for run in arm_runs]
    write_outcomes(setup, trained)
    evaluated = [sweep_job(arm, run, setup) for arm, arm_runs in runs.items() for run in arm_runs]
    outcomes = Outcomes(setup.runs, setup.figures, (*trained, *evaluated))
    found = {it.key: it.untested for it in differences(evaluations(runs, setup, outcomes), outcomes)}
    assert {key for key, reason in found.items() if reason} == {"recurrence_helps_at_the_best_lengths/best"}
