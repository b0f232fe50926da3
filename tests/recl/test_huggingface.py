"""Models of transformers, tiny and random: the library's own losses, one pass, states, limits, and refusals."""

import json
import re
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.recl.tiny_huggingface import KINDS, POSITIONS, TEXT, VOCABULARY, model_of, save_tiny
from txl_lightning.errors import OptionError
from txl_lightning.evaluation.losses import WindowReader, window_losses
from txl_lightning.recl import models as elsewhere
from txl_lightning.recl.loss_by_context import position_blocks
from txl_lightning.recl.models import HuggingFaceModel, Member, TokenizedText, checked, load_huggingface

transformers = pytest.importorskip("transformers", reason="needs the extra hf")
pytestmark = [
    pytest.mark.filterwarnings("default"),
    pytest.mark.skipif(hasattr(transformers, "TransfoXLLMHeadModel"), reason="too old a release for the extra hf"),
]

TOKENS = np.random.default_rng(3).integers(0, VOCABULARY, 301)
STREAM = TokenizedText(TOKENS, None, len(TOKENS))
CONTEXTS = [5, 10, 15, 20]
POSITIONS_T, _ = position_blocks(len(TOKENS), 30, CONTEXTS)


def load(folder: str | Path, begin_of_text: bool = False) -> Member:
    return load_huggingface(f"hf:{folder}", "name", begin_of_text)


def own_loss(model: Any, window: np.ndarray) -> float:
    """The loss that transformers computes for the last token of a window."""
    ids = torch.from_numpy(window)[None]
    labels = torch.full_like(ids, -100)
    labels[0, -1] = ids[0, -1]
    with torch.no_grad():
        return float(model(input_ids=ids, labels=labels, use_cache=False).loss)


def own_losses(model: Any, contexts: list[int], begin: list[int]) -> np.ndarray:
    windows = [[np.array([*begin, *TOKENS[t - c : t + 1]]) for t in POSITIONS_T] for c in contexts]
    return np.array([[own_loss(model, window) for window in of_context] for of_context in windows])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("begin", [[], [0]])
def test_losses_are_the_librarys_own_with_exactly_c_tokens(kind: str, begin: list[int]) -> None:
    model = model_of(transformers, kind)
    expected = own_losses(model, CONTEXTS, begin)
    reader = WindowReader(HuggingFaceModel(model, *begin), one_pass=True)
    np.testing.assert_allclose(window_losses(reader, TOKENS, POSITIONS_T, CONTEXTS), expected, rtol=0, atol=1e-5)
    assert np.abs(expected[0] - expected[-1]).max() > 0.01


@pytest.mark.parametrize("kind", KINDS)
def test_a_saved_model_is_loaded_with_its_tokenizer_and_its_limit(kind: str, tmp_path: Path) -> None:
    loaded = load(save_tiny(transformers, tmp_path, kind))
    limit = None if kind == "mamba" else POSITIONS
    assert (loaded.kind, loaded.reader.limit, loaded.reader.one_pass) == (f"{kind}, Hugging Face", limit, True)
    expected = model_of(transformers, kind).state_dict()
    torch.testing.assert_close(dict(loaded.reader.model.model.state_dict()), dict(expected))
    begun = checked(load(tmp_path, True), STREAM, CONTEXTS, 30)
    assert (begun.begin_of_text, begun.reader.limit) == (0, limit and POSITIONS - 1)
    assert begun.reader.one_pass


def test_tokens_know_their_bytes(tmp_path: Path) -> None:
    loaded = load(save_tiny(transformers, tmp_path, "gpt2"), True)
    content = ("élan 😀 is 4€" + TEXT[:200]).encode()
    text = loaded.tokenize(content)
    assert text.n_bytes == len(content)
    assert 0 not in text.tokens  # the begin-of-text token
    assert text.starts[0] == 0
    assert len(text.starts) == len(text.tokens) > len(set(text.starts.tolist()))  # € has several tokens
    bounds = np.append(np.unique(text.starts), len(content))
    assert "€" in [content[a:b].decode() for a, b in pairwise(bounds)]


def change(folder: str, file: str, **changes: Any) -> None:
    path = Path(folder) / file
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_missing_weights_are_not_replaced_by_random_ones(tmp_path: Path) -> None:
    folder = save_tiny(transformers, tmp_path, "llama")
    change(folder, "config.json", num_hidden_layers=3)
    with pytest.raises(OptionError, match=r"models=hf:.*: has no weights for model\.layers\.2\.input_layernorm\.w"):
        load(folder)
    change(folder, "config.json", num_hidden_layers=2)
    transformers.AutoModelForCausalLM.from_pretrained(folder).model.save_pretrained(folder)  # without the head
    with pytest.raises(OptionError, match=r"models=hf:.*: has no weights for lm_head\.weight"):
        load(folder)


def test_a_tokenizer_with_more_tokens_than_the_model_is_named(tmp_path: Path) -> None:
    folder = save_tiny(transformers, tmp_path, "gpt2", vocabulary=VOCABULARY)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    model.resize_token_embeddings(100)
    model.save_pretrained(folder)
    loaded = load(folder)
    with pytest.raises(OptionError, match=r"knows 100 tokens, but its tokenizer gives number \d{3}"):
        loaded.tokenize(TEXT.encode())


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(OptionError, match=r"needs transformers: pip install 'txl_lightning\[hf\]'"):
        load_huggingface("hf:gpt2", "name", False)


