"""`txl generate` on tiny runs: the text as it streams, the files, and resets of the memory as in training."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.evaluation.small_runs import SmallRuns
from txl_lightning.data.corpus import load_corpus
from txl_lightning.data.vocabulary import Vocabulary
from txl_lightning.evaluation import generate as generate_command
from txl_lightning.evaluation.generate import run, typed_prompt, with_context
from txl_lightning.evaluation.options import GenerateOptions
from txl_lightning.evaluation.texts import OpenDocument, encode_open
from txl_lightning.evaluation.trained import load_trained
from txl_lightning.model import CachedTransformerXL, SlidingWindow

LATER = [pytest.param(kind, marks=pytest.mark.full) for kind in ("lstm", "words")]
KINDS = ("relative", "absolute", "compressive", *LATER)


def options(runs: SmallRuns, kind: str, **chosen: Any) -> GenerateOptions:
    if not {"prompt", "prompts", "context"} & set(chosen):
        chosen["prompt"] = "line 7: the"
    return GenerateOptions(runs.checkpoint(kind), **{"n_tokens": 12, "num_threads": 1, **chosen})


def generated(options: GenerateOptions, directory: Path, write: Callable[[str], None] = str) -> dict[str, Any]:
    """Return `generation.json`; print nothing unless `write` does."""
    directory.mkdir(exist_ok=True)
    assert run(options, directory, write) == []
    return json.loads((directory / "generation.json").read_text())


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_model_continues_a_prompt(runs: SmallRuns, tmp_path: Path, kind: str) -> None:
    results = generated(options(runs, kind, n_samples=2), tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"generation.json"}
    assert [len(sample["tokens"]) for sample in results["samples"]] == [12, 12]
    assert results["samples"][0] != results["samples"][1]
    contexts = {"absolute": "context: the last 8 tokens", "lstm": "context carried"}
    assert results["context"].startswith(contexts.get(kind, "memory of 8 tokens"))


def test_the_sample_is_written_as_it_is_drawn(runs: SmallRuns, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[str] = []
    draw = generate_command.draw

    def noted(*arguments: Any, **named: Any) -> Any:
        for token_B in draw(*arguments, **named):
            events.append("drawn")
            yield token_B

    monkeypatch.setattr(generate_command, "draw", noted)
    results = generated(options(runs, "characters", n_samples=2), tmp_path, lambda text: events.append(f"<{text}>"))
    assert events[0] == "<--- prompt\nline 7: the\n--- sample 1\n>"
    vocabulary = load_trained(runs.checkpoint("characters")).vocabulary
    expected = []
    for token in results["samples"][0]["tokens"]:
        expected += ["drawn", f"<{vocabulary.symbols[token]}>"]
    assert events[1:25] == expected
    assert events[25:27] == ["<\n>", "<--- sample 2\n>"]


@pytest.mark.parametrize("kind", ["relative", pytest.param("absolute", marks=pytest.mark.full)])
def test_prompts_of_any_lengths_are_continued_as_each_is_alone(runs: SmallRuns, tmp_path: Path, kind: str) -> None:
    texts = ["line 7: the", "l", "line 8: the square of 8 is 64 " * 10]
    written: list[str] = []
    given = options(runs, kind, n_samples=2, prompts=texts, seed=3)
    listed = generated(given, tmp_path / "list", written.append)["prompts"]
    for text, entry in zip(texts, listed, strict=True):
        alone = generated(options(runs, kind, n_samples=2, prompt=text, seed=3), tmp_path / "alone")
        assert entry["prompt"]["text"] == text
        assert entry["samples"] == alone["samples"]
    again = generated(options(runs, kind, prompt=texts[1], seed=4), tmp_path / "alone")
    assert again["samples"] == listed[1]["samples"][1:]
    assert f"--- prompt, 2\n{texts[1]}\n--- sample 1\n" in "".join(written)


def test_a_document_in_a_typed_prompt_begins_with_an_empty_memory(runs: SmallRuns, tmp_path: Path) -> None:
    """Lines that begin with `line` are documents of this run: nothing before the last one is seen."""
    whole = generated(options(runs, "documents", prompt="no square\nline 7: the", mem_len=30), tmp_path)
    other = generated(options(runs, "documents", prompt="is 7 of 7\nline 7: the", mem_len=30), tmp_path)
    alone = generated(options(runs, "documents", prompt="line 7: the", mem_len=30), tmp_path)
    assert whole["samples"] == other["samples"] == alone["samples"]
    assert whole["prompt"]["text"] == "no square\nline 7: the"
    assert min(whole["prompt"]["tokens"]) >= 0


def test_a_drawn_document_begins_with_an_empty_memory(runs: SmallRuns, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a drawn line that begins a document the model reads this line from an empty memory, as in training."""
    trained = load_trained(runs.checkpoint("documents"))
    script = encode_open(trained.vocabulary, "is 4\nline 8\nno")
    read: list[str] = []

    def scripted(model: Any, prompts: list[torch.Tensor], n_tokens: int, **reading: Any) -> Any:
        read.append(trained.vocabulary.decode(prompts[0].tolist()))
        for token in script[len(script) - n_tokens :]:
            yield torch.tensor([token])

    monkeypatch.setattr(generate_command, "draw", scripted)
    given = options(runs, "documents", prompt="no\nline 7", n_tokens=len(script))
    sample = generate_command.Sample(
        typed_prompt("no\nline 7", trained), 1, generate_command.Ending(None, trained.vocabulary)
    )
    drawn = generate_command.draw_tokens(trained.model, trained, given, [sample])
    assert [int(token) for token in drawn] == script
    assert read == ["line 7", "line 8\n"]


