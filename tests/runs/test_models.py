"""Options of `conf/` and fields of the models' configs: one description in two places says the same."""

from dataclasses import MISSING, fields
from operator import attrgetter

from omegaconf import MISSING as GIVEN_BY_YAML

from txl_lightning.config.encoding_kinds import VARIABLE
from txl_lightning.config.schemas import Config, EncodingConfig, MemoryConfig, TransformerXLModelConfig
from txl_lightning.model.config import TransformerXLConfig
from txl_lightning.runs.models import OPTIONS


def test_every_field_has_an_option_of_the_same_default() -> None:
    config = Config(model=TransformerXLModelConfig(), encoding=EncodingConfig(), memory=MemoryConfig())
    for field in fields(TransformerXLConfig):
        if field.name == "vocab_size":
            continue
        default = attrgetter(OPTIONS.get(field.name, f"model.{field.name}"))(config)
        if default != GIVEN_BY_YAML:
            expected = list(field.default) if field.name == "cutoffs" else field.default
            assert default == expected is not MISSING, field.name
    names = {field.name for field in fields(TransformerXLConfig)}
    assert {field.name for field in fields(TransformerXLModelConfig)} - {"name"} <= names
    assert set(OPTIONS) - {VARIABLE} <= names
