"""txl recl: tiny checkpoints of every kind in one group, what it writes, what it keeps, and what it refuses."""

import json
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.evaluation.small_runs import ELSEWHERE, SmallRuns
from tests.in_process import run_txl
from txl_lightning.config.schemas import LoggerConfig
from txl_lightning.data.corpus import load_corpus
from txl_lightning.errors import OptionError, UserError
from txl_lightning.evaluation.recl import model_losses
from txl_lightning.evaluation.recl.command import run
from txl_lightning.evaluation.recl.group import model_names
from txl_lightning.evaluation.recl.model_losses import LossStore
from txl_lightning.evaluation.recl.options import ReclOptions
from txl_lightning.evaluation.scoring.windows import loss_grid
from txl_lightning.runs.storage import write_checkpoint
from txl_lightning.runs.trained import load_trained, read_checkpoint


def group(runs: SmallRuns, store: Path, *kinds: str, **options: Any) -> ReclOptions:
    small = {"first_context": 4, "step": 4, "max_context": 16, "n_positions": 20, "bootstrap": 20}
    small |= {"num_threads": 1, "position_windows": 0}
    logger = LoggerConfig(name="none")
    paths = [runs.checkpoint(kind) for kind in kinds]
    return ReclOptions(paths, **{"store": str(store), "logger": logger, **small, **options})


def run_in(options: ReclOptions, directory: Path) -> list[str]:
    directory.mkdir(exist_ok=True)
    return run(options, directory)


def test_models_of_different_kinds_make_a_group(runs: SmallRuns, tmp_path: Path) -> None:
    kinds = ("relative", "absolute", "lstm", "qrnn")
    lines = run_in(group(runs, tmp_path / "store", *kinds, position_windows=10), tmp_path / "run")
    models = json.loads((tmp_path / "run/recl.json").read_text())["models"]
    assert [(model["name"], model["limit"], model["scoring"], model["trained_len"]) for model in models] == [
        ("relative", None, "one pass", 16),  # segments of 8, memory of 8
        ("absolute", 8, "direct", 8),
        ("lstm", None, "one pass", 8),
        ("qrnn", None, "one pass", 8),
    ]
    assert models[1]["nll"][1] == models[1]["nll"][3]  # at 8 and at 16 tokens
    assert all(length["value"] <= 8 for length in models[1]["recl"].values())
    figures = ("gains_r0.1", "gains_r0.5", "gains_r1.0", "contexts", "gain_maps", "positions")
    files = {
        "recl.json",
        "recl.md",
        "recl.tex",
        "losses.npz",
        *(f"{x}.{kind}" for x in figures for kind in ("svg", "png")),
    }
    assert {path.name for path in (tmp_path / "run").iterdir()} == files
    assert (tmp_path / "run/recl.md").read_text().startswith("\n".join(lines) + "\n\n## ")
    assert lines[0] == "| model | kind | RECL r = 0.1 | RECL r = 0.5 | RECL r = 1.0 | bpc at 16 tokens | sees at most |"
    assert any(line.startswith("| absolute | txl_smoke, absolute, no recurrence |") for line in lines)


def test_a_context_ends_at_the_start_of_its_document(runs: SmallRuns, tmp_path: Path) -> None:
    """In a group with a model that has no documents, and on the same positions."""
    run_in(group(runs, tmp_path / "store", "relative", "documents"), tmp_path / "run")
    found = np.load(tmp_path / "run/losses.npz")
    trained = load_trained(runs.checkpoint("documents"))
    tokens = load_corpus(trained.config.data, marked=True).splits["test"]
    starts = np.flatnonzero(tokens < 0)
    losses, contexts, positions = found["nll"][1], found["contexts"].tolist(), found["positions"]
    since = positions - starts[np.searchsorted(starts, positions - 1, side="right") - 1]
    for i, j in pairwise(range(len(contexts))):
        assert all(abs(losses[j] - losses[i])[since <= contexts[i]] < 1e-5)
        assert all(abs(losses[j] - losses[i])[since > contexts[i]] > 1e-7)
    with pytest.raises(OptionError, match=r"documents.*has memory.reset=document, which needs context_unit=token"):
        run_in(group(runs, tmp_path / "store", "documents", context_unit="byte"), tmp_path / "bytes")


def test_models_with_other_sentence_marks_are_refused(runs: SmallRuns, tmp_path: Path) -> None:
    other = read_checkpoint(runs.checkpoint("sentences"))
    other["txl_lightning"]["config"]["data"]["sentence_marks"] = "start"
    write_checkpoint(other, tmp_path / "other.ckpt")
    options = group(runs, tmp_path / "store", "sentences")
    run_in(options, tmp_path / "run")
    options.checkpoints.append(str(tmp_path / "other.ckpt"))
    with pytest.raises(OptionError, match=r"checkpoints=.*other.ckpt: reads other tokens than .*sentence_marks"):
        run_in(options, tmp_path / "both")


