"""Loss in bfloat16 beside float32, on the first tokens of a split."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from txl_lightning.evaluation.scoring.protocols import ScoringProtocol

SAMPLE_TOKENS = 5_000


def float32_difference(protocol: ScoringProtocol, split: str) -> dict[str, Any] | None:
    """Return by how much the protocol's precision changes the mean loss of about `SAMPLE_TOKENS` first tokens.

    Args:
        protocol: scored protocol.
        split: split to take the tokens from.

    Returns:
        The entry `float32_difference` of `evaluation.json` (see `evaluate.command`); None with `32-true`.
    """
    if protocol.precision == "32-true":
        return None
    sample = protocol.first(SAMPLE_TOKENS)
    ours, exact = sample.losses(split), replace(sample, precision="32-true").losses(split)
    return {"nll": ours.mean - exact.mean, "tokens": len(ours.nll), "split": split}
