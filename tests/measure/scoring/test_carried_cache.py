"""Cache of a model of transformers, carried from segment to segment, on a small fake of its interface.

`tests/measure/recl/test_huggingface.py` has models of the library (`make test-hf`).
"""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from txl_lightning.measure.elsewhere import HuggingFaceModel
from txl_lightning.measure.models import Member
from txl_lightning.measure.models import TokenizedText
from txl_lightning.measure.elsewhere import checked
from txl_lightning.measure.losses import WindowReader

V, LIMIT = 7, 20
TOKENS = np.random.default_rng(0).integers(0, V, 60)
TEXT = TokenizedText(TOKENS, None, len(TOKENS))


class Fake(nn.Module):
    """Causal model of transformers: logits are the counts of all tokens read, in tens; the cache has the last ones."""

    def __init__(self, config: str = "{}", weight: float = 0.1) -> None:
        super().__init__()
        self.embedding = nn.Embedding.from_pretrained(torch.eye(V))
        self.layers = nn.ModuleList([nn.Linear(V, V, bias=False)])
        self.layers[0].weight.data = weight * torch.eye(V)
        self.config = SimpleNamespace(
            get_text_config=lambda: SimpleNamespace(vocab_size=V), to_json_string=lambda use_diff: config
        )

    def forward(self, input_ids: Tensor, past_key_values: Any = None, use_cache: bool = False) -> SimpleNamespace:
        before_BV, n_read = past_key_values or (0, 0)
        logits_BTV = self.logits(input_ids, n_read + input_ids.shape[1])
        if n_read:
            logits_BTV = logits_BTV + self.kept(before_BV, n_read)[:, None]
        cache = (logits_BTV[:, -1], n_read + input_ids.shape[1]) if use_cache else None
        return SimpleNamespace(logits=logits_BTV, past_key_values=cache)

    def logits(self, tokens_BT: Tensor, n_read: int) -> Tensor:
        logits_BTV: Tensor = self.layers[0](self.embedding(tokens_BT).cumsum(1))
        return logits_BTV

    def kept(self, logits_BV: Tensor, n_read: int) -> Tensor:
        return logits_BV


class WithoutCache(Fake):
    """A model that reads a text at once."""

    def forward(self, input_ids: Tensor, use_cache: bool = False) -> SimpleNamespace:  # type: ignore[override]
        return super().forward(input_ids)


def member(model: Fake, limit: int | None, begin: int | None = None) -> Member:
    hub = HuggingFaceModel(model, begin, limit).requires_grad_(False)
    return Member("name", "hf:name", "kind", None, WindowReader(hub, limit=limit, one_pass=True), lambda content: TEXT)


@pytest.mark.parametrize("begin", [None, 3])
def test_segments_have_the_losses_of_a_text_that_begins_anew_where_positions_end(begin: int | None) -> None:
    fake = member(Fake(), LIMIT, begin)
    carrier = tried(fake, TEXT, 48, 8).reader.carrier
    assert carrier is not None
    stream, state, losses = torch.from_numpy(TOKENS)[None], None, []
    for start in range(0, 48, 8):
        nll, state = carrier.score(stream[:, start : start + 8], stream[:, start + 1 : start + 9], state)
        losses.append(nll)
    whole = [fake.reader.model.score(stream[:, i : i + 16], stream[:, i + 1 : i + 17])[0] for i in (0, 16, 32)]
    torch.testing.assert_close(torch.cat(losses, 1), torch.cat(whole, 1))  # two segments of 8 fit into 20 positions
