"""examples/lm_eval_model.py in lm-evaluation-harness: its likelihoods are the ones of `txl evaluate`."""

import json
import math
from pathlib import Path

import pytest

from tests.training.small_run import evaluated, trained

pytest.importorskip(
    "lm_eval", reason="lm-evaluation-harness has an environment of its own: make test-crossings"
)

CHOICES = [("line 7: the", [" square", " squere"], 0), ("the square of 7 is ", ["49", "94"], 1)]
TEXTS = ["line 3: the square of 3 is 9", "the square of 12"]
TASKS = {
    "squares": """
task: squares
dataset_path: json
dataset_kwargs: {{data_files: {{test: {folder}/choices.jsonl}}}}
test_split: test
output_type: multiple_choice
doc_to_text: context
doc_to_choice: choices
doc_to_target: answer
target_delimiter: ""
metric_list: [{{metric: acc}}]
""",
    "lines": """
task: lines
dataset_path: json
dataset_kwargs: {{data_files: {{test: {folder}/lines.jsonl}}}}
test_split: test
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: text
metric_list: [{{metric: byte_perplexity}}]
""",
}


def write_tasks(folder: Path) -> None:
    """Write both tasks and their texts."""
    rows = [
        dict(
            zip(
                ("context", "choices", "answer"),
                choice,
                strict=True,
            )
        )
        for choice in CHOICES
    ]
    (folder / "choices.jsonl").write_text("\n".join(map(json.dumps, rows)))
    texts = [{"text": text} for text in TEXTS]
    (folder / "lines.jsonl").write_text("\n".join(map(json.dumps, texts)))
    for name, task in TASKS.items():
        (folder / f"{name}.yaml").write_text(task.format(folder=folder))


def own_nats(checkpoint: Path, folder: Path) -> list[float]:
    """Return what `txl evaluate` gives for every choice and text."""
    pairs = [(context, choice) for context, choices, _ in CHOICES for choice in choices]
    pairs += [("\n", text) for text in TEXTS]  # the end of a line stands before a text
    lines = []
    for context, continuation in pairs:
        lines.append(json.dumps({"context": context, "continuation": continuation}))
    (folder / "pairs.jsonl").write_text("\n".join(lines))
    evaluated(checkpoint, folder / "own", continuations=str(folder / "pairs.jsonl"))
    table = (folder / "own/continuations.jsonl").read_text().splitlines()
    return [json.loads(line)["nats"] for line in table]


def test_a_task_of_local_text_has_the_numbers_of_txl_evaluate(tmp_path: Path) -> None:
    from lm_eval import simple_evaluate
    from lm_eval.tasks import TaskManager

    from examples.lm_eval_model import TransformerXLForHarness

    checkpoint = trained("memory=on") / "run/checkpoints/best.ckpt"
    write_tasks(tmp_path)
    found = simple_evaluate(
        TransformerXLForHarness(str(checkpoint)),
        tasks=["squares", "lines"],
        task_manager=TaskManager(include_path=str(tmp_path), include_defaults=False),
        log_samples=True,
        bootstrap_iters=0,
    )
    nats = own_nats(checkpoint, tmp_path)
    samples = sorted(
        found["samples"]["squares"],
        key=lambda sample: sample["doc_id"],
    )
    theirs = []
    for sample in samples:
        theirs += [-float(response[0][0]) for response in sample["resps"]]
    assert theirs == pytest.approx(nats[:4], rel=1e-5)
    accuracy = ((nats[0] < nats[1]) + (nats[3] < nats[2])) / 2
    assert found["results"]["squares"]["acc,none"] == accuracy
    n_bytes = sum(len(text) for text in TEXTS)
    perplexity = math.exp(sum(nats[4:]) / n_bytes)
    lines = found["results"]["lines"]
    assert lines["byte_perplexity,none"] == pytest.approx(perplexity, rel=1e-5)
