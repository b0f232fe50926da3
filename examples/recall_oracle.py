"""Model with the exact probabilities for `data=recall`: `txl recl models=[py:examples.recall_oracle.oracle]`.

No model can have a lower loss on average: with c context tokens its mean loss is the entropy `Recall.entropy(c)`. It is
scored in a group with checkpoints trained on `data=recall`, or on a separate text:

    python examples/recall_oracle.py recall.txt
    txl recl models=[py:examples.recall_oracle.oracle] data_path=recall.txt first_context=32 max_context=96
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from torch import Tensor

from txl_lightning.data.recall import CHARACTERS, Recall

TEXT = Recall(distances=(48,), repeats=0.9, symbols=8)  # the defaults in conf/data/recall.yaml


class RecallOracle:
    """Exact distribution of the next token given a window's tokens, which are bytes.

    A target repeats the token d before with probability q (`Recall.match`) if that token is in the window. Otherwise
    the symbols are equally probable.
    """

    def __init__(self, text: Recall) -> None:
        self.text = text
        self.numbers = torch.zeros(256, dtype=torch.long)
        self.numbers[list(CHARACTERS.encode())] = torch.arange(len(CHARACTERS))

    def score(
        self, tokens_BT: Tensor, targets_BT: Tensor, state: None = None
    ) -> tuple[Tensor, None]:
        """Return -log P for the targets, the window's last tokens, in nats, [B, T'], and no state."""
        text = self.text
        n_targets = targets_BT.shape[1]
        tokens_BT = torch.cat(
            [tokens_BT, targets_BT[:, -1:]],
            dim=1,
        )
        window_BT = self.numbers[tokens_BT.long()]
        alphabet_BT = window_BT // text.symbols
        distance_BT = torch.tensor(text.distances)[alphabet_BT]
        source_BT = torch.arange(window_BT.shape[1]) - distance_BT
        repeated_BT = window_BT.gather(1, source_BT.clamp(min=0))
        other = (1 - text.match) / (text.symbols - 1)
        seen_BT = torch.where(repeated_BT == window_BT, text.match, other).double()
        p_BT = torch.where(source_BT >= 0, seen_BT, 1 / text.symbols)
        return -p_BT.log()[:, -n_targets:], None


def oracle() -> RecallOracle:
    """Return the oracle for `TEXT`."""
    return RecallOracle(TEXT)


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(
        TEXT.text(
            400_000,
            seed=1,
        )
    )
