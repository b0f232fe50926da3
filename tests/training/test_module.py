"""The LightningModule carries memories: apart, in order, and as values."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from lightning.pytorch.strategies import DeepSpeedStrategy, FSDPStrategy, ModelParallelStrategy

from tests.training.small_run import add_gradients, bare_module
from txl_lightning import TransformerXL, TransformerXLConfig
from txl_lightning.config.lengths import Lengths
from txl_lightning.data.streams import Batch, Streams
from txl_lightning.errors import OptionError
from txl_lightning.training.module import LanguageModelModule
from txl_lightning.training.scoring import scored_positions

CONFIG = TransformerXLConfig(
    vocab_size=20, n_layer=2, d_model=8, n_head=2, d_head=4, d_inner=8, mem_len=6, dropout=0.0
)


@pytest.fixture
def module() -> LanguageModelModule:
    torch.manual_seed(0)
    return bare_module(
        TransformerXL(CONFIG),
        Lengths(6, mem_len=9, same_length=True),
    )


@pytest.fixture
def streams() -> Streams:
    tokens = torch.randint(20, (90,), generator=torch.Generator().manual_seed(1)).numpy()
    return Streams(tokens, batch_size=3, segment_len=6)


def test_validation_counts_all_positions_of_a_half_loss(module):
    tokens = torch.arange(12).view(2, 6)
    segment = Batch(
        tokens[:, :-1],
        tokens[:, 1:],
        number=0,
    )
    nll = module.model.score(segment.tokens, segment.targets)[0].detach()
    module.config.loss = "half"
    module.validation_step(segment, 0)
    assert float(module.evaluation_sums[0]) == pytest.approx(float(nll.sum()))


@pytest.mark.parametrize(
    ("T", "first"),
    [(6, 3), (5, 2), (1, 0)],
)
def test_half_loss_is_of_the_last_half(T, first):
    assert scored_positions("half", T, seed=1, step=0) == slice(first, T)


@pytest.mark.parametrize(
    ("T", "n"),
    [(1, 1), (6, 3), (7, 4)],
)
def test_a_random_half_depends_on_seed_and_step_alone(T, n):
    state = torch.get_rng_state()
    seen = set()
    for step in range(50):
        positions = scored_positions("random_half", T, 1, step).tolist()
        assert positions == scored_positions("random_half", T, 1, step).tolist()
        assert len(set(positions)) == n
        seen.update(positions)
    assert seen == set(range(T))
    assert torch.equal(torch.get_rng_state(), state)
    others = scored_positions("random_half", 99, 1, 1).tolist()
    assert scored_positions("random_half", 99, 2, 1).tolist() != others


def test_segments_out_of_order_are_refused(module, streams):
    add_gradients(module, streams[0])
    with pytest.raises(RuntimeError, match="expected segment 1, got segment 2"):
        add_gradients(module, streams[2])


@pytest.mark.parametrize("kind", [FSDPStrategy, ModelParallelStrategy, DeepSpeedStrategy])
def test_strategies_that_divide_the_weights_are_refused(module, kind):
    module._trainer = SimpleNamespace(
        strategy=kind.__new__(kind),
        world_size=1,
    )
    with pytest.raises(
        OptionError, match=f"^strategy={kind.__name__}: divides the weights, .*: use auto or ddp$"
    ):
        module.setup("fit")


@pytest.mark.parametrize(
    ("mem_len", "filled"),
    [
        (9, [9, 9]),
        (0, [0] * 8),
    ],
)
def test_only_full_memories_and_whole_segments_are_compiled(streams, mem_len, filled):
    """With a memory of 9 the first segment begins with 0 states, the second with 6; the last segment has 5 tokens."""
    module = bare_module(
        TransformerXL(replace(CONFIG, mem_len=mem_len)),
        compile=True,
    )
    module.config.data.segment_len = 6
    model_score = module.model.score
    compiled = []

    def score(tokens, targets, memory):
        assert tokens.shape[1] == 6
        compiled.append(memory.filled if memory else 0)
        return model_score(tokens, targets, memory)

    module.score = score
    n_epochs = 1 if mem_len else 2
    for _ in range(n_epochs):
        for segment in streams:
            add_gradients(module, segment)
    assert compiled == filled
