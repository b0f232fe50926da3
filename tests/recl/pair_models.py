"""Two models of one distribution: pairs of bytes as tokens, and single bytes."""

import numpy as np
import torch
from torch import Tensor

FIRST, SECOND = b"ABCDEFGHIJKLMNOP", b"abcdefghijklmnop"
LAG = 6  # pairs
PAIRS, PAIR_BYTES = (f"py:{__name__}.{name}" for name in ("Pairs", "PairBytes"))
N_PAIRS = len(FIRST) * len(SECOND)


def pair_text(n_pairs: int) -> bytes:
    """Pairs such as `Cg`, of which four in five copy one of the LAG before them."""
    random = np.random.default_rng(0)
    pairs = random.integers(0, N_PAIRS, n_pairs)
    for i in range(LAG, n_pairs):
        if random.random() < 0.8:
            pairs[i] = pairs[i - random.integers(1, LAG + 1)]
    return b"".join(bytes([FIRST[p // 16], SECOND[p % 16]]) for p in pairs.tolist())


def pair_probabilities(seen: list[int]) -> np.ndarray:
    """P(pair) = 1 / LAG · Σ_{1 <= l <= LAG} ([pair = seen[-l]] if there is one, else 1 / 256), somewhat smoothed."""
    p = np.full(N_PAIRS, 1e-3)
    for lag in range(1, LAG + 1):
        if lag <= len(seen):
            p[seen[-lag]] += 1 / LAG
        else:
            p += 1 / LAG / N_PAIRS
    return p / p.sum()


def pairs_of(content: bytes | list[int]) -> list[int]:
    return [FIRST.index(a) * 16 + SECOND.index(b) for a, b in zip(content[::2], content[1::2], strict=False)]


class PairBytes:
    """Bytes of the pairs: P(first) summed over the second, P(second | first)."""

    def score(self, tokens_BT: Tensor, targets_BT: Tensor, state: object = None) -> tuple[Tensor, None]:
        first = tokens_BT.shape[1] - targets_BT.shape[1]
        rows = zip(tokens_BT.tolist(), targets_BT.tolist(), strict=True)
        nll = [[-np.log(self.of(row[: first + i + 1], y)) for i, y in enumerate(targets)] for row, targets in rows]
        return torch.tensor(np.array(nll)), None

    def of(self, read: list[int], target: int) -> float:
        """P(target) after what was read."""
        if target in SECOND and read[-1] in SECOND:
            return 1.0  # beyond the end of the text, where its last byte is repeated
        p = pair_probabilities(pairs_of(read[read[0] in SECOND :])).reshape(16, 16)
        if target in FIRST:
            return float(p[FIRST.index(target)].sum())
        row = p[FIRST.index(read[-1])]
        return float(row[SECOND.index(target)] / row.sum())


class Pairs(PairBytes):
    """One token for each pair; at an odd beginning, half a pair is dropped by whoever cuts the context."""

    def encode(self, content: bytes) -> tuple[list[int], list[int]]:
        assert content[0] in FIRST
        assert len(content) % 2 == 0
        return pairs_of(content), [2] * (len(content) // 2)

    def of(self, read: list[int], target: int) -> float:
        return float(pair_probabilities(read)[target])
