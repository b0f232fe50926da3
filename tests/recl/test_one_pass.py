"""Models of transformers whose losses change with the length of the window: exact at every context of the grid."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.recl.test_huggingface import measured, pytestmark  # noqa: F401
from tests.recl.tiny_huggingface import VOCABULARY, fresh_loss, save_tiny
from txl_lightning.errors import OptionError
from txl_lightning.recl.check import checked
from txl_lightning.recl.huggingface import load_huggingface
from txl_lightning.recl.models import Member
from txl_lightning.recl.windows import window_losses

TOKENS = np.random.default_rng(3).integers(0, VOCABULARY, 401)
CONTEXTS = [40, 60, 80, 96, 120, 160, 200, 240]
PLACES = np.arange(250, 400, 25)
ROTATION = {"rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 100}
LONGROPE = {
    **ROTATION,
    "rope_type": "longrope",
    "short_factor": [1.0] * 4,
    "long_factor": [4.0, 8.0, 16.0, 32.0],
}
DYNAMIC = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 4.0}
YARN = {**ROTATION, "rope_type": "yarn"}
DOGE = {"keep_window_size": 80, "sliding_window": None}
KINDS = [
    ("phi3", {"original_max_position_embeddings": 100, "rope_parameters": LONGROPE}, False),
    ("llama", {"rope_parameters": DYNAMIC, "max_position_embeddings": 100}, False),
    ("doge", DOGE, False),
    ("deepseek_v32", {"index_topk": 80}, False),
    ("olmo2", {"rope_parameters": YARN, "max_position_embeddings": 100}, True),
    ("mistral", {"sliding_window": 9}, True),
]


def checked_member(folder: Path, kind: str, options: dict[str, Any], contexts: list[int]) -> Member:
    """Save a model, load it and check it."""
    save_tiny(folder, kind, **{"max_position_embeddings": 400, **options})
    loaded = load_huggingface(
        f"hf:{folder}",
        contexts[-1],
    )
    return checked(loaded, TOKENS, contexts)


@pytest.mark.parametrize(("kind", "options", "one_pass"), KINDS)
def test_losses_are_those_of_fresh_windows(kind, options, one_pass, tmp_path):
    """Dynamic NTK rotates otherwise beyond the positions of its config, 100, which are no limit."""
    member = checked_member(tmp_path, kind, options, CONTEXTS)
    assert member.reader.limit is None
    assert member.reader.one_pass == one_pass
    assert (member.findings["one_pass_difference"] < 1e-3) == one_pass
    losses_CP = window_losses(member.reader, TOKENS, PLACES, CONTEXTS)
    fresh = load_huggingface(f"hf:{tmp_path}", CONTEXTS[-1]).reader.model
    for c, context in enumerate(CONTEXTS):
        for p, place in enumerate(PLACES):
            expected = fresh_loss(fresh, TOKENS, context, int(place))
            assert losses_CP[c, p] == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize(
    ("length", "one_pass"),
    [(39, True), (100, False), (240, True)],
)
def test_a_change_at_a_length_is_seen_between_the_contexts(length, one_pass, tmp_path):
    """Beyond the grid or below it, all windows are rotated alike."""
    original = {"original_max_position_embeddings": length}
    options = {**original, "rope_parameters": {**LONGROPE, **original}}
    member = checked_member(
        tmp_path,
        "phi3",
        options,
        [40, 120, 239 + one_pass],
    )
    assert member.reader.one_pass == one_pass


def test_the_way_of_reading_and_the_difference_stand_in_the_result(tmp_path):
    sliding = save_tiny(tmp_path / "sliding", "mistral", sliding_window=9)
    long = save_tiny(tmp_path / "long", "doge", **DOGE)
    first, second = measured(
        tmp_path,
        sliding,
        long,
        max_context=96,
        step=46,
    )["models"]
    assert (first["scoring"], second["scoring"]) == ("one pass", "direct")
    assert first["one_pass_difference"] < 1e-4 < 0.01 < second["one_pass_difference"]
    note = "long: read in windows of exactly c tokens: one pass differs by"
    assert note in (tmp_path / "run/recl.md").read_text()


def test_an_encoder_is_refused(tmp_path):
    with pytest.raises(OptionError, match=r"its losses depend on later tokens .*is_decoder"):
        checked_member(
            tmp_path,
            "bert",
            {"is_decoder": False, "pad_token_id": 1},
            [8, 64],
        )
