"""An exported checkpoint computes the same in Hugging Face's own class (`make test-transformers`).

In float32: this release masks scores in single precision and cannot run in double.
"""

import pytest
import torch

from tests.model.tiny_model import random_stream, tiny_model
from txl_lightning.model.checkpoints import from_huggingface, to_huggingface

transformers = pytest.importorskip(
    "transformers",
    reason="needs transformers==4.37.2, the last release with a working TransfoXL: make test-transformers",
    exc_type=ImportError,
)
pytestmark = [
    pytest.mark.transformers,
    pytest.mark.skipif(not hasattr(transformers, "TransfoXLLMHeadModel"), reason="this release has no TransfoXL"),
    pytest.mark.filterwarnings("default"),
]

OPTIONS = [
    {},
    {"untie_biases": True, "mem_len": 6},
    {"same_length": True, "clamp_len": 3, "mem_len": 5},
    {"cutoffs": (3, 7)},
    {"cutoffs": (3, 7), "d_embed": 4},
    {"cutoffs": (3, 7), "div_val": 2, "untie_biases": True},
    {"cutoffs": (3, 7), "div_val": 2, "tie_projections": "none"},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_losses_of_several_segments_are_the_same(options):
    model = tiny_model(memory_start="zeros", **options).float().eval()
    weights, config = to_huggingface(model)
    theirs = transformers.TransfoXLLMHeadModel(transformers.TransfoXLConfig(**config)).eval()
    theirs.load_state_dict(weights)
    stream, memory, mems = random_stream(2, 13), None, None
    for start in range(0, 12, 4):
        tokens, targets = stream[:, start : start + 4], stream[:, start + 1 : start + 5]
        with torch.no_grad():
            nll, memory = model.score(tokens, targets, memory)
            output = theirs(tokens, mems=mems)
        mems = output.mems
        expected = -output.prediction_scores.gather(-1, targets[..., None])[..., 0]
        torch.testing.assert_close(nll, expected, rtol=0, atol=2e-5)


def test_their_own_new_model_is_read():
    clusters = {"vocab_size": 30, "cutoffs": [10, 20], "d_embed": 8, "div_val": 2}
    sizes = {"d_model": 16, "n_head": 2, "d_head": 8, "d_inner": 20, "n_layer": 2, "mem_len": 5}
    config = transformers.TransfoXLConfig(**clusters, **sizes)
    theirs = transformers.TransfoXLLMHeadModel(config).eval()
    ours = from_huggingface(theirs.state_dict(), config.to_dict()).eval()
    stream = random_stream(2, 7, vocab_size=30)
    with torch.no_grad():
        nll, _ = ours.score(stream[:, :-1], stream[:, 1:])
        expected = -theirs(stream[:, :-1]).prediction_scores.gather(-1, stream[:, 1:, None])[..., 0]
    torch.testing.assert_close(nll, expected, rtol=0, atol=2e-5)
