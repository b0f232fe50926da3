"""Trial of models from elsewhere, on fakes that err as models of transformers do.

`tests/measure/recl/test_huggingface.py` has these models (`make test-hf`).
"""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.measure.scoring.test_carried_cache import Fake, V, WithoutCache, member
from txl_lightning.errors import OptionError
from txl_lightning.measure.models import TokenizedText
from txl_lightning.measure.elsewhere import checked
from txl_lightning.measure.losses import context_losses

N, AT = 4000, 2500  # tokens of the text, and where models change
TOKENS = np.random.default_rng(1).integers(0, V, N)
TEXT = TokenizedText(TOKENS, None, N)
WINDOW = f'{{"text_config": {{"sliding_window": {AT}, "layers": [{AT}]}}, "vocab_size": 3999}}'
ORIGINAL = f'{{"rope_parameters": {{"full": {{"factor": 2.0, "original_max_position_embeddings": {AT}}}}}}}'
LISTED = f'{{"attention_window": [\n {AT},\n {AT}\n]}}'


class Dropping(Fake):
    """A cache without effect."""

    def kept(self, logits_BV: Tensor, n_read: int) -> Tensor:
        return 0 * logits_BV


class Forgetting(Fake):
    """A cache that loses what is in it once it is longer than a window."""

    def kept(self, logits_BV: Tensor, n_read: int) -> Tensor:
        return logits_BV * (n_read <= AT)


class Rotating(Fake):
    """A text longer than the original positions is read otherwise from its first token on."""

    def logits(self, tokens_BT: Tensor, n_read: int) -> Tensor:
        return super().logits(tokens_BT, n_read) * (2 if n_read > AT else 1)


class Failing(Fake):
    """An error of the cache."""

    def kept(self, logits_BV: Tensor, n_read: int) -> Tensor:
        raise AttributeError("'Output' has no\nattribute 'cache'. Try something else.")


@pytest.mark.parametrize(
    ("fake", "longest", "one_pass", "carried"),
    [
        (Fake(WINDOW), N, True, True),
        (Dropping(), N, True, False),
        (Dropping(weight=1e-5), N, True, False),
        *((Forgetting(config), N, True, False) for config in (WINDOW, ORIGINAL, LISTED)),
        (Forgetting(WINDOW), AT, True, True),
        (Rotating(ORIGINAL), N, False, False),
        (Rotating(ORIGINAL), AT, True, True),
        (Failing(), N, True, False),
        (WithoutCache(), N, True, False),
    ],
)
def test_a_cache_is_used_where_it_continues_a_text(
    fake: Fake, longest: int, one_pass: bool, carried: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    path = f"hf:{id(fake)}"  # a line is printed once in a process
    given, positions = replace(member(fake, None), path=path), np.array([N - 1])
    before = context_losses(given.reader, TOKENS, positions, 700)
    reader = tried(given, TEXT, longest, 256).reader
    assert (reader.one_pass, reader.carrier is not None) == (one_pass, carried)
    assert capsys.readouterr().err.count(f"{path}: its cache is not carried from segment to segment: ") == (not carried)
    np.testing.assert_array_equal(context_losses(reader, TOKENS, positions, 700), before)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_model_in_16_bits_is_tried_in_float32(dtype: torch.dtype) -> None:
    for fake, carried in ((Fake(weight=0.01), True), (Dropping(weight=0.001), False)):
        before = {name: tensor.clone() for name, tensor in fake.to(dtype).state_dict().items()}
        assert (tried(member(fake, None), TEXT, N, 256).reader.carrier is not None) == carried
        for name, tensor in fake.state_dict().items():
            assert tensor.dtype == dtype
            assert torch.equal(tensor, before[name])
        tokens_BT = torch.from_numpy(TOKENS[None, :5])
        assert fake(tokens_BT).logits.dtype == dtype


class Random(Fake):
    def logits(self, tokens_BT: Tensor, n_read: int) -> Tensor:
        return super().logits(tokens_BT, n_read) + 1e-3 * torch.rand(V)


class Looking(Fake):
    """A hashed attention: it looks ahead where a text is longer than a chunk of 64 tokens."""

    def logits(self, tokens_BT: Tensor, n_read: int) -> Tensor:
        logits_BTV = super().logits(tokens_BT, n_read)
        return logits_BTV + 1e-3 * logits_BTV[:, 64:].sum(1, keepdim=True)


class Short(Fake):
    """Fewer positions than the configuration says."""

    def logits(self, tokens_BT: Tensor, n_read: int) -> Tensor:
        raise IndexError("index out of range\nin self")


@pytest.mark.parametrize(
    ("fake", "words"),
    [
        (Random(), "must give the same tokens the same losses each time"),
        (Looking(), "must be a causal language model: losses of kind depend on later tokens"),
        (Short(), r"cannot read 769 tokens \(index out of range in self\)"),
    ],
)
def test_a_model_that_cannot_be_read_is_named(fake: Fake, words: str) -> None:
    with pytest.raises(OptionError, match=f"models=hf:name: {words}") as caught:
        tried(member(fake, None), TEXT, N)
    assert "\n" not in str(caught.value)
