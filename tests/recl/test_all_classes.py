"""Every causal class of transformers, tiny and random, is read exactly, or refused in words."""

import copy

import numpy as np
import pytest

from tests.recl.test_huggingface import pytestmark, transformers  # noqa: F401
from tests.recl.tiny_huggingface import fresh_loss, model_of
from txl_lightning.errors import UserError
from txl_lightning.recl.check import checked
from txl_lightning.recl.huggingface import HuggingFaceModel, readable_length
from txl_lightning.recl.models import Member
from txl_lightning.recl.windows import WindowReader, window_losses

TOKENS = np.random.default_rng(3).integers(3, 100, 301)
CONTEXTS = [10, 30, 50, 70]
PLACES = np.array([120, 200, 280])
TYPES = sorted(transformers.models.auto.modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)


@pytest.mark.full
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("model_type", TYPES)
def test_losses_are_those_of_fresh_windows(model_type):
    try:
        small = model_of(model_type)
        small.config.use_cache = False
        model = HuggingFaceModel(small)
    except Exception as error:  # of a config that cannot be so small
        pytest.skip(f"not built: {type(error).__name__}")
    untouched = copy.deepcopy(model)
    try:
        limit, _ = readable_length(model, CONTEXTS[-1], model_type)
        reader = WindowReader(model, limit=limit, one_pass=True)
        member = checked(
            Member(model_type, model_type, reader, {}),
            TOKENS,
            CONTEXTS,
        )
    except UserError as error:
        pytest.skip(f"refused: {error}")
    losses_CP = window_losses(member.reader, TOKENS, PLACES, CONTEXTS)
    for c, context in enumerate(CONTEXTS):
        visible = member.reader.visible(context)
        for p, place in enumerate(PLACES):
            expected = fresh_loss(untouched, TOKENS, visible, int(place))
            assert losses_CP[c, p] == pytest.approx(expected, abs=1e-3)
