"""Differences between arms: the tokens and seeds that they rest on, and what is not evaluated yet."""

import json
from pathlib import Path

import numpy as np
import pytest

from experiments.arms import OFF, ON, Arm, trainings
from experiments.engine.jobs import Outcomes
from experiments.engine.profiles import PROFILES, Setup
from experiments.tables.differences import Comparisons, course_of, shared_blocks
from experiments.tables.evaluations import evaluation_job, read_evaluations
from experiments.tables.table_6 import differences
from tests.experiments.tables.sample_outcomes import write_outcome

SHAW = Arm(encoding="shaw")


@pytest.fixture
def setup(tmp_path: Path) -> Setup:
    return Setup(PROFILES["laptop"], ("data.level=byte",), tmp_path)


def compared(setup: Setup, starts: dict[Arm, int]) -> Comparisons:
    """Write losses of positions `starts[arm]` to 2,500 for two seeds; with recurrence the best length loses by 0.5."""
    runs = {arm: trainings(arm, setup)[:2] for arm in starts}
    jobs = []
    for arm, of_arm in runs.items():
        for run in of_arm:
            write_outcome(setup, run)
            jobs += [run, evaluation_job(arm, run, setup)]
            folder = setup.runs / jobs[-1].name
            folder.mkdir(parents=True)
            rows = {}
            for n in (64, 128):
                nll = 1.0 + (run.seed or 0)
                rows[n] = {
                    "attention_length": n,
                    "losses": f"{n}.npz",
                    "nll": nll,
                }
                positions = np.arange(starts[arm], 2500)
                losses = (positions >= 1000) + (run.seed or 0) + 0.5 * (n == 128)
                np.savez(
                    folder / f"{n}.npz",
                    nll=losses[::-1],
                    positions=positions[::-1],
                )
            selected = {"init": rows[64], "best": rows[128 if arm == ON else 64]}
            evaluation = {"corpus": {"sha256": "ab"}, "test": {"selected": selected}}
            (folder / "evaluation.json").write_text(json.dumps(evaluation))
    done = frozenset(job.name for job in jobs)
    outcomes = Outcomes(
        setup.runs,
        setup.figures,
        tuple(jobs),
        done,
    )
    return Comparisons(read_evaluations(runs, outcomes), outcomes)


def test_blocks_hold_the_tokens_that_every_file_of_them_has(setup: Setup) -> None:
    evaluated = compared(setup, {ON: 100, OFF: 0}).evaluated
    on = [run.losses("init") for run in evaluated[ON]]
    off = [run.losses("init") for run in evaluated[OFF]]
    longer = [run.losses("longer") for run in evaluated[ON]]
    (on_SB, off_SB, longer_SB), weights_B = shared_blocks(on, off, longer)
    assert weights_B.tolist() == [
        1200,
        1200,
    ]  # positions from 100 and from 1300; losses rise at 1000
    assert on_SB.tolist() == off_SB.tolist() == [[1.25, 2], [2.25, 3]]
    assert longer_SB.tolist() == [[1.75, 2.5], [2.75, 3.5]]
    assert [run.chose_longer for run in evaluated[OFF]] == [False, False]


@pytest.mark.parametrize(
    ("n_tokens", "n_blocks"),
    [
        (400, 1),
        (2500, 2),
        (30_000, 30),
        (669_440, 33),
    ],
)
def test_blocks_are_as_long_as_thirty_of_them_allow(
    n_tokens: int, n_blocks: int, tmp_path: Path
) -> None:
    np.savez(
        tmp_path / "a.npz",
        nll=np.ones(n_tokens),
        positions=np.arange(1, n_tokens + 1),
    )
    _, weights_B = shared_blocks([tmp_path / "a.npz"])
    assert len(weights_B) == n_blocks
    assert weights_B.sum() == n_tokens
    assert weights_B.max() - weights_B.min() <= 1


def test_a_difference_names_its_sides(setup: Setup) -> None:
    comparisons = compared(
        setup,
        {
            ON: 100,
            OFF: 0,
            SHAW: 2000,
        },
    )
    rows = [
        comparisons.losses("a", ON, OFF, "init", 2.7),
        comparisons.losses("b", SHAW, OFF, "best"),
        comparisons.gain("c", ON),
        comparisons.gain("d", ON, SHAW),
    ]
    assert [row.title for row in rows] == [
        "no recurrence − recurrence (relative, full loss), training’s lengths",
        "no recurrence, relative − recurrence, Shaw (full loss), best lengths",
        "gain of longer attention: recurrence, relative, full loss",
        "gain of longer attention: relative − Shaw (recurrence, full loss)",
    ]
    lost = -0.5 / np.log(2)
    assert [row.effect for row in rows] == pytest.approx(
        [
            0,
            0,
            lost,
            lost,
        ],
        abs=1e-9,
    )
    assert (rows[0].paper, rows[0].unit) == (2.7, "bpb")


def test_an_effect_is_followed_over_the_validations_of_both_sides(setup: Setup) -> None:
    evaluated = compared(setup, {ON: 0, OFF: 0}).evaluated
    validations = {ON: {1000: 4.0, 2000: 3.0}, OFF: {900: 5.0, 2100: 3.8}}
    for arm, losses in validations.items():
        lines = [json.dumps({"tokens": n, "val/nll": nll}) for n, nll in losses.items()]
        path = setup.runs / f"{arm.key}-seed1" / "validation.jsonl"
        path.write_text("\n".join(lines))
    tokens, course = course_of(evaluated[OFF][:1], evaluated[ON][:1])
    assert tokens == [1000, 2000]
    assert course == {"1": [18.367, 23.077]}


def test_best_lengths_say_nothing_where_no_run_without_recurrence_chose_a_longer_one(
    setup: Setup,
) -> None:
    comparisons = compared(setup, {ON: 0, OFF: 0})
    rows = differences(comparisons.evaluated, comparisons.outcomes, [ON, OFF])
    untested = [row.key for row in rows if row.untested]
    assert untested == ["recurrence_helps_at_the_best_lengths/best"]
