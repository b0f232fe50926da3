"""Differences between arms: the tokens and seeds that they rest on, and what is not evaluated yet."""

import json
from pathlib import Path

import numpy as np
import pytest

from experiments.arms import OFF, ON, Arm, training
from experiments.engine.jobs import Job, Outcomes, Pending
from experiments.engine.profiles import PROFILES, Setup
from experiments.tables.differences import Comparisons, course, shared_blocks
from experiments.tables.evaluations import Evaluations, evaluation_job, evaluations
from experiments.tables.table_6 import differences
from tests.experiments.tables.sample_outcomes import write_outcomes
from txl_lightning.errors import UserError

SHAW = Arm(True, "shaw")


@pytest.fixture
def setup(tmp_path: Path) -> Setup:
    return Setup(PROFILES["laptop"], ("data.level=byte",), tmp_path)


def write_losses(setup: Setup, starts: dict[Arm, int]) -> tuple[dict[Arm, list[Job]], Outcomes]:
    """Write losses of positions `starts[arm]` to 2,500 for two seeds; with recurrence the best length loses by 0.5."""
    runs = {arm: [training(arm, seed, setup) for seed in (1, 2)] for arm in starts}
    jobs = []
    for arm, run in ((arm, run) for arm, of_arm in runs.items() for run in of_arm):
        job = evaluation_job(arm, run, setup)
        jobs += [run, job]
        write_outcomes(setup, [run])
        folder = setup.runs / job.name
        folder.mkdir(parents=True)
        rows = {n: {"attention_length": n, "losses": f"{n}.npz", "nll": 1.0 + (run.seed or 0)} for n in (64, 128)}
        selected = {"init": rows[64], "best": rows[128 if arm == ON else 64]}
        evaluation = {"corpus": {"sha256": "ab"}, "test": {"selected": selected}}
        (folder / "evaluation.json").write_text(json.dumps(evaluation))
        positions = np.arange(2500)[starts[arm] :]
        for n in rows:
            nll = (positions >= 1000) + (run.seed or 0) + (0.5 if n == 128 else 0.0)
            np.savez(folder / f"{n}.npz", nll=nll[::-1], positions=positions[::-1])
    done = frozenset(job.name for job in jobs)
    return runs, Outcomes(setup.runs, setup.figures, tuple(jobs), done)


def test_blocks_hold_the_tokens_that_every_file_of_them_has(setup: Setup) -> None:
    runs, outcomes = write_losses(setup, {ON: 100, OFF: 0})
    found = evaluations(runs, setup, outcomes)
    on, off, best = ([run.losses(at) for run in found[arm]] for arm, at in ((ON, "init"), (OFF, "init"), (ON, "best")))
    (on_SB, off_SB, best_SB), weights_B = shared_blocks(on, off, best)
    assert weights_B.tolist() == [1200, 1200]  # of the positions 100 … 1299 and 1300 … 2499; losses rise at 1000
    assert on_SB.tolist() == off_SB.tolist() == [[1.25, 2], [2.25, 3]]
    assert best_SB.tolist() == [[1.75, 2.5], [2.75, 3.5]]
    assert [[run.chose_longer for run in found[arm]] for arm in (ON, OFF)] == [[True] * 2, [False] * 2]


@pytest.mark.parametrize(("n_tokens", "n_blocks"), [(400, 1), (2500, 2), (30_000, 30), (245_579, 30), (669_440, 33)])
def test_blocks_are_as_long_as_thirty_of_them_allow(n_tokens: int, n_blocks: int, tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", nll=np.ones(n_tokens), positions=np.arange(1, n_tokens + 1))
    _, weights_B = shared_blocks([tmp_path / "a.npz"])
    assert (len(weights_B), weights_B.sum()) == (n_blocks, n_tokens)
    assert weights_B.max() - weights_B.min() <= 1


def test_files_that_share_no_token_or_were_cut_off_are_named(tmp_path: Path) -> None:
    a, b = tmp_path / "a.npz", tmp_path / "b.npz"
    for path, first in ((a, 0), (b, 10)):
        np.savez(path, nll=np.ones(10), positions=np.arange(first, first + 10))
    with pytest.raises(UserError, match=r"no token of the test split .*a\.npz, .*b\.npz"):
        shared_blocks([a], [b])
    content = a.read_bytes()
    for length in (0, 200, len(content) - 30):
        a.write_bytes(content[:length])
        with pytest.raises(UserError, match=r"a\.npz: cannot be read \(.*\); delete its folder"):
            shared_blocks([a])


def test_a_difference_names_its_sides_and_waits_for_both(setup: Setup) -> None:
    runs, outcomes = write_losses(setup, {ON: 100, OFF: 0, SHAW: 2000})
    compared = Comparisons(evaluations(runs, setup, outcomes), outcomes)
    found = [compared.losses("a", ON, OFF, "init", 2.7), compared.losses("b", SHAW, OFF, "best")]
    found += [compared.gains("c", ON), compared.gains("d", ON, SHAW)]
    assert [row.title for row in found] == [
        "no recurrence − recurrence (relative, full loss), training’s lengths",
        "no recurrence, relative − recurrence, Shaw (full loss), best lengths",
        "gain of longer attention: recurrence, relative, full loss",
        "gain of longer attention: relative − Shaw (recurrence, full loss)",
    ]
    assert [row.effect for row in found] == pytest.approx([0, 0, -0.5 / np.log(2), -0.5 / np.log(2)], abs=1e-9)
    assert (found[0].paper, found[0].unit) == (2.7, "bpb")
    part = Evaluations({ON: compared.evaluated[ON][:1], OFF: compared.evaluated[OFF][1:]})
    waiting = Comparisons(part, outcomes)
    assert waiting.losses("a", ON, OFF, "init", 2.7).effect is waiting.gains("b", SHAW).effect is None
    nothing = evaluations(runs, setup, Outcomes(setup.runs, setup.figures, outcomes.jobs, frozenset()))
    assert nothing == {}
    with pytest.raises(Pending):
        nothing[ON]


def test_an_effect_is_followed_over_the_validations_of_both_sides(setup: Setup) -> None:
    runs, outcomes = write_losses(setup, {ON: 0, OFF: 0})
    for arm, losses in ((ON, {1000: 4.0, 2000: 3.0}), (OFF, {900: 5.0, 2100: 3.8})):
        lines = [json.dumps({"tokens": tokens, "val/nll": nll}) for tokens, nll in losses.items()]
        (setup.runs / runs[arm][0].name / "validation.jsonl").write_text("\n".join(lines))
    on, off = (evaluations(runs, setup, outcomes)[arm][:1] for arm in (ON, OFF))
    assert course(off, on) == {"tokens": (1000, 2000), "course": {"1": [18.367, 23.077]}}


def test_the_best_lengths_cannot_be_told_where_no_run_without_recurrence_chose_a_longer_one(setup: Setup) -> None:
    runs, outcomes = write_losses(setup, {ON: 0, OFF: 0})  # without recurrence 64 is best, which is training's
    found = {row.key: row.untested for row in differences(evaluations(runs, setup, outcomes), outcomes, runs)}
    assert {key for key, reason in found.items() if reason} == {"recurrence_helps_at_the_best_lengths/best"}
