"""txl recl on models from elsewhere: one tokenizer, or contexts in bytes; what is refused."""

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
import torch

from tests.evaluation import test_group
from tests.evaluation.small_runs import SmallRuns
from tests.evaluation.test_group import Scored
from tests.fixtures import Output
from tests.recl.pair_models import PAIR_BYTES, PAIRS, pair_text
from tests.recl.small_recl import SCHEMA, recl
from tests.recl.tiny_huggingface import POSITIONS, TEXT, save_tiny
from txl_lightning.errors import Stopped, UserError
from txl_lightning.recl import command


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("pairs") / "pairs.txt"
    path.write_bytes(pair_text(1000))
    return str(path)


def test_equal_distributions_of_bytes_and_of_pairs_have_equal_curves_and_recl(pairs: str, tmp_path: Path) -> None:
    models = {"models": [PAIRS, PAIR_BYTES], "names": ["pairs", "bytes"], "context_unit": "byte"}
    result = recl(tmp_path / "run", **models, data_path=pairs, n_positions=60)
    ours, theirs = result["models"]
    np.testing.assert_allclose(ours["nll"], theirs["nll"], rtol=0, atol=1e-12)
    assert [length["value"] for length in ours["recl"].values()] == [r["value"] for r in theirs["recl"].values()]
    assert (result["context_unit"], result["unit"], result["corpus"]["level"]) == ("byte", "bpb", "byte")
    assert [model["checkpoint"] for model in result["models"]] == [PAIRS, PAIR_BYTES]
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    page = (tmp_path / "run/recl.md").read_text()
    assert "bpb at 16 bytes" in page
    assert "Contexts are bytes of text, cut to whole tokens" in page


def test_models_of_one_tokenizer_share_a_group_with_a_run(runs: SmallRuns, pairs: str, tmp_path: Path) -> None:
    result = recl(tmp_path, models=[f"txl:{runs.checkpoint('relative')}", PAIR_BYTES], data_path=pairs)
    assert [model["name"] for model in result["models"]] == ["relative", PAIR_BYTES[3:]]
    assert [model["step"] for model in result["models"]] == [2, None]
    assert result["context_unit"] == "token"
    assert result["models"][0]["nll"][0] > result["models"][1]["nll"][0]
    alone = recl(tmp_path / "alone", runs.checkpoint("relative"), data_path=pairs)
    np.testing.assert_allclose(alone["models"][0]["nll"], result["models"][0]["nll"], rtol=1e-12)


def test_runs_on_bytes_and_on_characters_are_compared_in_bytes(runs: SmallRuns, tmp_path: Path) -> None:
    path = str(runs.folder / "text.txt")
    both = [runs.checkpoint("relative"), runs.checkpoint("characters"), runs.checkpoint("absolute")]
    result = recl(tmp_path, *both, context_unit="byte", data_path=path)
    assert [model["scoring"] for model in result["models"]] == ["one pass", "one pass", "direct"]
    by_tokens = recl(tmp_path / "tokens", both[0], data_path=path)  # one byte a character, and one a piece
    np.testing.assert_allclose(result["models"][0]["nll"], by_tokens["models"][0]["nll"], rtol=1e-6)


def test_a_changed_corpus_is_reported(runs: SmallRuns, tmp_path: Path, capsys: Output) -> None:
    contents = torch.load(runs.checkpoint("relative"), weights_only=True)
    contents["txl_lightning"]["corpus"] = "a checksum of no text"
    torch.save(contents, tmp_path / "old.ckpt")
    recl(tmp_path / "run", str(tmp_path / "old.ckpt"), context_unit="byte")
    words = f"checkpoints={tmp_path}/old.ckpt was trained on another text than text.txt has now"
    assert capsys.readouterr().err.count(words) == 1


