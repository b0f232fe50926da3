"""Training through `torch.compile`: graphs in a step, and no compilation after the first one."""

from __future__ import annotations

import json

import pytest

from tests.devices.arms import ARMS
from tests.forked import start_module

LSTM_GRAPHS = 3  # of two layers that torch does not compile
UNEVEN = ("relative, memory/3", "adaptive softmax/3", "lstm/3")  # 4 streams in 3 groups: two shapes


@pytest.mark.full
@pytest.mark.timeout(1300)
def test_nothing_is_compiled_after_the_first_step(tmp_path):
    """One graph a shape, but for the tails of the softmax, whose shapes differ in every step, and torch's LSTM."""
    done = start_module(tmp_path, "tests.gpu_path.compiled_steps", *ARMS, *UNEVEN).finish(
        timeout=1200
    )
    assert done.returncode == 0, done.stderr
    graphs = json.loads(done.stdout.splitlines()[-1])
    divided = {
        arm: LSTM_GRAPHS * arm.startswith("lstm") + 2 * ("adaptive" in arm) for arm in graphs
    }
    most = {arm: (1 + n) * (1 + (arm in UNEVEN)) for arm, n in divided.items()}
    assert {arm: n for arm, n in graphs.items() if not isinstance(n, int) or n > most[arm]} == {}
