"""Every variant composes, trains with memory and without, resumes bit for bit, and has the same losses on two ranks."""

from dataclasses import dataclass, fields

import pytest
import torch
from omegaconf import OmegaConf

from tests.covering import product_of
from tests.training.recorded_run import recorded_losses, recorded_runs, run_on_all
from tests.training.small_run import stored_memory, tiny_config
from txl_lightning import TransformerXLConfig
from txl_lightning.config.schemas import CONF, plain
from txl_lightning.errors import OptionError
from txl_lightning.evaluation.models import model_class
from txl_lightning.evaluation.trained import load_trained, read_file
from txl_lightning.training.run import train

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
PARALLEL = (
    *(
        "trainer.max_steps=10",
        "data.batch_size=9",
        "evaluation.batch_size=5",
        "data.random_start=true",
    ),
    *("model.dropout=0", "trainer.stream_groups=2", "trainer.precision=64-true"),
)


@dataclass(kw_only=True)
class Deep(TransformerXLConfig):
    n_layer: int = 3


def test_a_variant_with_another_default_keeps_the_rules_of_the_option():
    with pytest.raises(OptionError, match=r"n_layer=0: must be an integer >= 1"):
        Deep(9, n_layer=0)


def test_every_file_of_conf_has_a_variant_and_its_defaults(tmp_path):
    assert {path.stem for path in (CONF / "variant").glob("*.yaml")} == {"none", *VARIANTS}
    known = {f.name for f in fields(TransformerXLConfig)}
    for name in VARIANTS:
        config = tiny_config(tmp_path, f"variant={name}")
        given = OmegaConf.load(CONF / f"variant/{name}.yaml")
        given = given.get("variant", given)
        left_out = known | {option for option in given if OmegaConf.is_interpolation(given, option)}
        own = {
            f.name: f.default
            for f in fields(model_class(config).config_class)
            if f.name not in left_out
        }
        assert {option: x for option, x in config.variant.items() if option not in left_out} == {
            "name": name
        } | own


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
    whole = train(tiny_config(tmp_path, *options, "trainer.max_steps=16"), tmp_path / "whole")
    first = train(tiny_config(tmp_path, *options, "trainer.max_steps=6"), tmp_path / "second")
    train(
        tiny_config(tmp_path, *options, "trainer.max_steps=16", "resume=auto"), tmp_path / "second"
    )
    assert whole["val/bpb"] < first["val/bpb"] < 8.5
    assert whole["tokens"] == 16 * 4 * 8 * (3 if SEGMENTS in words else 1)
    checkpoints = [tmp_path / name / "checkpoints/last.ckpt" for name in ("whole", "second")]
    states = [
        (read_file(path)["state_dict"], stored_memory(path).state_dict()) for path in checkpoints
    ]
    torch.testing.assert_close(*states, rtol=0, atol=0)
    file = "model.transformer_xl" if variant == "none" else f"variants.{variant}"
    assert type(load_trained(checkpoints[1]).model).__module__ == f"txl_lightning.{file}"


@pytest.mark.slow
def test_losses_do_not_depend_on_the_number_of_ranks_and_groups(tmp_path):
    def jobs(W):
        runs = []
        for name in VARIANTS:
            options = (f"variant={name}", *VARIANTS[name], *PARALLEL, f"trainer.devices={W}")
            runs.append((plain(tiny_config(tmp_path, *options)), str(tmp_path / f"{name}{W}"), {}))
        return runs

    recorded_runs(jobs(1))
    run_on_all(jobs(2), 2)
    for name in VARIANTS:
        one, two = (recorded_losses(tmp_path / f"{name}{W}") for W in (1, 2))
        assert len(one) >= 10
        assert two == [(step, pytest.approx(loss, abs=1e-10)) for step, loss in one], name
