"""txl recl: tiny checkpoints of every kind in one group, what it writes, what it keeps, and what it refuses."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.alone import printed
from tests.evaluation.small_runs import SmallRuns
from tests.in_process import success
from tests.recl.small_recl import recl
from txl_lightning.data.corpus import load_corpus
from txl_lightning.data.published_corpora import PUBLISHED
from txl_lightning.errors import OptionError
from txl_lightning.recl.group import model_names
from txl_lightning.runs.storage import write_checkpoint
from txl_lightning.runs.trained import load_trained, read_checkpoint


def of(result: dict[str, Any], field: str) -> list[Any]:
    return [model[field] for model in result["models"]]


def test_models_of_different_kinds_make_a_group(runs: SmallRuns, tmp_path: Path) -> None:
    kinds = ["relative", "absolute", "lstm", "qrnn"]
    result = recl(tmp_path, *map(runs.checkpoint, kinds))
    assert (of(result, "name"), of(result, "trained_len")) == (kinds, [16, 8, 8, 8])  # segments of 8, memory of 8
    assert of(result, "scoring") == ["one pass", "direct", "one pass", "one pass"]
    assert of(result, "kind")[1:] == ["txl_smoke, absolute, no recurrence", "lstm", "qrnn"]
    absolute = result["models"][1]
    assert absolute["nll"][1] == absolute["nll"][3]  # at 8 and at 16 tokens
    figures = ("gains_r0.1", "gains_r0.5", "gains_r1.0", "contexts", "differences")
    drawn = {f"{figure}.{kind}" for figure in figures for kind in ("svg", "png")}
    written = {path.name for path in tmp_path.iterdir()}
    assert written == {"recl.json", "recl.md", "recl.html", "losses.npz", *drawn}


def test_no_window_begins_in_another_document_unless_asked(runs: SmallRuns, tmp_path: Path) -> None:
    """A model without documents beside one that knows them; ignored, the latter sees no marks."""
    group = [runs.checkpoint("relative"), runs.checkpoint("documents")]
    respected, ignored = recl(tmp_path / "respect", *group), recl(tmp_path / "ignore", *group, documents="ignore")
    of_respect, of_ignore = (np.load(tmp_path / name / "losses.npz")["nll"] for name in ("respect", "ignore"))
    found = np.load(tmp_path / "respect/losses.npz")
    tokens = load_corpus(load_trained(group[1]).config.data, marked=True).splits["test"]
    starts, positions = np.flatnonzero(np.asarray(tokens) < 0), found["positions"]
    since = positions - starts[np.searchsorted(starts, positions - 1, side="right") - 1]
    assert respected["positions"]["cut"] == (since < 16).sum() > 0
    assert "positions have fewer than 16 tokens of context" in (tmp_path / "respect/recl.md").read_text()
    for i, j in pairwise(range(4)):
        cut = since <= found["contexts"][i]
        assert abs(of_respect[:, j] - of_respect[:, i])[:, cut].max() < 1e-5
        assert (abs(of_ignore[:, j] - of_ignore[:, i]) > 1e-7).mean() > 0.9  # a loss may be equal by chance
        assert np.array_equal(of_respect[0, i, ~cut], of_ignore[0, i, ~cut])
    assert (respected["documents"], ignored["documents"], ignored["positions"]["cut"]) == ("respect", "ignore", 0)


def test_an_uneven_grid_has_steps_from_each_context_to_the_next(runs: SmallRuns, tmp_path: Path) -> None:
    models = [runs.checkpoint(kind) for kind in ("relative", "absolute")]
    listed = recl(tmp_path / "listed", *models, contexts=[1, 2, 4, 8, 16], bootstrap=0)
    assert (listed["first_context"], listed["step"]) == (1, None)
    page = (tmp_path / "listed/recl.md").read_text()
    assert "| bpb at 16 tokens | bits 2 → 4 | bits 4 → 8 | bits 8 → 16 | within" in page
    assert "[" not in page.split("RECL in the group")[1].split("| difference")[0], "no intervals without resamples"
    assert recl(tmp_path / "even", *models, contexts=[4, 8, 12, 16])["step"] == 4


def test_a_grid_that_ends_before_its_longest_context_says_so(runs: SmallRuns, tmp_path: Path, capsys: Any) -> None:
    assert recl(tmp_path, runs.checkpoint("relative"))["contexts"][-1] == 16
    assert capsys.readouterr().err == ""
    assert recl(tmp_path, runs.checkpoint("relative"), max_context=15)["contexts"][-1] == 12
    assert capsys.readouterr().err == "max_context=15: the grid ends at 12, first_context + n·step\n"


def test_models_with_other_sentence_marks_are_refused(runs: SmallRuns, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setitem(PUBLISHED, "lm1b", {})  # of another size
    other = read_checkpoint(runs.checkpoint("sentences")).contents
    other["txl_lightning"]["config"]["data"]["sentence_marks"] = "start"
    write_checkpoint(other, tmp_path / "other.ckpt")
    recl(tmp_path / "one", runs.checkpoint("sentences"))
    with pytest.raises(OptionError, match=r"checkpoints=.*other.ckpt: reads other tokens than .*sentence_marks"):
        recl(tmp_path / "both", runs.checkpoint("sentences"), str(tmp_path / "other.ckpt"))


def test_losses_in_bfloat16_are_close(runs: SmallRuns, tmp_path: Path) -> None:
    paths = [runs.checkpoint(kind) for kind in ("relative", "lstm")]
    exact, ours = (recl(tmp_path, *paths, precision=name) for name in ("32-true", "bf16-mixed"))
    assert (exact["precision"], ours["precision"]) == ("32-true", "bf16-mixed")
    assert 0 < np.abs(np.array(of(ours, "nll")) - of(exact, "nll")).max() < 0.01


def test_a_seed_moves_the_positions_and_a_clamp_changes_losses(runs: SmallRuns, tmp_path: Path) -> None:
    plain, moved = (recl(tmp_path, runs.checkpoint("relative"), position_seed=seed) for seed in (None, 1))
    clamped = recl(tmp_path, runs.checkpoint("relative"), clamp_len=2)
    assert moved["positions"]["seed"] == 1
    assert all(of(other, "nll") != of(plain, "nll") for other in (moved, clamped))


REFERENCES = [
    (["txl:/a/ours/checkpoints/best.ckpt", "txl:/a/theirs/checkpoints/best.ckpt"], ["ours", "theirs"]),
    (["txl:/a/ours/checkpoints/best.ckpt", "txl:/a/ours/checkpoints/last.ckpt"], ["ours/best", "ours/last"]),
    (["txl:/a/1/checkpoints/best.ckpt", "txl:/b/1/checkpoints/best.ckpt"], ["a/1", "b/1"]),
    (["hf:gpt2", "hf:EleutherAI/pythia-70m", "py:a.b"], ["gpt2", "pythia-70m", "a.b"]),
    (["txl:/a/ours/best.ckpt", "hf:/b/ours"], ["txl:/a/ours/best.ckpt", "hf:/b/ours"]),
]


@pytest.mark.parametrize(("references", "names"), REFERENCES)
def test_models_are_named_after_their_directories_or_references(references: list[str], names: list[str]) -> None:
    assert model_names(references) == names


@pytest.mark.full
def test_the_command_alone_and_under_a_launcher(runs: SmallRuns, tmp_path: Path) -> None:
    def words(name: str) -> list[str]:
        paths = f"checkpoints=[{runs.checkpoint('relative')},{runs.checkpoint('qrnn')}]"
        grid = ["first_context=2", "step=2", "max_context=6", "n_positions=15", "num_threads=1"]
        return ["recl", paths, *grid, f"hydra.run.dir={tmp_path / name}"]

    two = printed("-m", "torch.distributed.run", "--nproc-per-node=2", "-m", "txl_lightning.cli", *words("two"))
    results = []
    for name, said in (("alone", success(*words("alone")).out), ("two", two)):
        assert said.startswith("Loss by context and its gain, without a group:\n\n| model | kind |")
        assert said.count("\n\nRECL in the group of: relative, qrnn\n\n| model | RECL r = 0.1 |") == 1
        assert said.splitlines()[-1] == str(tmp_path / name)
        assert (tmp_path / name / "config.yaml").is_file()
        results.append(json.loads((tmp_path / name / "recl.json").read_text())["models"])
    for of_one, of_two in zip(*results, strict=True):
        np.testing.assert_allclose(of_one["bpb"], of_two["bpb"], rtol=1e-5)