def test_a_pattern_names_checkpoints_of_a_run_in_the_order_of_their_steps(runs: SmallRuns, tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    for number, step in ((2, 2), (10, 10), (9, 8)):
        contents = torch.load(runs.checkpoint("relative"), weights_only=True) | {"global_step": step}
        torch.save(contents, folder / f"step{number}.ckpt")
    result = recl(tmp_path / "run", str(folder / "step*.ckpt"))
    assert [(model["name"], model["step"], model["tokens_trained"]) for model in result["models"]] == [
        (f"{tmp_path.name}/step{n}", step, 32 * step) for n, step in ((2, 2), (9, 8), (10, 10))
    ]


@pytest.mark.parametrize("loss", [float("nan"), float("inf"), -1.0, 2000.0])
def test_impossible_losses_are_named(loss: float, pairs: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = Scored(lambda tokens_BT, targets_BT: (torch.full(targets_BT.shape, loss), None))
    monkeypatch.setattr(test_group, "make", lambda: model, raising=False)
    with pytest.raises(UserError, match=r"models=py:.*make: has losses that are not -log P in 0 … 700 nats"):
        recl(tmp_path, models=[PAIR_BYTES, f"py:{test_group.__name__}.make"], data_path=pairs)


def test_ctrl_c_keeps_the_parts_that_are_complete(pairs: str, tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    """Two models at the same positions, which are spread over the text; the time is said before."""
    monkeypatch.setattr(command, "PART_TOKENS", 100)
    monkeypatch.setattr(command, "LONG", 0)
    models = {"models": [PAIR_BYTES, f"py:{test_group.__name__}.make"], "data_path": pairs, "n_positions": 60}
    left = [10**9]

    def until_ctrl_c(tokens_BT: torch.Tensor, targets_BT: torch.Tensor) -> tuple[torch.Tensor, None]:
        left[0] -= 1
        if not left[0]:
            raise KeyboardInterrupt
        return test_group.right(tokens_BT, targets_BT)

    monkeypatch.setattr(test_group, "make", lambda: Scored(until_ctrl_c), raising=False)
    recl(tmp_path / "whole", **models)
    assert re.search(r"1,920 tokens to read: about 0:00:\d\d; Ctrl-C keeps what is complete\n", capsys.readouterr().err)
    calls, left[0] = 10**9 - left[0], 1
    with pytest.raises(KeyboardInterrupt):
        recl(tmp_path / "nothing", **models)
    left[0] = calls - 3
    with pytest.raises(Stopped, match=r"stopped by SIGINT: .*/recl.md has \d\d of 60 positions"):
        recl(tmp_path / "part", **models)
    whole, part = (np.load(tmp_path / name / "losses.npz") for name in ("whole", "part"))
    kept = np.isin(whole["positions"], part["positions"])
    assert 30 < kept.sum() == len(part["positions"]) < 60
    np.testing.assert_allclose(part["nll"], whole["nll"][:, :, kept], rtol=1e-6)
    assert json.loads((tmp_path / "part/recl.json").read_text())["positions"]["number"] == kept.sum()
    assert not (tmp_path / "nothing/recl.json").exists()


@pytest.mark.filterwarnings("default")
class TestHuggingFace:
    @pytest.fixture(scope="class")
    @classmethod
    def folders(cls, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
        transformers = pytest.importorskip("transformers", reason="needs the extra hf")
        made = {kind: save_tiny(transformers, tmp_path_factory.mktemp(kind), kind) for kind in ("gpt2", "mamba")}
        other = tmp_path_factory.mktemp("other")
        made["other"] = save_tiny(transformers, other, "llama", vocabulary=270)
        (other / "text.txt").write_text(TEXT)
        return made | {"text": str(other / "text.txt")}

    def options(self, folders: dict[str, str], *kinds: str, **options: Any) -> dict[str, Any]:
        names = [f"hf:{folders[kind]}" for kind in kinds]
        return {"models": names, "data_path": folders["text"], "split": "train", **options}

    @pytest.mark.parametrize("begin", [0, None])
    def test_two_models_of_one_tokenizer(self, begin: int | None, folders: dict[str, str], tmp_path: Path) -> None:
        given = self.options(folders, "gpt2", "mamba", begin_of_text=begin is not None, max_context=64)
        result = recl(tmp_path, **given)
        assert (result["unit"], result["corpus"]["level"]) == ("ppl", "token")
        gpt2, mamba = result["models"]
        assert (gpt2["limit"], mamba["limit"]) == (POSITIONS - (begin == 0), None)
        assert {(model["scoring"], model["begin_of_text"]) for model in (gpt2, mamba)} == {("one pass", begin)}
        assert gpt2["nll"][11] == gpt2["nll"][15]  # 48 and 64 tokens
        assert mamba["nll"][11] != mamba["nll"][15]

    def test_two_tokenizers_and_a_run_in_bytes(self, runs: SmallRuns, folders: dict[str, str], tmp_path: Path) -> None:
        given = self.options(folders, "gpt2", "other", context_unit="byte")
        models = recl(tmp_path, runs.checkpoint("relative"), **given)["models"]
        assert [model["kind"] for model in models][1:] == ["gpt2, Hugging Face", "llama, Hugging Face"]
        assert np.isfinite([model["bpb"] for model in models]).all()