def test_a_model_that_joins_a_group_scores_itself_alone(
    runs: SmallRuns, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[str, int]] = []

    def counted(reader: Any, tokens: Any, positions: Any, contexts: Any) -> Any:
        calls.append((type(reader.model).__name__, len(positions)))
        return loss_grid(reader, tokens, positions, contexts)

    monkeypatch.setattr(model_losses, "loss_grid", counted)
    store = tmp_path / "store"
    run_in(group(runs, store, "lstm"), tmp_path / "one")
    assert [number for _, number in calls] == [2] * 10
    calls.clear()
    run_in(group(runs, store, "relative", "lstm"), tmp_path / "two")
    assert {name for name, _ in calls} == {"TransformerXL"}
    assert len(calls) == 10
    calls.clear()
    run_in(group(runs, store, "lstm", "relative", threshold=0.2, fractions=[0.3], seed=9), tmp_path / "again")
    assert calls == []
    one, two, again = (json.loads((tmp_path / x / "recl.json").read_text())["models"] for x in ("one", "two", "again"))
    assert one[0]["nll"] == two[1]["nll"] == again[0]["nll"]
    run_in(group(runs, store, "lstm", n_positions=21), tmp_path / "other_positions")
    run_in(group(runs, store, "relative", clamp_len=2), tmp_path / "other_lengths")
    run_in(group(runs, store, "relative", split="valid"), tmp_path / "other_split")
    assert len(calls) == 27  # tenths of 21 blocks are 7 parts of 3
    assert len(list(store.iterdir())) == 5


def test_losses_of_another_precision_are_scored_again_and_close(runs: SmallRuns, tmp_path: Path) -> None:
    results = {}
    for precision in ("32-true", "bf16-mixed", "bf16-mixed"):
        run_in(group(runs, tmp_path / "store", "relative", "lstm", precision=precision), tmp_path / "run")
        results[precision] = json.loads((tmp_path / "run/recl.json").read_text())
        assert results[precision]["precision"] == precision
    exact, ours = ([model["nll"] for model in results[precision]["models"]] for precision in results)
    assert [model["positions_scored"] for model in results["bf16-mixed"]["models"]] == [0, 0]
    assert len(list((tmp_path / "store").iterdir())) == 4
    differences = np.array(ours) - exact
    assert 0 < np.abs(differences).max() < 0.01
    stated = [[model["float32_difference"] for model in results[precision]["models"]] for precision in results]
    assert stated[0] == [None, None]
    assert [found["positions"] for found in stated[1]] == [20, 20]  # all
    np.testing.assert_allclose([found["nll"] for found in stated[1]], differences.mean(axis=1), atol=1e-12)
    assert "bf16-mixed: nll beside float32 on the first 20 positions" in (tmp_path / "run/recl.md").read_text()


def test_a_killed_command_resumes_after_the_last_stored_part(
    runs: SmallRuns, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = group(runs, tmp_path / "store", "qrnn", n_positions=70)
    parts: list[int] = []

    def killed(reader: Any, tokens: Any, positions: Any, contexts: Any) -> Any:
        if len(parts) == 3:
            raise KeyboardInterrupt
        parts.append(len(positions))
        return loss_grid(reader, tokens, positions, contexts)

    monkeypatch.setattr(model_losses, "loss_grid", killed)
    with pytest.raises(KeyboardInterrupt):
        run_in(options, tmp_path / "killed")
    monkeypatch.undo()
    results = []
    for name, store in (("resumed", "store"), ("whole", "other_store")):
        run_in(group(runs, tmp_path / store, "qrnn", n_positions=70), tmp_path / name)
        results.append(json.loads((tmp_path / name / "recl.json").read_text()))
    resumed, whole = (result["models"][0] for result in results)
    assert results[0]["positions"]["blocks"] == 30
    assert resumed.pop("positions_scored") == 70 - sum(parts)
    assert whole.pop("positions_scored") == 70
    assert resumed == whole


def test_distances_beyond_training_are_clamped(runs: SmallRuns, tmp_path: Path) -> None:
    kinds = ("relative", "absolute", "lstm")
    for options, expected in (({}, [15, -1, None]), ({"clamp_len": -1}, [-1, -1, None])):
        run_in(group(runs, tmp_path / "store", *kinds, n_positions=4, **options), tmp_path / "run")
        models = json.loads((tmp_path / "run/recl.json").read_text())["models"]
        assert [model["clamp_len"] for model in models] == expected
        assert [model["loss_by_position"] for model in models] == [None] * 3
    assert not list((tmp_path / "run").glob("positions.*"))


def test_a_damaged_store_is_named_and_nothing_half_written_stays(tmp_path: Path) -> None:
    store, key = LossStore(tmp_path / "store", "model", {}), {"checkpoint": "a"}
    assert store.read(key) == {}
    store.write(key, [4, 8], np.array([[1.0, 1, 1], [0, 1, 2]]))
    assert {c: x.tolist() for c, x in store.read(key).items()} == {4: [1, 1, 1], 8: [0, 1, 2]}
    assert store.read({"checkpoint": "b"}) == {}
    assert [path.name for path in store.directory.iterdir()] == [store.path(key).name]
    store.path(key).write_bytes(store.path(key).read_bytes()[:100])
    with pytest.raises(UserError, match=r"store=.*npz is damaged; delete it"):
        store.read(key)
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="losses cannot be stored"):
        LossStore(tmp_path / "file", "model", {}).write(key, [4], np.ones((1, 3)))


