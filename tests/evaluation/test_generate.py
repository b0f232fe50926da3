"""`txl generate` on tiny runs: the text as it streams, the file, and resets of the memory as in training."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.evaluation.small_runs import SmallRuns
from txl_lightning.data.corpus import load_corpus
from txl_lightning.data.vocabulary import Vocabulary
from txl_lightning.evaluation import generate as generate_command
from txl_lightning.evaluation.generate import last_document, run
from txl_lightning.evaluation.options import GenerateOptions
from txl_lightning.evaluation.trained import load_trained

LATER = [
    pytest.param(
        kind,
        marks=pytest.mark.full,
    )
    for kind in ("lstm", "words")
]
KINDS = ("relative", "absolute", "compressive", *LATER)


def options(runs: SmallRuns, kind: str, **chosen: Any) -> GenerateOptions:
    if not {"prompt", "context"} & set(chosen):
        chosen["prompt"] = "line 7: the"
    chosen.setdefault("n_tokens", 12)
    return GenerateOptions(runs.checkpoint(kind), num_threads=1, **chosen)


def generated(
    options: GenerateOptions, directory: Path, write: Callable[[str], Any] = str
) -> dict[str, Any]:
    """Return `generation.json`; print nothing unless `write` does."""
    directory.mkdir(exist_ok=True)
    assert run(options, directory, write) == []
    return json.loads((directory / "generation.json").read_text())


def texts(results: dict[str, Any]) -> list[str]:
    return [sample["text"] for sample in results["samples"]]


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_model_continues_a_prompt(runs: SmallRuns, tmp_path: Path, kind: str) -> None:
    results = generated(options(runs, kind, n_samples=2), tmp_path)
    assert [len(sample["tokens"]) for sample in results["samples"]] == [
        12,
        12,
    ]
    assert results["samples"][0] != results["samples"][1]
    contexts = {"absolute": "context: the last 8 tokens", "lstm": "context carried"}
    assert results["context"].startswith(contexts.get(kind, "memory of 8 tokens"))
    second = generated(options(runs, kind, seed=2), tmp_path)
    assert texts(second) == texts(results)[1:]


def test_samples_are_written_as_they_are_drawn(
    runs: SmallRuns, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []
    draw = generate_command.draw

    def noted(*arguments: Any, **named: Any) -> Any:
        for token_B in draw(*arguments, **named):
            events.append("drawn")
            yield token_B

    monkeypatch.setattr(generate_command, "draw", noted)
    results = generated(
        options(runs, "characters", n_samples=2),
        tmp_path,
        events.append,
    )
    vocabulary = load_trained(runs.checkpoint("characters")).vocabulary
    expected = ["--- prompt\nline 7: the\n"]
    for number, sample in enumerate(results["samples"], 1):
        expected.append(f"--- sample {number}\n")
        for token in sample["tokens"]:
            expected += ["drawn", vocabulary.decode([token])]
        expected.append("\n")
    assert events[:-1] == expected
    assert re.fullmatch(r"---\n24 tokens, [\d,]+ a second; memory of 8 tokens\n", events[-1])


def test_a_drawn_document_begins_with_an_empty_memory(
    runs: SmallRuns, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a drawn line that begins a document the model reads this line from an empty memory, as in training."""
    trained = load_trained(runs.checkpoint("documents"))
    script = trained.encode("is 4\nline 8\nno")
    read: list[str] = []

    def scripted(model: Any, prompt_1T: torch.Tensor, n_tokens: int, **reading: Any) -> Any:
        read.append(trained.vocabulary.decode(prompt_1T[0].tolist()))
        for token in script[len(script) - n_tokens :]:
            yield torch.tensor([token])

    monkeypatch.setattr(generate_command, "draw", scripted)
    given = options(runs, "documents", n_tokens=len(script))
    prompt = trained.encode("no\nline 7")
    drawn = generate_command.draw_tokens(trained.model, trained, given, prompt, 1)
    assert list(drawn) == script
    assert read == ["line 7", "line 8\n"]


