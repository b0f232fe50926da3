"""Every variant composes, trains with memory and without, resumes bit for bit, and has the same losses on two ranks."""

from dataclasses import dataclass, fields

import pytest
import torch
from omegaconf import OmegaConf

from tests.covering import product_of
from tests.training.small_run import stored_memory, tiny_config, train_tiny
from txl_lightning import TransformerXLConfig
from txl_lightning.config.schemas import CONF
from txl_lightning.errors import OptionError
from txl_lightning.evaluation.models import model_class
from txl_lightning.evaluation.trained import load_trained, read_file

VARIANTS = {
    "attention_gate": (),
    "compressive": ("variant.rate=2",),
    "forget_gate": ("encoding=none",),
    "gru_residual": (),
    "memory_tokens": ("variant.n_tokens=3",),
}
OPTIONS = (
    "model.dropout=0.2",
    "optimizer.schedule=constant",
    "evaluation.max_segments=2",
    "loss=random_half",
)


@dataclass(kw_only=True)
class Deep(TransformerXLConfig):
    n_layer: int = 3


def test_a_variant_with_another_default_keeps_the_rules_of_the_option():
    with pytest.raises(OptionError, match=r"n_layer=0: must be an integer >= 1"):
        Deep(9, n_layer=0)


def test_every_file_of_conf_has_a_variant_and_its_defaults(tmp_path):
    assert {path.stem for path in (CONF / "variant").glob("*.yaml")} == {"none", *VARIANTS}
    core = {f.name for f in fields(TransformerXLConfig)}
    for name in VARIANTS:
        config = tiny_config(tmp_path, f"variant={name}")
        given = OmegaConf.load(CONF / f"variant/{name}.yaml")
        given = given.get("variant", given)
        left_out = core | {option for option in given if OmegaConf.is_interpolation(given, option)}
        defaults = {"name": name}
        for f in fields(model_class(config).config_class):
            defaults[f.name] = f.default
        for option in left_out:
            defaults.pop(option, None)
            config.variant.pop(option, None)
        assert config.variant == defaults


SEGMENTS = "memory.gradient_segments=2"
DOCUMENTS = f"{SEGMENTS} memory.reset=document data.document_start='^line.*5:'"
RESUMED = [
    ("none", SEGMENTS),
    pytest.param("memory_tokens", SEGMENTS, marks=pytest.mark.slow),
]
for case in product_of(VARIANTS, ["memory=on", "memory=off"]):
    RESUMED += [pytest.param(*case.values, marks=[pytest.mark.slow, *case.marks])]
RESUMED += [pytest.param("none", DOCUMENTS, marks=pytest.mark.full)]


@pytest.mark.parametrize(("variant", "words"), RESUMED)
def test_a_resumed_run_equals_an_uninterrupted_one_bit_for_bit(tmp_path, variant, words):
    options = (f"variant={variant}", *VARIANTS.get(variant, ()), *words.split(), *OPTIONS)
    whole = train_tiny(tmp_path, *options, name="whole")
    first = train_tiny(
        tmp_path,
        *options,
        "trainer.max_steps=6",
        name="resumed",
    )
    train_tiny(tmp_path, *options, "resume=auto", name="resumed")
    assert whole["val/bpb"] < first["val/bpb"] < 8.5
    assert whole["tokens"] == 12 * 4 * 8 * (3 if SEGMENTS in words else 1)
    states = []
    for name in ("whole", "resumed"):
        path = tmp_path / name / "checkpoints/last.ckpt"
        states.append((read_file(path)["state_dict"], stored_memory(path).state_dict()))
    torch.testing.assert_close(
        *states,
        rtol=0,
        atol=0,
    )
    file = "model.transformer_xl" if variant == "none" else f"variants.{variant}"
    assert type(load_trained(path).model).__module__ == f"txl_lightning.{file}"
