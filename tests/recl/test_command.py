"""txl recl: tiny checkpoints of every kind in one group, beside functions; what it writes and what it refuses."""

import json
import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf

from examples.recall_oracle import TEXT, RecallOracle
from tests.alone import printed
from tests.data.helpers import files
from tests.evaluation.small_runs import SmallRuns
from tests.in_process import success
from tests.recl.small_recl import recl
from txl_lightning.data.corpus import load_corpus
from txl_lightning.errors import UserError
from txl_lightning.evaluation.trained import load_trained
from txl_lightning.files import file_checksum
from txl_lightning.recl import command
from txl_lightning.recl.options import ReclOptions

ORACLE = f"py:{__name__}.AnyText"


class AnyText(RecallOracle):
    """The exact model of `data=recall`, for any bytes."""

    def __init__(self) -> None:
        super().__init__(TEXT)
        self.numbers %= TEXT.symbols


class Pairs(AnyText):
    """A token for every two bytes: the first one."""

    def encode(self, content: bytes) -> tuple[list[int], list[str]]:
        tokens = list(content[::2])
        return tokens, [chr(token) for token in tokens]


def values(result: dict[str, Any], field: str) -> list[Any]:
    return [model[field] for model in result["models"]]


def test_models_of_different_kinds_make_a_group(runs: SmallRuns, tmp_path: Path) -> None:
    kinds = ["relative", "absolute", "lstm", "qrnn"]
    result = recl(tmp_path, *map(runs.checkpoint, kinds))
    assert values(result, "name") == [str(runs.folder / kind) for kind in kinds]
    assert values(result, "trained_len") == [16, 8, 8, 8]  # segments of 8, memory of 8
    assert values(result, "scoring") == ["one pass", "direct", "one pass", "one pass"]
    assert values(result, "limit") == [None, 8, None, None]
    first, absolute = result["models"][:2]
    assert first["kind"] == "txl_smoke, relative, memory 8"
    assert absolute["nll"][1] == absolute["nll"][3]  # at 8 and at 16 tokens
    assert (first["step"], first["clamp_len"]) == (2, 15)
    assert first["sha256"] == file_checksum(Path(runs.checkpoint("relative")))
    names = {path.name for path in tmp_path.iterdir()}
    assert {"recl.json", "recl.md", "recl.html", "losses.npz", "contexts.svg"} < names
    assert {"gains_r0.1.png", "gains_r0.5.png", "gains_r1.0.png", "differences.png"} < names


@torch.no_grad()
def test_losses_are_those_of_single_windows(runs: SmallRuns, tmp_path: Path) -> None:
    (path,) = files(tmp_path, {"text.txt": "a cat and a bat " * 40})
    checkpoint = runs.checkpoint("relative")
    result = recl(
        tmp_path,
        checkpoint,
        models=[ORACLE],
        names=["run", "exact"],
        data_path=path,
    )
    assert values(result, "checkpoint") == [checkpoint, ORACLE]
    assert (result["unit"], result["split"]) == ("bpb", "whole")
    arrays = np.load(tmp_path / "losses.npz")
    assert arrays["models"].tolist() == ["run", "exact"]
    model = load_trained(checkpoint).model
    model = model.with_lengths(mem_len=0, same_length=False, clamp_len=15)
    tokens = torch.tensor([[*Path(path).read_bytes()]])
    position = arrays["positions"][7]
    for c, context in enumerate(arrays["contexts"]):
        window = tokens[:, position - context : position + 1]
        target = window[:, -1:]
        nll, _ = model.score(window[:, :-1], target, None)
        assert arrays["nll"][0, c, 7] == pytest.approx(nll.item(), rel=1e-5)
    assert arrays["nll"][1, 0] == pytest.approx(np.log(8))
    means = arrays["nll"].mean(axis=2)
    np.testing.assert_allclose(values(result, "nll"), means, rtol=1e-5)


@pytest.mark.parametrize("kind", ["characters", "documents"])
def test_a_function_reads_the_corpus_of_a_run(kind: str, runs: SmallRuns, tmp_path: Path) -> None:
    checkpoint = runs.checkpoint(kind)
    both = recl(
        tmp_path / "both",
        checkpoint,
        models=[ORACLE],
    )
    alone = recl(tmp_path / "alone", checkpoint)
    assert values(both, "nll")[0] == pytest.approx(values(alone, "nll")[0])
    assert both["corpus"] == alone["corpus"]