@pytest.mark.parametrize(
    ("references", "names"),
    [
        (["txl:/a/ours/checkpoints/best.ckpt", "txl:/a/theirs/checkpoints/best.ckpt"], ["ours", "theirs"]),
        (["txl:/a/ours/checkpoints/best.ckpt", "txl:/a/ours/checkpoints/last.ckpt"], ["ours/best", "ours/last"]),
        (["txl:/a/1/checkpoints/best.ckpt", "txl:/b/1/checkpoints/best.ckpt"], ["a/1", "b/1"]),
        (["txl:/a/x.ckpt"], ["a"]),
        (["hf:gpt2", "hf:EleutherAI/pythia-70m", "py:a.b"], ["gpt2", "pythia-70m", "a.b"]),
        (["txl:/a/ours/best.ckpt", "hf:/b/ours"], ["txl:/a/ours/best.ckpt", "hf:/b/ours"]),
    ],
)
def test_models_are_named_after_their_directories_or_references(references: list[str], names: list[str]) -> None:
    assert model_names(references) == names


@pytest.mark.parametrize(
    ("kinds", "options", "words"),
    [
        ([], {}, r"checkpoints=\[\]: must name at least one"),
        (["lstm", "lstm"], {}, "checkpoints=.*is named twice"),
        (["lstm", "nothing"], {}, r"checkpoints=.*nothing.*: no such file"),
        (["lstm", ELSEWHERE], {}, r"checkpoints=.*elsewhere.*: was trained on another corpus"),
        (["lstm", "characters"], {}, r"characters.*: reads char tokens, .*lstm.* byte tokens: use context_unit=byte"),
        (["lstm"], {"names": ["a", "b"]}, r"names=.*must be 1 different names"),
        (["lstm", "qrnn"], {"names": ["a", "a"]}, r"names=.*must be 2 different names"),
        (["lstm"], {"split": "dev"}, "split=dev: must be one of"),
        (["lstm"], {"max_context": 7}, "max_context=7: must be at least first_context"),
        (["lstm"], {"max_context": 10_000}, "max_context=10000: must be below the"),
        (["lstm"], {"n_positions": 10_000}, "n_positions=10000: must be in 1 …"),
        (["lstm"], {"n_positions": 1}, "n_positions=1: must be an integer >= 2"),
        (["lstm"], {"step": 0}, "step=0: must be"),
        (["lstm"], {"fractions": [1.5]}, "fractions="),
        (["lstm"], {"threshold": 0.0}, "threshold=0.0"),
        (["lstm"], {"seed": -1}, "seed=-1"),
        (["relative"], {"clamp_len": -5}, "clamp_len=-5"),
        (["lstm"], {"accelerator": "tpu"}, "accelerator=tpu: must be cpu or gpu"),
        (["lstm"], {"logger": LoggerConfig(name="csv")}, "logger=csv: must be wandb or none"),
        (["lstm"], {"data_path": "/nowhere.txt"}, "data_path=/nowhere.txt: cannot be read"),
    ],
)
def test_checkpoints_that_form_no_group_are_named(
    runs: SmallRuns, tmp_path: Path, kinds: list[str], options: dict, words: str
) -> None:
    with pytest.raises(UserError, match=words) as caught:
        run_in(group(runs, tmp_path / "store", *kinds, **options), tmp_path / "run")
    assert "\n" not in str(caught.value)
    assert list(tmp_path.glob("recl*")) == []


@pytest.mark.slow
def test_the_command_alone_and_under_a_launcher(runs: SmallRuns, tmp_path: Path) -> None:
    def words(name: str) -> list[str]:
        paths = f"checkpoints=[{runs.checkpoint('relative')},{runs.checkpoint('qrnn')}]"
        grid = ["first_context=2", "step=2", "max_context=6", "n_positions=15", "num_threads=1"]
        return ["recl", paths, *grid, f"store={tmp_path / name}_store", f"hydra.run.dir={tmp_path / name}"]

    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "-m", "txl_lightning.cli"]
    command = [*launcher, *words("two")]
    two = subprocess.run(command, cwd=Path.cwd(), capture_output=True, text=True, timeout=120, check=False)
    assert two.returncode == 0, two.stderr
    alone = run_txl(*words("alone"))
    assert alone.status == 0, alone.err
    results = []
    for name, printed in (("alone", alone.out), ("two", two.stdout)):
        assert printed.startswith("| model | kind |")
        assert printed.splitlines()[-1] == str(tmp_path / name)
        assert printed.count("| model |") == 1
        assert (tmp_path / name / "config.yaml").is_file()
        results.append(json.loads((tmp_path / name / "recl.json").read_text())["models"])
    for of_one, of_two in zip(*results, strict=True):
        np.testing.assert_allclose(of_one["nll"], of_two["nll"], rtol=1e-5)
