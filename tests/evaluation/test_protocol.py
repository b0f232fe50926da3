"""Attention lengths of windows and of clamped memories, by perturbation in float64."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.training.small_run import tiny_config
from txl_lightning.config.lengths import trained_clamp
from txl_lightning.data.corpus import Corpus
from txl_lightning.data.vocabulary import Vocabulary
from txl_lightning.evaluation.models import make_model
from txl_lightning.evaluation.protocol import Protocol
from txl_lightning.evaluation.trained import TrainedModel

N, SEGMENT = 33, 8
TOKENS = (
    np.random.default_rng(3)
    .integers(
        0,
        256,
        N,
    )
    .astype(np.uint8)
)
LONGER = ("relative", "shaw")  # absolute positions end with the trained length


def protocol_of(folder: Path, *overrides: str) -> Protocol:
    """Protocol of an untrained model with large weights in float64, on one stream."""
    config = tiny_config(folder, "evaluation.batch_size=1", *overrides)
    torch.manual_seed(1)
    model = make_model(config, 256).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.3)
    return Protocol(
        TrainedModel(model, config, Vocabulary("byte"), 0),
        config.evaluation,
    )


def losses(protocol: Any, tokens: np.ndarray = TOKENS) -> np.ndarray:
    return protocol.losses(
        Corpus(
            "text",
            {"test": tokens},
            Vocabulary("byte"),
            "",
        ),
        "test",
    ).nll


@pytest.mark.parametrize("encoding", [*LONGER, "absolute", "al_rfou"])
def test_every_token_sees_the_stated_attention_length(tmp_path: Path, encoding: str) -> None:
    protocol = protocol_of(tmp_path, "memory=off", f"encoding={encoding}")
    longest = protocol.within_limit(14)
    assert longest == (14 if encoding in LONGER else SEGMENT)
    for window in (protocol.at_training_lengths(), protocol.at_attention_length(longest)):
        settings = window.settings()
        S = settings["segment_len"]
        A = S + settings["ext_len"]
        assert (settings["mem_len"], settings["protocol"], S) == (
            0,
            "window",
            max(1, A // 4),
        )
        before = losses(window)
        for changed in range(0, N - 1, 8):
            tokens = TOKENS.copy()
            tokens[changed] += 1
            after = losses(window, tokens)
            differ = set((np.flatnonzero(before != after) + 1).tolist()) - {changed}
            last = min(
                changed + A - S + 1,
                N - 1,
            )
            guaranteed = set(range(changed + 1, last + 1))
            assert (
                guaranteed
                <= differ
                <= set(
                    range(
                        changed + 1,
                        changed + A + 1,
                    )
                )
            ), (A, changed)
    assert (
        protocol.at_training_lengths().settings()
        == protocol.at_attention_length(SEGMENT).settings()
    )


@pytest.mark.parametrize("memory", ["on", "off"])
def test_distances_beyond_training_are_clamped_and_others_are_not(
    tmp_path: Path, memory: str
) -> None:
    protocol = protocol_of(tmp_path, f"memory={memory}")
    trained = SEGMENT + (SEGMENT if memory == "on" else 0)
    assert trained_clamp(protocol.trained.config) == trained - 1
    within, beyond = (protocol.at_attention_length(length) for length in (trained, trained + 6))
    assert within.settings()["clamp_len"] == -1
    assert beyond.settings()["clamp_len"] == trained - 1
    free = replace(beyond, clamped=False)
    assert free.settings() == beyond.settings() | {"clamp_len": -1}
    assert not np.allclose(losses(beyond), losses(free))