def test_no_window_begins_in_another_document_unless_asked(runs: SmallRuns, tmp_path: Path) -> None:
    """A model without documents beside one that knows them; ignored, the latter sees no marks."""
    group = [
        runs.checkpoint("relative"),
        runs.checkpoint("documents"),
    ]
    respected = recl(tmp_path / "respect", *group)
    ignored = recl(tmp_path / "ignore", *group, documents="ignore")
    arrays = np.load(tmp_path / "respect/losses.npz")
    respect_ICP = arrays["nll"]
    ignore_ICP = np.load(tmp_path / "ignore/losses.npz")["nll"]
    corpus = load_corpus(load_trained(group[1]).config.data, marked=True)
    starts = np.flatnonzero(np.asarray(corpus.splits["test"]) < 0)
    positions = arrays["positions"]
    since_P = positions - starts[np.searchsorted(starts, positions) - 1]
    n_cut = int((since_P < 16).sum())
    assert n_cut > 0
    assert [results["positions"]["cut"] for results in (respected, ignored)] == [n_cut, 0]
    note = f"{n_cut} positions have less context than the longest"
    assert note in (tmp_path / "respect/recl.md").read_text()
    is_cut_P = since_P <= 4
    respect_IP = np.abs(respect_ICP[:, 1] - respect_ICP[:, 0])
    ignore_IP = np.abs(ignore_ICP[:, 1] - ignore_ICP[:, 0])
    assert respect_IP[:, is_cut_P].max() < 1e-5
    assert (ignore_IP > 1e-7).mean() > 0.9  # a loss may be equal by chance
    np.testing.assert_array_equal(respect_ICP[0, 0, ~is_cut_P], ignore_ICP[0, 0, ~is_cut_P])


def test_options_change_the_grid_and_the_losses(runs: SmallRuns, tmp_path: Path) -> None:
    checkpoint = runs.checkpoint("relative")
    plain = recl(tmp_path, checkpoint)
    for option, value in CHANGES.items():
        changed = recl(tmp_path, checkpoint, **{option: value})
        assert values(changed, "nll") != values(plain, "nll")
    rounded = recl(tmp_path, checkpoint, precision="bf16-mixed", bootstrap=0)
    assert (plain["precision"], rounded["precision"]) == ("32-true", "bf16-mixed")
    difference = np.subtract(
        values(rounded, "nll"),
        values(plain, "nll"),
    )
    assert 0 < np.abs(difference).max() < 0.01
    rows = (tmp_path / "recl.md").read_text().splitlines()
    assert "[" not in rows[4], "no intervals without resamples"


CHANGES = {
    "position_seed": 1,
    "contexts": [1, 2, 4, 8, 16],
}
GRID = ["first_context=4", "step=4", "max_context=16", "n_positions=30", "bootstrap=20"]
REFUSALS = []
for row in Path(__file__).with_name("refusals.txt").read_text("utf-8").splitlines():
    REFUSALS.append(row.split(" | "))


@pytest.mark.parametrize(("words", "said"), REFUSALS)
def test_what_cannot_be_done_is_refused(
    runs: SmallRuns,
    tmp_path: Path,
    words: str,
    said: str,
) -> None:
    (text,) = files(
        runs.folder,
        {"cats.txt": "a cat and a bat " * 40},
    )
    words = (
        words.replace("TEXT", text)
        .replace("PAIRS", f"py:{__name__}.Pairs")
        .replace("BYTES", ORACLE)
    )
    words = re.sub(
        r"@(\w+)",
        lambda kind: runs.checkpoint(kind[1]),
        words,
    )
    given = OmegaConf.from_dotlist(GRID + shlex.split(words))
    options = OmegaConf.to_object(OmegaConf.merge(ReclOptions, given))
    directory = tmp_path / "run"
    with pytest.raises(UserError, match=said) as caught:
        command.run(options, directory)
    assert "\n" not in str(caught.value)
    assert not directory.exists()


@pytest.mark.full
def test_the_command_alone_and_under_a_launcher(runs: SmallRuns, tmp_path: Path) -> None:
    paths = f"checkpoints=[{runs.checkpoint('relative')},{runs.checkpoint('qrnn')}]"
    grid = ["first_context=2", "step=2", "max_context=6", "n_positions=15", "num_threads=1"]
    launcher = ["-m", "torch.distributed.run", "--nproc-per-node=2", "-m", "txl_lightning.cli"]
    alone = success(
        "recl",
        paths,
        *grid,
        f"hydra.run.dir={tmp_path}/alone",
    ).out
    two = printed(
        *launcher,
        "recl",
        paths,
        *grid,
        f"hydra.run.dir={tmp_path}/two",
    )
    losses = []
    for name, said in (("alone", alone), ("two", two)):
        assert said.startswith("How far does it look? ")
        assert said.count("\n| model | within 1 % | guarded r = 0.1 |") == 1
        assert f"\npage: {tmp_path}/{name}/recl.html\n" in said
        result = json.loads((tmp_path / name / "recl.json").read_text())
        losses.append(values(result, "bpb"))
    np.testing.assert_allclose(
        losses[0],
        losses[1],
        rtol=1e-5,
    )