def test_an_id_that_begins_a_document_does_so_at_once() -> None:
    vocabulary = Vocabulary("ids", ("start", "C4", "E4"))
    document = OpenDocument([0, 1, -1, 2], vocabulary, re.compile(b"start"))
    assert document.tokens == [0, 2]
    assert not document.add(1)
    assert document.add(0)
    assert document.tokens == [0]


def test_a_sample_of_a_corpus_ends_its_context_at_a_document(runs: SmallRuns, tmp_path: Path) -> None:
    """The document is all that the model sees of the context, whose numbers stay those of the corpus."""
    trained = load_trained(runs.checkpoint("documents"))
    tokens = np.asarray(load_corpus(trained.config.data, marked=True).splits["test"])
    start = int((tokens < 0).nonzero()[0][-1])
    whole = generated(options(runs, "documents", context=15, position=start - 10, mem_len=30), tmp_path)
    short = generated(options(runs, "documents", context=5, position=start, mem_len=30), tmp_path)
    assert whole["samples"] == short["samples"]
    assert whole["prompt"]["tokens"][-5:] == short["prompt"]["tokens"]
    assert min(whole["prompt"]["tokens"]) >= 0


@pytest.mark.parametrize("chosen", [{"prompt": "the cat\nthe cat sat\n"}, {"context": 14, "position": 3}], ids=str)
def test_sentences_are_drawn_with_marks_at_both_ends(runs: SmallRuns, tmp_path: Path, chosen: dict[str, Any]) -> None:
    """The first `<S>` of two ends a sentence and must not hide it, or the second one is never drawn."""
    written: list[str] = []
    results = generated(options(runs, "sentences", top_k=1, n_tokens=40, **chosen), tmp_path, written.append)
    assert "\n\nthe cat" in results["prompt"]["text"]
    text = results["samples"][0]["text"]
    assert text.count("\n\nthe cat sat") > 3
    assert text in "".join(written)


def test_test_tokens_are_continued_beside_their_true_continuation(runs: SmallRuns, tmp_path: Path) -> None:
    chosen = options(runs, "relative", context=30, position=40)
    results = generated(chosen, tmp_path / "at")
    trained = load_trained(chosen.checkpoint)
    corpus = load_corpus(trained.config.data)
    tokens = corpus.splits["test"]
    assert results["prompt"]["tokens"] == tokens[40:70].tolist()
    assert results["continuation"] == trained.vocabulary.decode(tokens[70:82])
    assert results["samples"][0]["text"] == trained.vocabulary.decode(results["samples"][0]["tokens"])
    source = {"corpus": "text.txt", "sha256": corpus.checksum, "split": "test", "position": 40, "context": 30}
    assert results["prompt"].items() >= source.items()
    places = set()
    for seed in (1, 2, 3):
        other = generated(options(runs, "relative", context=30, seed=seed), tmp_path / "some")
        places.add(other["prompt"]["position"])
    assert len(places) > 1


