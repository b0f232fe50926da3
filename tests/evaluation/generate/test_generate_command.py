"""txl generate: from a tiny run of every kind to text, as it streams and as it is left behind."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.training.small_run import tiny_config
from txl_lightning.command_line.hydra_app import literal
from txl_lightning.data.corpora.corpus import load_corpus
from txl_lightning.data.vocabulary.symbols import Vocabulary
from txl_lightning.errors import UserError
from txl_lightning.evaluation.generate import command as generate_command
from txl_lightning.evaluation.generate.command import generate
from txl_lightning.evaluation.generate.options import GenerateOptions
from txl_lightning.evaluation.generate.prompts import typed_prompt
from txl_lightning.model import SlidingWindow
from txl_lightning.runs.trained import load_trained
from txl_lightning.training.run import train

KINDS = {
    "recurrence": ["memory=on"],
    "absolute": ["memory=off", "encoding=absolute"],
    "lstm": ["model=lstm", "model.d_model=16"],
    "words": ["data.level=word"],
    "characters": ["data.level=char"],
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A step of training of every kind, `KIND/checkpoints/best.ckpt`."""
    directory = tmp_path_factory.mktemp("runs")
    for kind, overrides in KINDS.items():
        config = tiny_config(directory, "trainer.max_steps=1", "evaluation.max_segments=1", *overrides)
        train(config, directory / kind)
    return directory


def options(runs: Path, kind: str, **chosen: Any) -> GenerateOptions:
    path = str(runs / kind / "checkpoints/best.ckpt")
    if not {"prompt", "context"} & set(chosen):
        chosen["prompt"] = "line 7: the"
    return GenerateOptions(path, **{"n_tokens": 12, "num_threads": 1, **chosen})


def silent(text: str) -> None:
    pass


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_model_continues_a_prompt(runs: Path, tmp_path: Path, kind: str) -> None:
    written: list[str] = []
    results = generate(options(runs, kind, n_samples=2), tmp_path, written.append)
    assert results == json.loads((tmp_path / "generation.json").read_text())
    assert {path.name for path in tmp_path.iterdir()} == {"config.yaml", "generation.json", "samples.txt"}
    assert [len(sample["tokens"]) for sample in results["samples"]] == [12, 12]
    assert results["samples"][0] != results["samples"][1]
    assert results["prompt"]["text"] == results["prompt"]["prompt"] == "line 7: the"
    assert results["options"]["top_k"] == 40
    assert results["tokens_per_second"] > 0
    contexts = {"absolute": "context: the last 8 tokens", "lstm": "context carried", "recurrence": "memory of 8 tokens"}
    assert results["context"].startswith(contexts.get(kind, "memory of"))
    text = (tmp_path / "samples.txt").read_text()
    assert text.startswith("=== prompt\nline 7: the\n\n=== sample 1\n")
    assert "=== sample 2\n" in text
    shown = "".join(written)
    assert shown.index("--- prompt") < shown.index("--- sample 1") < shown.index("--- sample 2")


