"""`txl card` on short runs: metadata as the hub's library reads it, losses of `txl evaluate`, RECL, commands."""

import json
import re
import shlex
from pathlib import Path

import pytest
from huggingface_hub import ModelCard

from tests.evaluation.recl.small_recl import recl
from tests.evaluation.small_runs import SmallRuns
from tests.in_process import run_txl
from txl_lightning.errors import UserError
from txl_lightning.evaluation.card import command
from txl_lightning.evaluation.card.command import run
from txl_lightning.evaluation.card.options import CardOptions
from txl_lightning.evaluation.perplexity import command as perplexity
from txl_lightning.evaluation.perplexity.options import EvaluateOptions


def card(runs: SmallRuns, kind: str, directory: Path, **options: str) -> ModelCard:
    run(CardOptions(runs.checkpoint(kind), num_threads=1, **options), directory)
    return ModelCard.load(directory / "README.md")


@pytest.mark.parametrize(
    ("kind", "unit"),
    [("relative", "bpc"), ("words", "ppl"), *(pytest.param(k, u, marks=pytest.mark.slow) for k, u in
     [("no_memory", "bpc"), ("sentences", "ppl"), ("compressive", "bpc"), ("tokens", "bpc"), ("lstm", "bpc")])],
)  # fmt: skip
def test_the_losses_and_their_intervals_are_those_of_evaluate(
    runs: SmallRuns, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, unit: str
) -> None:
    monkeypatch.setattr(command, "BLOCK_LEN", 5)
    made = card(runs, kind, tmp_path, license="apache-2.0")
    perplexity.run(EvaluateOptions(runs.checkpoint(kind), num_threads=1, block_len=5), tmp_path)
    evaluated = json.loads((tmp_path / "evaluation.json").read_text())
    assert (made.data.license, made.data.library_name, made.data.model_name) == ("apache-2.0", "txl_lightning", kind)
    found = {result.dataset_split: result for result in made.data.eval_results}
    for split, shown in {"valid": "validation", "test": "test"}.items():
        value, error = evaluated[split][unit], evaluated[split]["standard_error"][unit]
        assert (found[shown].metric_type, found[shown].metric_value) == (unit, pytest.approx(value, abs=1e-4))
        (row,) = re.findall(rf"^\| {shown} \| (\S+) \[(\S+), (\S+)\] \| ([\d,]+) \|$", made.text, re.MULTILINE)
        assert int(row[3].replace(",", "")) == evaluated[split]["tokens"]
        ends = [value - 1.96 * error, value + 1.96 * error]
        assert [float(number) for number in row[:3]] == pytest.approx([value, *ends], abs=2e-4)


def test_data_and_lengths_are_those_of_the_run(runs: SmallRuns, tmp_path: Path) -> None:
    text = card(runs, "relative", tmp_path, name="small: model").text
    metrics = json.loads((runs.directory("relative") / "metrics.json").read_text())
    assert text.startswith("\n# small: model\n")
    assert metrics["corpus"]["sha256"] in text
    assert f"| parameters | {metrics['parameters']:,} |" in text
    assert "| segment_len | 8 | 8 |" in text
    assert "| batch_size | 4 | 2 |" in text
    assert f"| mem_len | 8 | {metrics['evaluation']['mem_len']} |" in text
    assert "Effective context" not in text


def test_effective_contexts_of_the_checkpoint_in_the_runs_folder(runs: SmallRuns, tmp_path: Path) -> None:
    kept = runs.directory("no_memory") / "recl"
    recl(kept, runs.checkpoint("no_memory"))
    recl(runs.directory("no_memory") / "other", runs.checkpoint("characters"))
    text = card(runs, "no_memory", tmp_path).text
    assert text.count("## Effective context") == 1
    assert text.count("RECL r = 0.1") == 1
    assert (kept / "recl.md").read_text().splitlines()[2] in text


@pytest.mark.slow
def test_the_commands_train_and_evaluate_the_run_again(tmp_path: Path) -> None:
    (tmp_path / "a text.txt").write_text("".join(f"{i} plus one is {i + 1}\n" for i in range(500)))
    words = ["profile=smoke", "trainer.max_steps=2", "trainer.num_threads=1", "logger=none", "data=file"]
    words += [f"data.path='{tmp_path}/a text.txt'", f"data.cache_dir={tmp_path}/cache", "evaluation.max_segments=3"]

    def txl(folder: str, *words: str) -> None:
        done = run_txl(*words, f"hydra.run.dir={folder}", directory=tmp_path)
        assert done.status == 0, done.err

    txl("run", "train", *words)
    txl("card", "card", "checkpoint=run/checkpoints/best.ckpt")
    written = (tmp_path / "card/README.md").read_text()
    (block,) = re.findall(r"```console\n(.*?)```", written, re.DOTALL)
    train, evaluate, generate = (shlex.split(line)[1:] for line in block.splitlines())
    txl("again", *train)
    metrics = [json.loads((tmp_path / run / "metrics.json").read_text())["test/nll"] for run in ("run", "again")]
    assert metrics[0] == metrics[1]
    for words in (evaluate, generate):
        txl(words[0], *(word.replace("=best.ckpt", "=run/checkpoints/best.ckpt") for word in words))


def test_a_run_without_its_command_and_bad_options(runs: SmallRuns, tmp_path: Path) -> None:
    assert "# trained with the options in config.yaml of the run" in card(runs, "relative", tmp_path).text
    with pytest.raises(UserError, match="checkpoint=missing: no such file"):
        run(CardOptions("missing"), tmp_path)
    with pytest.raises(UserError, match="accelerator=tpu: must be cpu or gpu"):
        run(CardOptions("missing", accelerator="tpu"), tmp_path)
