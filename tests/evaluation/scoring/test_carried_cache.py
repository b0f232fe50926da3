"""Cache of a model of transformers, carried from segment to segment, on a small fake of its interface.

`tests/evaluation/recl/test_huggingface.py` has models of the library (`make test-hf`).
"""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from txl_lightning.evaluation.scoring.models import CarriedCache, HuggingFaceModel, Member, carrying
from txl_lightning.evaluation.scoring.tokenized_text import TokenizedText
from txl_lightning.evaluation.scoring.windows import WindowReader

V, LIMIT = 7, 20
TOKENS = np.random.default_rng(0).integers(0, V, 60)
TEXT = TokenizedText(TOKENS, None, len(TOKENS))


class Fake(nn.Module):
    """Causal model of transformers: logits are the counts of all tokens read; the cache has the counts."""

    def __init__(self, keeps: bool = True) -> None:
        super().__init__()
        self.keeps, self.weight = keeps, nn.Parameter(torch.ones(()))
        self.config = SimpleNamespace(get_text_config=lambda: SimpleNamespace(vocab_size=V))

    def forward(self, input_ids: Tensor, past_key_values: Any = None, use_cache: bool = False) -> SimpleNamespace:
        logits_BTV = nn.functional.one_hot(input_ids, V).cumsum(1).float() * self.weight
        if past_key_values is not None and self.keeps:
            logits_BTV = logits_BTV + past_key_values[:, None]
        return SimpleNamespace(logits=logits_BTV, past_key_values=logits_BTV[:, -1] if use_cache else None)


class WithoutCache(Fake):
    """A model that reads a text at once."""

    def forward(self, input_ids: Tensor, use_cache: bool = False) -> SimpleNamespace:  # type: ignore[override]
        return super().forward(input_ids)


def member(model: Fake, limit: int | None, begin: int | None = None) -> Member:
    reader = WindowReader(HuggingFaceModel(model, begin).requires_grad_(False), limit=limit, one_pass=True)
    return Member("name", "hf:name", "kind", None, reader, lambda content: TEXT)


@pytest.mark.parametrize("begin", [None, 3])
def test_segments_have_the_losses_of_a_text_that_begins_anew_where_positions_end(begin: int | None) -> None:
    fake = member(Fake(), LIMIT, begin)
    carrier = carrying(fake, TEXT)
    assert isinstance(carrier, CarriedCache)
    stream, state, losses = torch.from_numpy(TOKENS)[None], None, []
    for start in range(0, 48, 8):
        nll, state = carrier.score(stream[:, start : start + 8], stream[:, start + 1 : start + 9], state)
        losses.append(nll)
    whole = [fake.reader.model.score(stream[:, i : i + 16], stream[:, i + 1 : i + 17])[0] for i in (0, 16, 32)]
    torch.testing.assert_close(torch.cat(losses, 1), torch.cat(whole, 1))  # two segments of 8 fit into 20 positions


def test_a_cache_that_does_not_continue_a_text_is_not_used() -> None:
    assert carrying(member(Fake(keeps=False), LIMIT), TEXT) is None
    assert carrying(member(WithoutCache(), None), TEXT) is None
