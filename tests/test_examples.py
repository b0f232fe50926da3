"""A custom encoding in every command, without a change of the package: examples/t5.py and encodings of the tests."""

import json
import math
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from tests.docs.pages import ROOT
from tests.model.tiny_model import EXACT, random_stream, score_segments, tiny_model
from tests.own_guests import no_guests  # noqa: F401 - a fixture
from tests.recl.small_recl import recl
from tests.training.small_run import evaluated, tiny_config
from txl_lightning import TransformerXL, TransformerXLConfig, register_encoding
from txl_lightning.config.architecture import KINDS
from txl_lightning.config.lengths import position_limit
from txl_lightning.config.schemas import LoggerConfig
from txl_lightning.errors import OptionError
from txl_lightning.evaluation.attention import run as attention
from txl_lightning.evaluation.generate import run as generate
from txl_lightning.evaluation.models import architecture
from txl_lightning.evaluation.options import AttentionOptions, GenerateOptions
from txl_lightning.evaluation.trained import load_trained
from txl_lightning.model.checkpoints import CheckpointError, to_huggingface, to_original
from txl_lightning.model.encodings import (
    ENCODINGS,
    AlRfouEncoding,
    Encoding,
    LayerPositions,
    RelativeEncoding,
)
from txl_lightning.model.inference.cached import CachedTransformerXL
from txl_lightning.model.positions import distances_of_keys
from txl_lightning.recl.windows import window_reader
from txl_lightning.training.run import train

pytestmark = pytest.mark.usefixtures("no_guests")


@pytest.fixture
def t5(no_guests: None, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    """Register the example as a user does."""
    monkeypatch.setenv("TXL_GUESTS", str(ROOT / "examples/t5.py"))
    KINDS.named("t5")


def bucket_of_t5(distance: int) -> int:
    """Return the bucket of a distance in `T5Attention._relative_position_bucket`, unidirectional."""
    if distance < 16:
        return distance
    logarithm = math.log(distance / 16) / math.log(128 / 16)
    return min(31, 16 + int(logarithm * 16))


@pytest.mark.parametrize("clamp_len", [-1, 30])
@pytest.mark.usefixtures("t5")
def test_the_bias_is_that_of_t5(clamp_len: int) -> None:
    model = tiny_model(encoding="t5", clamp_len=clamp_len)
    positions = model.encoding(200, clamp_len, torch.zeros(1))
    for distance in range(201):
        clamped = min(distance, clamp_len) if clamp_len > 0 else distance
        expected_H = model.encoding.bias[:, bucket_of_t5(clamped)]
        assert torch.equal(positions[0].bias_HS[:, 200 - distance], expected_H), distance


@pytest.mark.usefixtures("t5")
def test_every_command_has_it(tmp_path: Path) -> None:
    run = tmp_path / "run"
    for steps in (2, 4):
        words = ("encoding.name=t5", "data.level=char", "resume=auto", f"trainer.max_steps={steps}")
        assert train(tiny_config(tmp_path, *words), run)["steps"] == steps

    path = str(run / "checkpoints/best.ckpt")
    evaluation = evaluated(path, tmp_path, splits=["test"], mem_len=32, same_length=True)
    assert evaluation["evaluation"]["mem_len"] == 32
    assert recl(tmp_path, path)["models"]
    looked_at = AttentionOptions(path, mem_len=16, max_segments=4, logger=LoggerConfig())
    assert attention(looked_at, tmp_path)
    prompt = GenerateOptions(path, prompt="line 7", n_tokens=5)
    generate(prompt, tmp_path, write=lambda _: None)
    assert len(json.loads((tmp_path / "generation.json").read_text())["samples"]) == 1


@pytest.mark.parametrize("convert", [to_original, to_huggingface])
@pytest.mark.usefixtures("t5")
def test_other_formats_cannot_hold_it(convert: object) -> None:
    with pytest.raises(CheckpointError, match="encoding=t5"):
        convert(tiny_model(encoding="t5"))  # type: ignore[operator]


@pytest.mark.usefixtures("t5")
def test_a_checkpoint_cannot_import_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train(tiny_config(tmp_path, "encoding.name=t5", "trainer.max_steps=1"), tmp_path / "run")
    del KINDS["t5"]
    del ENCODINGS["t5"]
    monkeypatch.delenv("TXL_GUESTS")
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "t5.py").write_text("raise SystemExit('imported without being asked for')\n")
    with pytest.raises(OptionError, match=r"^checkpoint=.*last.ckpt: encoding=t5: must be one of"):
        load_trained(tmp_path / "run/checkpoints/last.ckpt")


def test_a_custom_encoding_can_be_absolute_with_a_table_and_initialize_itself(
    tmp_path: Path,
) -> None:
    @register_encoding("own", absolute=True, table="positions")
    class Own(AlRfouEncoding):
        def initialize(self) -> None:
            nn.init.constant_(self.table, 7.0)

    config = tiny_config(tmp_path, "encoding.name=own", "model.ext_len=2", "memory=off")
    sizes = architecture(config, vocab_size=50)
    assert isinstance(sizes, TransformerXLConfig)
    model = TransformerXL(sizes)
    assert isinstance(model.encoding, Own)
    assert torch.all(model.encoding.table == 7)
    assert model.encoding.table.shape[1] == position_limit(config) == 10
    assert window_reader(model, trained_len=10).limit == 10


@pytest.mark.parametrize("terms", ["abcd", "acd", "d", "ac"])
def test_a_bias_by_distance_is_added_to_the_paper_s_terms_cached_or_not(terms: str) -> None:
    @register_encoding("biased", "abcd", projects=True)
    class Biased(RelativeEncoding):
        def forward(self, n_keys: int, clamp_len: int, like: Tensor) -> list[LayerPositions]:
            bias_HS = -distances_of_keys(n_keys, clamp_len, like).expand(self.n_head, -1)
            positions = super().forward(n_keys, clamp_len, like)
            return [of_layer._replace(bias_HS=bias_HS) for of_layer in positions]

    model = tiny_model(encoding="biased", terms=terms)
    stream = random_stream(2, 13)
    with torch.no_grad():
        hidden, _ = score_segments(model, stream, [3, 1, 8])
        cached, _ = score_segments(CachedTransformerXL(model), stream, [3, 1, 8])
        unbiased, _ = score_segments(tiny_model(terms=terms), stream, [3, 1, 8])
    torch.testing.assert_close(cached, hidden, **EXACT)
    assert torch.allclose(hidden, unbiased, **EXACT) == ("d" not in terms)


def test_a_class_that_is_registered_again_replaces_the_first() -> None:
    for _ in range(2):  # as a cell of a notebook

        @register_encoding("own", "d")
        class Own(Encoding):
            pass

    assert ENCODINGS["own"] is Own


@pytest.mark.parametrize(
    ("arguments", "said"),
    [(("a-b",), "name=a-b: must be letters"), (("own", "ae"), "terms=ae: must be letters of abcd")],
)
def test_a_name_is_a_word_and_terms_are_those_of_the_paper(arguments: tuple, said: str) -> None:
    with pytest.raises(OptionError, match=said):
        register_encoding(*arguments)