def test_a_tokenizer_without_a_begin_of_text_token(tmp_path: Path) -> None:
    folder = save_tiny(transformers, tmp_path, "gpt2")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    tokenizer.bos_token = None
    tokenizer.save_pretrained(folder)
    with pytest.raises(OptionError, match=r"begin_of_text=True: .* has no such token"):
        load(folder, True)


def test_spaces_at_the_end_of_a_token_are_its_own(tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers", reason="needs the extra hf")
    content = "def f(x):\n        return x\n\n    y = 1\n" * 3
    tokenizer = transformers.AutoTokenizer.from_pretrained(save_tiny(transformers, tmp_path, "gpt2", content))
    trimming = tokenizers.processors.ByteLevel(trim_offsets=True)  # that of GPT-2 and GPT-NeoX
    tokenizer.backend_tokenizer.post_processor = trimming
    text = elsewhere._tokenized([tokenizer], content.encode(), "hf:name")
    pieces = tokenizer.convert_ids_to_tokens(text.tokens.tolist())
    assert any(piece.endswith("Ġ") for piece in pieces)
    assert text.starts.tolist() == [sum(map(len, pieces[:i])) for i in range(len(pieces))]


UNUSABLE = [
    ("llama", {"intermediate_size": 63}, "cannot be loaded"),
    ("llama", {"model_type": "own", "auto_map": {"AutoConfig": "a.B"}}, "custom code"),
    ("t5", {}, "must be a causal language model, not an encoder-decoder"),
    ("bart", {}, "must be a causal language model, not an encoder-decoder"),
]


@pytest.mark.parametrize(("kind", "config", "words"), UNUSABLE)
def test_a_folder_without_a_usable_model_gives_one_line(kind: str, config: Any, words: str, tmp_path: Path) -> None:
    folder = save_tiny(transformers, tmp_path, kind)
    change(folder, "config.json", **config)
    with pytest.raises(OptionError, match=f"models=hf:{tmp_path}: .*{words}") as caught:
        load(folder)
    assert "\n" not in str(caught.value)


def test_a_model_that_cannot_be_found_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A path in a folder that exists is a folder, and no name of the hub."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.chdir(tmp_path)
    Path("runs").mkdir()
    no_config = "has no config.json"
    names = {"/nowhere/model": no_config, "runs/tiny": no_config, "no/one": "cannot be loaded .*connect"}
    for name, words in names.items():
        with pytest.raises(OptionError, match=f"models=hf:{name}: {words}"):
            load(name)


def test_positions_that_a_table_reserves_are_not_read(tmp_path: Path) -> None:
    loaded = load(save_tiny(transformers, tmp_path, "roberta"))
    assert loaded.reader.limit == POSITIONS - 2  # counted from the padding token's number, 1
    assert loaded.reader.limit == checked(loaded, STREAM, [10, POSITIONS], 30).reader.limit
    losses = window_losses(loaded.reader, TOKENS, np.array([100]), [POSITIONS - 2, POSITIONS])
    assert losses[0] == losses[1]


def test_a_tokenizer_that_transformers_replaces_is_named_and_can_be_chosen(tmp_path: Path, capsys: Any) -> None:
    """For `qwen2` in config.json, AutoTokenizer cuts the text before every digit."""
    written = load(save_tiny(transformers, tmp_path / "as_written", "llama")).tokenize(TEXT.encode())
    assert capsys.readouterr().err == ""
    folder = save_tiny(transformers, tmp_path / "replaced", "qwen2")
    assert len(load(folder).tokenize(TEXT.encode()).tokens) > len(written.tokens)
    line = "tokenizer.json has other tokens than AutoTokenizer: tokenizer=json reads them\n"
    assert capsys.readouterr().err == f"models=hf:{folder}: {line}"
    chosen = load_huggingface(f"hf:{folder}", "name", True, "json")
    assert np.array_equal(chosen.tokenize(TEXT.encode()).tokens, written.tokens)
    assert (chosen.begin_of_text, capsys.readouterr().err) == (0, "")


def test_weights_and_an_adapter_that_are_not_read_are_named(tmp_path: Path, capsys: Any) -> None:
    folder = save_tiny(transformers, tmp_path, "llama")
    change(folder, "config.json", num_hidden_layers=1)
    (tmp_path / "adapter_config.json").write_text("{}")
    load(folder)
    weights, adapter = capsys.readouterr().err.splitlines()
    assert re.search(r"by its config 9 of its weights are not read, such as model\.layers\.1\.input_layern", weights)
    assert adapter.endswith("its adapter is not read, which needs peft: pip install peft")


def test_a_tokenizer_that_changes_the_text_is_named(tmp_path: Path, capsys: Any) -> None:
    folder = save_tiny(transformers, tmp_path, "llama")
    change(folder, "tokenizer.json", normalizer={"type": "Lowercase"})
    assert load(folder).tokenize(b"line 1: The square of 1 is 1").starts is None
    said = "its tokens read 'the square of 1 is 1' for 'The square of 1 is 1'"
    assert capsys.readouterr().err == f"models=hf:{folder}: {said}\n"