def test_an_id_that_begins_a_document_does_so_at_once(runs: SmallRuns) -> None:
    trained = load_trained(runs.checkpoint("documents"))
    trained.config.data.document_start = "start|1"
    ids = replace(
        trained,
        vocabulary=Vocabulary("ids", ("start", "C4", "E4")),
    )
    assert last_document(ids, [0, 2]) == [0, 2]
    assert last_document(
        ids,
        [0, 2, 1, 2],
    ) == [1, 2]
    assert last_document(ids, [0, 2, 0]) == [0]


@pytest.mark.parametrize(
    "chosen", [{"prompt": "the cat\nthe cat sat\n"}, {"context": 14, "position": 3}], ids=str
)
def test_sentences_are_drawn_with_marks_at_both_ends(
    runs: SmallRuns, tmp_path: Path, chosen: dict[str, Any]
) -> None:
    """The first `<S>` of two ends a sentence and must not hide it, or the second one is never drawn."""
    results = generated(
        options(
            runs,
            "sentences",
            top_k=1,
            n_tokens=40,
            **chosen,
        ),
        tmp_path,
    )
    assert "\n\nthe cat" in results["prompt"]["text"]
    assert texts(results)[0].count("\n\nthe cat sat") > 3


def test_test_tokens_are_continued_beside_their_true_continuation(
    runs: SmallRuns, tmp_path: Path
) -> None:
    results = generated(
        options(runs, "relative", context=30, position=40),
        tmp_path,
    )
    trained = load_trained(runs.checkpoint("relative"))
    corpus = load_corpus(trained.config.data)
    tokens = corpus.splits["test"]
    assert results["prompt"]["tokens"] == tokens[40:70].tolist()
    assert results["continuation"] == trained.vocabulary.decode(tokens[70:82])
    assert results["prompt"]["corpus"] == corpus.facts()
    assert results["prompt"]["split"] == "test"


def test_a_seed_repeats_beyond_the_memory_in_its_precision(runs: SmallRuns, tmp_path: Path) -> None:
    given: dict[str, Any] = {
        "n_tokens": 60,
        "top_p": 0.9,
        "top_k": None,
        "temperature": 3.0,
    }
    given |= {"mem_len": 20, "seed": 5}
    first = generated(options(runs, "relative", **given), tmp_path)
    again = generated(options(runs, "relative", **given), tmp_path)
    in_bfloat16 = generated(
        options(runs, "relative", **given, precision="bf16-mixed"),
        tmp_path,
    )
    given["seed"] = 6
    other_seed = generated(options(runs, "relative", **given), tmp_path)
    assert texts(again) == texts(first)
    assert texts(first) not in (texts(other_seed), texts(in_bfloat16))
    assert first["context"] == "memory of 20 tokens"
    assert in_bfloat16["precision"] == "bf16-mixed"


def test_a_terminal_is_not_commanded_by_a_sample() -> None:
    shown = generate_command.visible("a\x1b[2J\tb\r\x9b\né")
    assert shown == "a\ufffd[2J\tb\ufffd\ufffd\né"


def test_unknown_words_of_a_prompt_are_shown(runs: SmallRuns, tmp_path: Path) -> None:
    results = generated(options(runs, "words", prompt="the dog"), tmp_path)
    assert results["prompt"]["text"] == "the <unk>"


def test_a_sample_ends_with_a_text(runs: SmallRuns, tmp_path: Path) -> None:
    given = {"n_tokens": 40, "n_samples": 3}
    whole = texts(generated(options(runs, "characters", **given), tmp_path))
    stop = whole[0][5:8]
    stopped = generated(options(runs, "characters", stop=stop, **given), tmp_path)
    for text, ended in zip(whole, texts(stopped), strict=True):
        before, found, _ = text.partition(stop)
        assert ended == before + found
