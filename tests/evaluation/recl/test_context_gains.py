"""Gains by context and losses of classes of tokens, against counting one by one."""

from collections import Counter

import numpy as np
import pytest

from txl_lightning.evaluation.recl.loss_by_context import block_gains, context_gains, token_classes

BLOCKS = np.repeat(np.arange(20), 5)


def test_gains_of_a_known_curve() -> None:
    contexts = [8, 16, 24, 32]
    curve = np.array([3.0, 2.4, 2.02, 2.0])
    losses = curve[:, None] + np.random.default_rng(0).normal(0, 1, 100)  # the same noise at every context
    losses += 2 - losses[-1].mean()
    gains = context_gains(losses, contexts, BLOCKS)
    assert [(d["from"], d["to"]) for d in gains["doublings"]] == [(8, 16), (16, 32)]
    np.testing.assert_allclose([d["bits"] for d in gains["doublings"]], np.array([0.6, 0.4]) / np.log(2))
    assert max(d["standard_error"] for d in gains["doublings"]) < 1e-12
    assert gains["within_1_percent"] == 24
    np.testing.assert_allclose(gains["share_of_gain"], [0, 0.6, 0.98, 1])
    assert context_gains(losses[::-1], contexts, BLOCKS)["share_of_gain"] is None


def test_gains_of_blocks_are_means_over_their_positions() -> None:
    losses = np.random.default_rng(0).random((4, 100))
    gains = block_gains({"a": losses}, BLOCKS)["a"]
    assert gains.shape == (4, 20)
    np.testing.assert_allclose(gains[2, 3], (losses[0] - losses[2])[15:20].mean())
    assert not gains[0].any()


@pytest.mark.parametrize("kinds", [3, 40])
def test_classes_are_those_of_counting(kinds: int) -> None:
    random = np.random.default_rng(kinds)
    tokens = (random.random(300) ** 2 * kinds).astype(np.uint8)
    positions, contexts = np.arange(40, 300, 3), [4, 12, 20]
    losses = random.normal(3, 1, (3, len(positions)))
    classes = token_classes(losses, contexts, tokens, positions)
    for i, c in enumerate(contexts):
        within = np.array([tokens[t] in tokens[t - c : t] for t in positions])
        earlier = np.array([tokens[t] in tokens[:t] for t in positions])
        for name, chosen in {"within": within, "farther": earlier & ~within, "new": ~earlier}.items():
            assert classes[name]["positions"][i] == chosen.sum()
            expected = losses[i][chosen].mean() if chosen.any() else None
            assert classes[name]["nll"][i] == (None if expected is None else pytest.approx(expected))
        assert classes["frequent"]["positions"][i] + classes["rare"]["positions"][i] == len(positions)
    counts = Counter(tokens.tolist())
    most = sorted(counts, key=lambda token: (-counts[token], token))
    enough = next(n for n in range(1, len(most) + 1) if np.isin(tokens, most[:n]).sum() >= 150)
    assert classes["frequent"]["positions"] == [int(np.isin(tokens[positions], most[:enough]).sum())] * 3
