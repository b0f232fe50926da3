"""Gains by context and losses of classes of tokens, against counting one by one."""

from collections import Counter

import numpy as np
import pytest

from txl_lightning.evaluation.recl.loss_by_context import block_gains, context_gains, token_classes

BLOCKS = np.repeat(np.arange(20), 5)


def test_a_model_that_loses_with_context_has_no_share() -> None:
    assert context_gains(np.repeat([[2.0], [3.0]], 100, axis=1), [8, 16], BLOCKS)["share_of_gain"] is None


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
    classes = token_classes(losses, contexts, tokens, positions, {})
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
