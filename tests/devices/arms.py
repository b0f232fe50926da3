"""Small models of every arm: encodings with and without memory, subsets of terms, softmaxes, norms, baselines."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch

from tests.training.small_run import bare_module
from txl_lightning import Memory, TransformerXL, TransformerXLConfig
from txl_lightning.data.streams import Batch, part_of_streams
from txl_lightning.evaluation.models import Model
from txl_lightning.model import embedding
from txl_lightning.model.baselines import RecurrentConfig, RecurrentLanguageModel
from txl_lightning.training.module import LanguageModelModule

B = 4
T = 6
SIZES = {
    "vocab_size": 30,
    "n_layer": 2,
    "d_model": 8,
    "n_head": 2,
    "d_head": 4,
    "d_inner": 12,
}
RELATIVE = TransformerXLConfig(**SIZES, dropout=0.1, mem_len=6, table_len=16)
RECURRENT = RecurrentConfig(vocab_size=30, n_layer=2, d_model=8, weight_dropout=0.1)
ENCODINGS = ("relative", "shaw", "absolute", "al_rfou", "alibi", "none", "rope")
ARMS = {
    **{f"{name}, memory": replace(RELATIVE, encoding=name) for name in ENCODINGS},
    **{f"{name}, no memory": replace(RELATIVE, encoding=name, mem_len=0) for name in ENCODINGS},
    **{
        f"terms {terms}": replace(RELATIVE, terms=terms)
        for terms in ("abd", "ab", "ac", "ad", "cd", "d", "a", "")
    },
    **{
        f"shaw, terms {terms}": replace(RELATIVE, encoding="shaw", terms=terms)
        for terms in ("ab", "d")
    },
    "attention dropout": replace(RELATIVE, attention_dropout=0.1),
    "pre-norm": replace(RELATIVE, pre_norm=True),
    "biases per layer": replace(RELATIVE, untie_biases=True),
    "same length, clamp": replace(RELATIVE, same_length=True, clamp_len=5),
    "extended context": replace(RELATIVE, ext_len=2),
    "memory of zeros": replace(RELATIVE, memory_start="zeros"),
    "narrow embedding": replace(RELATIVE, d_embed=4),
    "adaptive softmax": replace(RELATIVE, cutoffs=(5, 12)),
    "adaptive embedding": replace(RELATIVE, cutoffs=(5, 12), div_val=2, tie_projections="none"),
    "documents": replace(RELATIVE, memory_reset="document"),
    "lstm": RECURRENT,
    "qrnn": replace(RECURRENT, cell="qrnn"),
    "lstm, adaptive embedding": replace(RECURRENT, cutoffs=(5, 12), div_val=2),
}
# Together these run every branch of the models; `make test-all` takes all arms.
ALWAYS = (
    *(
        "relative, memory",
        "shaw, memory",
        "absolute, no memory",
        "al_rfou, memory",
        "alibi, memory",
        "terms cd",
    ),
    *("rope, memory", "biases per layer", "same length, clamp"),
    *("memory of zeros", "adaptive embedding", "documents"),
    *("lstm", "qrnn"),
)


def cases(arms: Iterable[str] = tuple(ARMS)) -> list[Any]:
    """Return arms as parameters of a test."""
    return [pytest.param(arm, marks=() if arm in ALWAYS else pytest.mark.full) for arm in arms]


def make(arm: str, device: str = "cpu") -> Model:
    """Return the model of an arm on a device."""
    config = ARMS[arm]
    model = (
        TransformerXL(config)
        if isinstance(config, TransformerXLConfig)
        else RecurrentLanguageModel(config)
    )
    return model.to(device)


def tokens(device: str = "cpu") -> torch.Tensor:
    """Return random tokens [B, T + 1] on a device."""
    return torch.randint(
        30,
        (B, T + 1),
        generator=torch.Generator().manual_seed(0),
    ).to(device)


def prepared(
    arm: str, first: Batch, n_groups: int = 1, **options: Any
) -> tuple[LanguageModelModule, torch.optim.Optimizer]:
    """Return a module on the device of its first segment, with a full memory after it, and its optimizer."""
    module = bare_module(make(arm), **options).to(first.tokens.device)
    optimizer = module.configure_optimizers()["optimizer"]
    memory = module.model.start_memory(B, static=True)
    if isinstance(memory, Memory):
        memory = replace(memory, filled=memory.length)
    for group in range(n_groups):
        of_group = memory.streams(*part_of_streams(B, group, n_groups))
        module.training_memory.after(first._replace(group=group), of_group)
    return module, optimizer


def even_clusters(cluster_of: torch.Tensor, n_clusters: int) -> list[int]:
    """Stand in for `targets_per_cluster`, which waits for the device: every cluster gets its share of the targets."""
    n = cluster_of.numel()
    return [
        n - (n_clusters - 1) * (n // n_clusters),
        *[n // n_clusters] * (n_clusters - 1),
    ]


@contextmanager
def unread_clusters() -> Iterator[None]:
    """Replace the one read of the adaptive softmax."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(embedding, "targets_per_cluster", even_clusters)
        yield
