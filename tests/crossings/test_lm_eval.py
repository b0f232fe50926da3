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


def test_a_task_of_local_text_has_the_numbers_of_txl_evaluate(tmp_path: Path) -> None:
    from lm_eval import simple_evaluate
    from lm_eval.tasks import TaskManager

    from examples.lm_eval_model import TransformerXLForHarness

    checkpoint = trained("memory=on") / "run/checkpoints/best.ckpt"
    texts = ["line 3: the square of 3 is 9", "the square of 12"]
    rows = []
    for context, choices, answer in CHOICES:
        rows.append({"context": context, "choices": choices, "answer": answer})
    (tmp_path / "choices.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
    (tmp_path / "lines.jsonl").write_text("\n".join(json.dumps({"text": text}) for text in texts))
    for name, task in TASKS.items():
        (tmp_path / f"{name}.yaml").write_text(task.format(folder=tmp_path))
    tasks = TaskManager(include_path=str(tmp_path), include_defaults=False)
    model = TransformerXLForHarness(str(checkpoint))
    found = simple_evaluate(
        model, tasks=["squares", "lines"], task_manager=tasks, log_samples=True, bootstrap_iters=0
    )

    pairs = [(context, choice) for context, choices, _ in CHOICES for choice in choices]
    pairs += [("\n", text) for text in texts]  # the end of a line stands before a text
    lines = [
        json.dumps({"context": context, "continuation": continuation})
        for context, continuation in pairs
    ]
    (tmp_path / "pairs.jsonl").write_text("\n".join(lines))
    evaluated(checkpoint, tmp_path / "own", continuations=str(tmp_path / "pairs.jsonl"))
    table = (tmp_path / "own/continuations.tsv").read_text().splitlines()[1:]
    nats = [float(line.split("\t")[3]) for line in table]

    samples = sorted(found["samples"]["squares"], key=lambda sample: sample["doc_id"])
    likelihoods = [float(response[0][0]) for sample in samples for response in sample["resps"]]
    assert [-likelihood for likelihood in likelihoods] == pytest.approx(nats[:4], rel=1e-5)
    chosen = [nats[0] > nats[1], nats[2] > nats[3]]
    accuracy = (
        sum(int(choice) == answer for choice, (_, _, answer) in zip(chosen, CHOICES, strict=True))
        / 2
    )
    assert found["results"]["squares"]["acc,none"] == accuracy
    n_bytes = sum(len(text) for text in texts)
    assert found["results"]["lines"]["byte_perplexity,none"] == pytest.approx(
        math.exp(sum(nats[4:]) / n_bytes), rel=1e-5
    )