def test_a_seed_repeats_beyond_the_memory_in_its_precision(runs: SmallRuns, tmp_path: Path) -> None:
    sampling = {"n_tokens": 60, "top_p": 0.9, "top_k": None, "temperature": 3.0}
    given = {**sampling, "mem_len": 20, "seed": 5}
    first = generated(options(runs, "relative", **given), tmp_path)
    again = generated(options(runs, "relative", **given), tmp_path)
    other_seed = generated(options(runs, "relative", **{**given, "seed": 6}), tmp_path)
    in_bfloat16 = generated(options(runs, "relative", **given, precision="bf16-mixed"), tmp_path)
    assert again["samples"] == first["samples"]
    assert first["samples"] not in (other_seed["samples"], in_bfloat16["samples"])
    assert first["context"] == "memory of 20 tokens"
    assert in_bfloat16["options"] == {
        **sampling,
        "stop": None,
        "n_samples": 1,
        "seed": 5,
        "precision": "bf16-mixed",
    }
    assert min(first["tokens_per_second"], first["prompt_seconds"]) > 0


def test_a_terminal_is_not_commanded_by_a_sample() -> None:
    assert generate_command.visible("a\x1b[2J\tb\r\x9b\né") == "a\ufffd[2J\tb\ufffd\ufffd\né"


WORDS = Vocabulary("word", ("<eos>", "<unk>", "the", "cat"))
OF_LM1B = Vocabulary("word", ("<S>", "<UNK>", "the", "cat"))
PROMPTS = [
    (Vocabulary("byte"), "é", False, [0xC3, 0xA9]),
    (Vocabulary("byte", ("a", "b")), "a\nb", False, [0, 1]),
    (WORDS, "the dog\n\n", False, [2, 1, 0, 0]),
    (OF_LM1B, "the cat\nthe", False, [0, 2, 3, 0, 2]),
    # Only the sentence that is continued has no mark at its end.
    (OF_LM1B, "the cat\nthe", True, [0, 2, 3, 0, 0, 2]),
    (OF_LM1B, "\nthe\n\ncat", True, [0, 2, 0, 0, 3]),
]


@pytest.mark.parametrize(("vocabulary", "text", "closed", "tokens"), PROMPTS)
def test_prompts_are_encoded_as_corpora_are(vocabulary: Vocabulary, text: str, closed: bool, tokens: list[int]) -> None:
    assert encode_open(vocabulary, text, closed) == tokens


def test_unknown_words_of_a_prompt_are_named(runs: SmallRuns) -> None:
    trained = load_trained(runs.checkpoint("words"))
    prompt = typed_prompt("the dog", trained)
    assert prompt.source["unknown"] == ["dog"]
    assert prompt.title == "prompt ('dog' read as <unk>)"
    lenient = replace(trained, vocabulary=replace(trained.vocabulary, lenient=True))
    assert typed_prompt("the dog", lenient) == prompt


def test_distances_beyond_training_are_clamped(runs: SmallRuns) -> None:
    for mem_len, clamp_len in ((None, -1), (8, -1), (9, 15)):
        model, _ = with_context(load_trained(runs.checkpoint("relative")), options(runs, "relative", mem_len=mem_len))
        assert isinstance(model, CachedTransformerXL)
        assert model.config.clamp_len == clamp_len
    model, _ = with_context(load_trained(runs.checkpoint("absolute")), options(runs, "absolute"))
    assert isinstance(model, SlidingWindow)
    assert model.attention_len == 8


def test_a_sample_ends_with_a_text_or_an_id(runs: SmallRuns, tmp_path: Path) -> None:
    written: list[str] = []

    def samples(stop: Any = None) -> list[dict[str, Any]]:
        given = options(runs, "characters", n_tokens=40, n_samples=3, stop=stop)
        return generated(given, tmp_path, written.append)["samples"]

    whole = [sample["text"] for sample in samples()]
    stop = whole[0][5:8]
    stopped = samples([stop, "no such text"])
    for text, sample in zip(whole, stopped, strict=True):
        end = text.index(stop) + 3 if stop in text else len(text)
        assert sample["text"] == text[:end]
    assert f"--- sample 1\n{stopped[0]['text']}\n" in "".join(written)
    token = stopped[0]["tokens"][3]
    by_id = samples(token)[0]["tokens"]
    assert (by_id[-1], by_id.count(token)) == (token, 1)