def test_the_sample_is_written_as_it_is_drawn(runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[str] = []

    def noted(*arguments: Any, **named: Any) -> Any:
        for token_B in draw(*arguments, **named):
            events.append("drawn")
            yield token_B

    draw = generate_command.draw
    monkeypatch.setattr(generate_command, "draw", noted)
    results = generate(options(runs, "characters", n_samples=2), tmp_path, lambda text: events.append(f"<{text}>"))
    assert events[0] == "<--- prompt\nline 7: the\n--- sample 1\n>"
    of_tokens = events[1:25]
    assert of_tokens[::2] == ["drawn"] * 12
    assert "".join(of_tokens[1::2]) == "".join(f"<{c}>" for c in literal_symbols(results["samples"][0], runs))
    assert events[25].startswith("<\n")
    assert events[26].startswith("<--- sample 2\n")


def literal_symbols(sample: dict[str, Any], runs: Path) -> list[str]:
    vocabulary = load_trained(runs / "characters/checkpoints/best.ckpt").vocabulary
    return [vocabulary.symbols[token] for token in sample["tokens"]]


def test_test_tokens_are_continued_beside_their_true_continuation(runs: Path, tmp_path: Path) -> None:
    chosen = options(runs, "recurrence", context=30, position=40)
    results = generate(chosen, tmp_path / "at", silent)
    trained = load_trained(chosen.checkpoint)
    tokens = load_corpus(trained.config.data).splits["test"]
    assert results["prompt"]["tokens"] == tokens[40:70].tolist()
    assert results["continuation"] == trained.vocabulary.decode(tokens[70:82])
    text = (tmp_path / "at/samples.txt").read_text()
    assert text.index("from token 40 on") < text.index("=== true continuation") < text.index("=== sample 1")
    positions = set()
    for seed in (1, 1, 2, 3):
        somewhere = generate(options(runs, "recurrence", context=30, seed=seed), tmp_path / "some", silent)
        positions.add(somewhere["prompt"]["position"])
        assert len(somewhere["continuation"]) == 12
    assert 1 < len(positions) <= 3


def test_a_seed_repeats_and_another_differs(runs: Path, tmp_path: Path) -> None:
    drawn = [generate(options(runs, "recurrence", seed=seed), tmp_path, silent)["samples"] for seed in (5, 5, 6)]
    assert drawn[0] == drawn[1] != drawn[2]


def test_a_thousand_tokens_with_memory(runs: Path, tmp_path: Path) -> None:
    results = generate(options(runs, "recurrence", n_tokens=1000, mem_len=600, top_p=0.9), tmp_path, silent)
    assert len(results["samples"][0]["tokens"]) == 1000
    assert results["context"] == "memory of 600 tokens"


def test_the_window_of_a_model_without_recurrence_is_its_training_segment(runs: Path) -> None:
    trained = load_trained(runs / "absolute/checkpoints/best.ckpt")
    model, _ = generate_command.with_context(trained, options(runs, "absolute"))
    assert isinstance(model, SlidingWindow)
    assert model.attention_len == 8


def test_a_terminal_is_not_commanded_by_a_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    assert generate_command.visible("a\x1b[2J\tb\r\x9b\né") == "a\ufffd[2J\tb\ufffd\ufffd\né"


@pytest.mark.parametrize(
    ("vocabulary", "text", "tokens"),
    [
        (Vocabulary("byte"), "é", [0xC3, 0xA9]),
        (Vocabulary("byte", ("a", "b")), "a\nb", [0, 1]),
        (Vocabulary("word", ("<eos>", "<unk>", "the", "cat")), "the cat", [2, 3]),
        (Vocabulary("word", ("<eos>", "<unk>", "the", "cat")), "the dog\n\n", [2, 1, 0, 0]),
        (Vocabulary("word", ("<S>", "<UNK>", "the", "cat")), "the cat\nthe", [0, 2, 3, 0, 2]),
    ],
)
def test_a_prompt_is_encoded_as_the_corpus_is(vocabulary: Vocabulary, text: str, tokens: list[int]) -> None:
    prompt = typed_prompt(text, vocabulary)
    assert prompt.tokens == tokens
    assert ("'dog' read as <unk>" in prompt.title) == ("dog" in text)


@pytest.mark.parametrize(
    ("kind", "chosen", "words"),
    [
        ("recurrence", {"prompt": None}, "prompt=None: must be given, or context=N"),
        ("recurrence", {"prompt": ""}, "prompt='': must have at least one token"),
        ("recurrence", {"prompt": "a", "context": 3}, "context=3: must not be given together with prompt"),
        ("recurrence", {"context": 0}, "context=0: must be"),
        ("recurrence", {"context": 10**6}, r"context=1000000: must be in 1 … \d+, the tokens of test"),
        ("recurrence", {"context": 10, "position": 10**6}, "position=1000000: must be in 0 …"),
        ("recurrence", {"prompt": "a", "position": 3}, r"position=3: must be .* with context=N"),
        ("recurrence", {"context": 5, "split": "dev"}, "split=dev: must be one of"),
        ("recurrence", {"context": 5, "data_path": "/nowhere.txt"}, "data_path=/nowhere.txt: cannot be read"),
        ("characters", {"prompt": "line ☃:\x00Ω"}, r"prompt='line ☃:\\x00Ω': '☃', '\\x00', 'Ω' not among the \d+"),
        ("recurrence", {"n_tokens": 0}, "n_tokens=0: must be"),
        ("recurrence", {"n_samples": 0}, "n_samples=0: must be"),
        ("recurrence", {"top_k": 0}, "top_k=0: must be"),
        ("recurrence", {"top_p": 0.0}, "top_p=0.0: must be"),
        ("recurrence", {"temperature": 0.0}, "temperature=0.0: must be"),
        ("recurrence", {"mem_len": 0}, "mem_len=0: must be an integer >= 1"),
        ("lstm", {"mem_len": 5}, "mem_len=5: lstm has no such length"),
        ("recurrence", {"seed": -1}, "seed=-1"),
        ("recurrence", {"accelerator": "tpu"}, "accelerator=tpu"),
        ("nothing", {}, "checkpoint=.*: no such file"),
    ],
)
def test_what_cannot_be_continued_is_named(
    runs: Path, tmp_path: Path, kind: str, chosen: dict[str, Any], words: str
) -> None:
    with pytest.raises(UserError, match=words) as caught:
        generate(replace(options(runs, kind, **chosen), **chosen), tmp_path / "run", silent)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()


TEXTS = ("def f(x, y): return {x: [y]}", 'it\'s "so"', "a=b", "two\nlines\\", "${a}\\${b}\\\\", "null", " 1 ", "C:\\'")


@pytest.mark.parametrize("text", TEXTS)
def test_a_prompt_is_what_was_typed(text: str) -> None:
    from hydra import compose, initialize_config_dir
    from omegaconf import OmegaConf

    from txl_lightning.config.composition import register_schemas
    from txl_lightning.config.schemas import CONF

    register_schemas()
    with initialize_config_dir(str(CONF), version_base="1.3"):
        config = compose("generate", overrides=["checkpoint=x", literal(f"prompt={text}", ("prompt",))])
    composed = OmegaConf.to_object(config)
    assert isinstance(composed, GenerateOptions)
    assert composed.prompt == text
    assert literal("seed=3", ("prompt",)) == "seed=3"


def test_the_command(runs: Path, tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "txl_lightning.cli",
        "generate",
        "hydra.run.dir=run",
        "num_threads=1",
        "n_tokens=5",
    ]
    checkpoint = f"checkpoint={runs / 'recurrence/checkpoints/best.ckpt'}"
    done = subprocess.run(
        [*command, checkpoint, "prompt=it's (a), b: ${c}"], cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("--- prompt\nit's (a), b: ${c}\n--- sample 1\n")
    assert done.stdout.splitlines()[-1] == str(tmp_path / "run")
    results = json.loads((tmp_path / "run/generation.json").read_text())
    assert results["prompt"]["prompt"] == "it's (a), b: ${c}"
    assert torch.tensor(results["samples"][0]["tokens"]).shape == (5,)
