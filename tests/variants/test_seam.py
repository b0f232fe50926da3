"""A variant is one file outside the package, as docs/house.md has it."""

from typing import Any

import pytest
import torch

from tests.docs.pages import ROOT, blocks
from tests.model.tiny_model import tiny_model
from tests.own_guests import no_guests  # noqa: F401 - a fixture
from tests.training.small_run import tiny_config
from txl_lightning.errors import OptionError
from txl_lightning.evaluation.models import make_model
from txl_lightning.evaluation.trained import load_trained
from txl_lightning.model.inference.cached import can_cache
from txl_lightning.model.transformer_xl import TransformerXL, TransformerXLLayer
from txl_lightning.training.run import train


@pytest.mark.usefixtures("no_guests")
def test_a_variant_is_one_file(tmp_path, monkeypatch):
    (code,) = (code for code in blocks(ROOT / "docs/house.md", "python") if "ToyConfig" in code)
    (tmp_path / "toy.py").write_text(code)
    monkeypatch.setenv(
        "TXL_GUESTS",
        str(tmp_path / "toy.py"),
    )
    config = tiny_config(tmp_path)
    config.variant = {"name": "toy", "factor": 0.5}
    train(config, tmp_path / "run")
    model = load_trained(tmp_path / "run/checkpoints/best.ckpt").model.eval()
    assert (type(model).__name__, model.config.factor) == ("ToyTransformerXL", 0.5)
    tokens = torch.arange(6).view(1, 6) % model.config.vocab_size
    found = model.score(tokens, tokens)[0]
    for layer in model.layers:
        layer.factor = 1.0
    assert not found.allclose(model.score(tokens, tokens)[0])
    config.variant["facto"] = 1
    with pytest.raises(
        OptionError, match=r"variant\.facto=1: unknown option for variant=toy; it has factor"
    ):
        train(config, tmp_path / "second")


def test_a_subclass_without_options_does_not_take_the_cores_place(tmp_path):
    class Unregistered(TransformerXL):
        pass

    assert type(make_model(tiny_config(tmp_path), 20)) is TransformerXL
    assert can_cache(tiny_model(Unregistered))


def test_a_model_with_another_forward_is_not_cached():
    class Layer(TransformerXLLayer):
        def forward(self, *args: Any, **options: Any) -> Any:
            return super().forward(*args, **options)

    class Model(TransformerXL):
        layer_class = Layer

    class Forgetful(TransformerXL):
        def next_memory(self, *args: Any, **options: Any) -> Any:
            return super().next_memory(*args, **options)

    assert [can_cache(tiny_model(kind)) for kind in (TransformerXL, Model, Forgetful)] == [
        True,
        False,
        False,
    ]
