"""Models of transformers, tiny and random: the library's own losses, one pass, states, limits, and refusals."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from txl_lightning.measure.scoring import huggingface

from tests.measure.recl.tiny_huggingface import (
    KINDS,
    POSITIONS,
    TEXT,
    VOCABULARY,
    configuration,
    model_of,
    random_model,
    save_tiny,
)
from txl_lightning.errors import OptionError
from txl_lightning.measure.elsewhere import HuggingFaceModel, load_huggingface
from txl_lightning.measure.losses import WindowReader, window_losses
from txl_lightning.measure.models import Member, TokenizedText
from txl_lightning.measure.recl.loss_by_context import position_blocks

transformers = pytest.importorskip("transformers", reason="needs the extra hf")
pytestmark = [
    pytest.mark.filterwarnings("default"),
    pytest.mark.skipif(
        hasattr(transformers, "TransfoXLLMHeadModel"), reason="this release is too old for the extra hf"
    ),
]

TOKENS = np.random.default_rng(3).integers(0, VOCABULARY, 301)
STREAM = TokenizedText(TOKENS, None, len(TOKENS))
CONTEXTS = [5, 10, 15, 20]
POSITIONS_T, _ = position_blocks(len(TOKENS), 30, CONTEXTS)


def load(folder: str | Path, begin_of_text: bool = False, dtype: str = "float32") -> Member:
    return load_huggingface(f"hf:{folder}", "name", begin_of_text, dtype)


def own_loss(model: Any, window: np.ndarray) -> float:
    """The loss that transformers computes for the last token of a window."""
    ids = torch.from_numpy(window)[None]
    labels = torch.full_like(ids, -100)
    labels[0, -1] = ids[0, -1]
    with torch.no_grad():
        return float(model(input_ids=ids, labels=labels, use_cache=False).loss)


def test_logits_are_computed_for_a_few_rows_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    reader = WindowReader(HuggingFaceModel(model_of(transformers, "gpt2")), one_pass=True)
    ours = window_losses(reader, TOKENS, POSITIONS_T, CONTEXTS)
    monkeypatch.setattr("txl_lightning.measure.elsewhere.LOGITS_AT_ONCE", 2 * 4 * VOCABULARY)
    np.testing.assert_allclose(window_losses(reader, TOKENS, POSITIONS_T, CONTEXTS), ours, rtol=0, atol=1e-5)


def own_losses(model: Any, contexts: list[int], begin: list[int]) -> np.ndarray:
    return np.array(
        [[own_loss(model, np.array([*begin, *TOKENS[t - c : t + 1]])) for t in POSITIONS_T] for c in contexts]
    )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("begin", [[], [0]])
def test_losses_are_the_librarys_own_with_exactly_c_tokens(kind: str, begin: list[int]) -> None:
    model = model_of(transformers, kind)
    expected = own_losses(model, CONTEXTS, begin)
    reader = WindowReader(HuggingFaceModel(model, *begin), one_pass=True)
    np.testing.assert_allclose(window_losses(reader, TOKENS, POSITIONS_T, CONTEXTS), expected, rtol=0, atol=1e-5)
    direct = [window_losses(reader, TOKENS, POSITIONS_T, [c])[0] for c in CONTEXTS]
    np.testing.assert_allclose(direct, expected, rtol=0, atol=1e-5)
    assert np.abs(expected[0] - expected[-1]).max() > 0.01


@pytest.mark.parametrize("kind", KINDS)
def test_a_saved_model_is_loaded_with_its_tokenizer_and_its_limit(kind: str, tmp_path: Path) -> None:
    loaded = load(save_tiny(transformers, tmp_path, kind))
    limit = None if kind == "mamba" else POSITIONS
    assert (loaded.kind, loaded.reader.limit, loaded.reader.one_pass) == (f"{kind}, Hugging Face", limit, True)
    tokens = torch.from_numpy(TOKENS[:20])[None]
    with torch.no_grad():
        theirs, _ = HuggingFaceModel(model_of(transformers, kind)).score(tokens[:, :-1], tokens[:, 1:])
        torch.testing.assert_close(loaded.reader.model.score(tokens[:, :-1], tokens[:, 1:])[0], theirs)
    begun = load(tmp_path, True, "bfloat16")
    assert (begun.begin_of_text, begun.reader.limit) == (0, limit and POSITIONS - 1)
    assert next(begun.reader.model.parameters()).dtype == torch.bfloat16
    assert len({loaded.checksum, begun.checksum, load(tmp_path, True).checksum}) == 3


LONGROPE = {"rope_type": "longrope", "short_factor": [1.0] * 4, "long_factor": [2.0, 3.0, 4.0, 5.0], "rope_theta": 1e4}
LONGROPE |= {"original_max_position_embeddings": 100}
DYNAMIC = {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 1e4}
MAMBAS = {"mamba_n_heads": 4, "mamba_d_head": 16, "mamba_n_groups": 1}
AXIAL = {"axial_pos_shape": (16, 32), "axial_pos_embds_dim": (16, 16), "max_position_embeddings": 512}
# Configuration, whether one window has the losses with every context, and whether the cache continues a text.
ARCHITECTURES: dict[str, tuple[str, dict[str, Any], bool, bool]] = {
    "original positions": (
        "Phi3",
        {"rope_parameters": LONGROPE, "original_max_position_embeddings": 100},
        False,
        False,
    ),
    "dynamic rotation": ("Llama", {"rope_parameters": DYNAMIC}, True, True),
    "sliding window": ("Mistral", {"sliding_window": 50}, True, True),
    "some layers slide": ("Gemma3Text", {"sliding_window": 50, "head_dim": 8}, True, True),
    "own attention mask": ("Doge", {"keep_window_size": 50}, False, False),
    "dropped state": ("Mamba", {"state_size": 8}, True, False),
    "dropped state of some layers": (
        "Bamba",
        {**MAMBAS, "attn_layer_indices": [1], "mamba_chunk_size": 16},
        True,
        False,
    ),
    "kept state": ("FalconH1", {**MAMBAS, "mamba_d_ssm": 64, "mamba_d_state": 8, "mamba_chunk_size": 16}, True, True),
    "no usual cache": ("RecurrentGemma", {"attention_window_size": 50, "lru_width": 32}, True, False),
    "error in the cache": ("xLSTM", {"num_heads": 4}, True, False),
    "no cache": ("OpenAIGPT", {"n_embd": 32, "n_head": 4, "n_layer": 2}, True, False),
}
REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "random hashes": (
        "Reformer",
        {**AXIAL, "attn_layers": ["local", "lsh"], "num_hidden_layers": 2, "is_decoder": True},
        "the same losses each",
    ),
    "hashes": ("Reformer", {**AXIAL, "attn_layers": ["lsh"], "is_decoder": True, "hash_seed": 1}, "reformer depend on"),
    "permutations": ("XLNet", {"d_model": 32, "n_layer": 2, "n_head": 4, "d_inner": 64}, "xlnet depend on later"),
    "both directions": ("Bert", {}, "bert depend on later tokens"),
}


def untried(name: str, options: dict[str, Any], dtype: torch.dtype = torch.float32) -> Member:
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4}
    heads = {"num_key_value_heads": 2, "vocab_size": VOCABULARY}
    special = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 1}
    config = getattr(transformers, f"{name}Config")(**{**sizes, **heads, **special, **options})
    model = random_model(transformers.AutoModelForCausalLM, config).requires_grad_(False).to(dtype)
    limit = huggingface._positions(model)
    reader = WindowReader(HuggingFaceModel(model, limit=limit), limit=limit, one_pass=True)
    return Member("name", f"hf:{name}", config.model_type, None, reader, lambda content: STREAM)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", ARCHITECTURES)
def test_a_model_is_read_as_is_exact_for_it(kind: str, dtype: torch.dtype) -> None:
    name, options, one_pass, carried = ARCHITECTURES[kind]
    found = tried(untried(name, options, dtype), STREAM, 300, 40).reader
    assert (found.one_pass, found.carrier is not None) == (one_pass, carried)
    if dtype == torch.float32:  # also after an error of the cache
        model: Any = found.model
        contexts, positions = [20, 150, 299], np.array([299])
        losses = [own_loss(model.model, TOKENS[299 - c : 300]) for c in contexts]
        np.testing.assert_allclose(window_losses(found, TOKENS, positions, contexts)[:, 0], losses, rtol=0, atol=1e-4)


def test_a_length_that_is_not_reached_is_not_tried() -> None:
    name, options, _, _ = ARCHITECTURES["original positions"]
    found = tried(untried(name, options), STREAM, 100, 40).reader
    assert found.one_pass
    assert found.carrier is not None


@pytest.mark.parametrize("kind", REFUSED)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_model_without_a_loss_given_the_tokens_before_is_refused(kind: str, dtype: torch.dtype) -> None:
    name, options, words = REFUSED[kind]
    with pytest.raises(OptionError, match=f"models=hf:{name}: must .*{words}"):
        tried(untried(name, options, dtype), STREAM, 300)


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_a_cache_is_carried_from_segment_to_segment(kind: str, tmp_path: Path) -> None:
    loaded = load(save_tiny(transformers, tmp_path, kind), True)
    carrier = tried(loaded, STREAM, 40, 10).reader.carrier
    assert carrier is not None
    stream, state, losses = torch.from_numpy(TOKENS[:41])[None], None, []
    with torch.no_grad():
        for start in range(0, 40, 10):
            nll, state = carrier.score(stream[:, start : start + 10], stream[:, start + 1 : start + 11], state)
            losses.append(nll)
        whole, _ = loaded.reader.model.score(stream[:, :-1], stream[:, 1:], None)
    torch.testing.assert_close(torch.cat(losses, 1), whole, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
@pytest.mark.parametrize("begin", [False, True])
def test_long_windows_are_read_in_chunks(
    kind: str, begin: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = load(save_tiny(transformers, tmp_path, kind), begin)
    positions, contexts = POSITIONS_T[POSITIONS_T >= POSITIONS], [*CONTEXTS, 40]
    whole = window_losses(loaded.reader, TOKENS, positions, contexts)
    reader = tried(loaded, STREAM, 40, 7).reader
    assert reader.carrier is not None
    monkeypatch.setattr("txl_lightning.measure.scoring.windows.LONG_WINDOW", 10)
    monkeypatch.setattr("txl_lightning.measure.scoring.windows.CHUNK", 7)
    np.testing.assert_allclose(window_losses(reader, TOKENS, positions, contexts), whole, rtol=0, atol=1e-5)


@pytest.mark.slow
def test_a_window_of_4096_tokens_in_chunks_has_the_losses_of_one_that_is_read_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = configuration(transformers, "llama")
    config.max_position_embeddings = 5000
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = transformers.AutoModelForCausalLM.from_config(config).eval().requires_grad_(False)
    tokens = np.random.default_rng(4).integers(0, VOCABULARY, 4200)
    text = TokenizedText(tokens, None, len(tokens))
    whole = Member(
        "name", "hf:name", "llama", None, WindowReader(HuggingFaceModel(model), one_pass=True), lambda _: text
    )
    contexts, positions = [16, 1024, 1025, 4096], np.array([4096, 4150])
    ours = window_losses(tried(whole, text, 4096, 256).reader, tokens, positions, contexts)
    direct = [window_losses(whole.reader, tokens, positions, [c])[0] for c in contexts]
    np.testing.assert_allclose(ours, direct, rtol=0, atol=1e-5)


def test_tokens_know_their_bytes(tmp_path: Path) -> None:
    loaded = load(save_tiny(transformers, tmp_path, "gpt2"), True)
    content = ("élan 😀 is 4€" + TEXT[:200]).encode()
    text = loaded.tokenize(content)
    assert text.n_bytes == len(content)
    assert 0 not in text.tokens  # the begin-of-text token
    assert text.starts is not None
    assert text.starts[0] == 0
    assert len(text.starts) == len(text.tokens) > len(set(text.starts.tolist()))  # € has several tokens
    bounds = np.append(np.unique(text.starts), len(content))
    pieces = [content[a:b].decode() for a, b in pairwise(bounds)]
    assert "€" in pieces
    assert len(pieces) < len(content) * 0.7


def change_config(folder: str, **changes: Any) -> None:
    path = Path(folder) / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_missing_weights_are_not_replaced_by_random_ones(tmp_path: Path) -> None:
    folder = save_tiny(transformers, tmp_path, "llama")
    change_config(folder, num_hidden_layers=3)
    with pytest.raises(
        OptionError, match=r"models=hf:.*: has no weights for model\.layers\.2\.input_layernorm\.weight"
    ):
        load(folder)
    change_config(folder, num_hidden_layers=2)
    transformers.AutoModelForCausalLM.from_pretrained(folder).model.save_pretrained(folder)  # without the head
    with pytest.raises(OptionError, match=r"models=hf:.*: has no weights for lm_head\.weight"):
        load(folder)


def test_weights_that_are_not_used_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = save_tiny(transformers, tmp_path, "llama")
    load(folder)
    assert "weights" not in capsys.readouterr().err
    change_config(folder, num_hidden_layers=1)
    load(folder)
    assert f"hf:{folder}: its files have 9 weights that the model does not: model.layers.1." in capsys.readouterr().err


@pytest.mark.parametrize("name", ["ByT5Tokenizer", "CanineTokenizer"])
def test_a_tokenizer_without_offsets_knows_its_bytes(name: str) -> None:
    content = "élan 😀\n is 4€ ".encode()
    text = huggingface._tokenized(getattr(transformers, name)(), content)
    assert text.starts is not None
    bounds = np.append(np.unique(text.starts), len(content))
    assert [content[a:b].decode() for a, b in pairwise(bounds)] == list(content.decode())
    assert len(text.tokens) == (len(content) if name == "ByT5Tokenizer" else len(content.decode()))


def test_a_tokenizer_that_begins_a_text_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tokenizers = pytest.importorskip("tokenizers", reason="needs the extra hf")
    folder, hint = save_tiny(transformers, tmp_path, "gpt2"), "begin_of_text=true"
    load(folder)
    assert hint not in capsys.readouterr().err
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    begin = tokenizers.processors.TemplateProcessing(single="<begin> $A", special_tokens=[("<begin>", 0)])
    tokenizer.backend_tokenizer.post_processor = begin
    tokenizer.save_pretrained(folder)
    load(folder, begin_of_text=True)
    assert hint not in capsys.readouterr().err
    load(folder)
    assert f"hf:{folder}: texts of its training begin with <begin>: {hint}" in capsys.readouterr().err


def test_a_tokenizer_with_more_tokens_than_the_model_is_named(tmp_path: Path) -> None:
    folder = save_tiny(transformers, tmp_path, "gpt2", vocabulary=VOCABULARY)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    model.resize_token_embeddings(100)
    model.save_pretrained(folder)
    loaded = load(folder)
    with pytest.raises(OptionError, match=r"knows 100 tokens, but its tokenizer gives number \d{3}"):
        loaded.tokenize(TEXT.encode())


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise ImportError(name)

    monkeypatch.setattr(huggingface.importlib, "import_module", missing)
    with pytest.raises(OptionError, match=r"needs transformers: pip install 'txl_lightning\[hf\]'"):
        load_huggingface("hf:gpt2", "name", False, "float32")


def test_a_tokenizer_without_a_begin_of_text_token(tmp_path: Path) -> None:
    folder = save_tiny(transformers, tmp_path, "gpt2")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    tokenizer.bos_token = None
    tokenizer.save_pretrained(folder)
    with pytest.raises(OptionError, match=r"begin_of_text=True: .* has no such token"):
        load(folder, True)


SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "vocab_size": 50}
LIMITS: list[tuple[str, dict[str, Any], int | None]] = [
    ("Rwkv", {**SIZES, "context_length": 20}, None),
    ("Mpt", {"d_model": 32, "n_heads": 4, "n_layers": 1, "max_seq_len": 24, "vocab_size": 50}, 24),
    (
        "Roberta",  # two positions are those of padding
        {**SIZES, "intermediate_size": 64, "num_attention_heads": 4, "max_position_embeddings": 48, "is_decoder": True},
        46,
    ),
]


@pytest.mark.parametrize(("kind", "options", "positions"), LIMITS)
def test_a_limit_is_the_longest_window_that_a_model_reads(
    kind: str, options: dict[str, Any], positions: int | None
) -> None:
    config = getattr(transformers, f"{kind}Config")(**options)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    assert huggingface._positions(model) == positions
    with torch.no_grad():
        assert model(input_ids=torch.full((1, positions or 40), 7)).logits.shape[1] == (positions or 40)
        if positions:
            with pytest.raises((RuntimeError, IndexError)):
                model(input_ids=torch.full((1, positions + 1), 7))


def test_spaces_at_the_end_of_a_token_are_its_own(tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers", reason="needs the extra hf")
    content = "def f(x):\n        return x\n\n    y = 1\n" * 3
    tokenizer = transformers.AutoTokenizer.from_pretrained(save_tiny(transformers, tmp_path, "gpt2", content))
    trimming = tokenizers.processors.ByteLevel(trim_offsets=True)  # that of GPT-2 and GPT-NeoX
    tokenizer.backend_tokenizer.post_processor = trimming
    text = huggingface._tokenized(tokenizer, content.encode())
    pieces = tokenizer.convert_ids_to_tokens(text.tokens.tolist())
    assert any(piece.endswith("Ġ") for piece in pieces)
    assert text.starts is not None
    assert text.starts.tolist() == [sum(map(len, pieces[:i])) for i in range(len(pieces))]


def without(content: bytes) -> None:
    return None


@pytest.mark.parametrize(
    ("kind", "file", "change", "words"),
    [
        ("llama", "config.json", without, "has no config.json"),
        ("llama", "config.json", lambda content: content.replace(b'_size": 64', b'_size": 63'), "cannot be loaded"),
        ("llama", "model.safetensors", lambda content: content[:1000], "cannot be loaded"),
        ("llama", "config.json", lambda _: b'{"model_type": "own", "auto_map": {"AutoConfig": "a.B"}}', "custom code"),
        ("t5", "config.json", bytes, "cannot be loaded .*Unrecognized configuration class"),
    ],
)
def test_a_folder_that_has_no_usable_model_gives_one_line(
    kind: str, file: str, change: Any, words: str, tmp_path: Path
) -> None:
    folder = save_tiny(transformers, tmp_path, kind)
    content = change((tmp_path / file).read_bytes())
    (tmp_path / file).unlink()
    if content is not None:
        (tmp_path / file).write_bytes(content)
    with pytest.raises(OptionError, match=f"models=hf:{tmp_path}: .*{words}") as caught:
        load(folder)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("/nowhere/model", "no such folder"),
        ("not a name", "cannot be loaded"),
        ("nobody/nothing", "cannot be loaded .*connect"),
    ],
)
def test_a_model_that_cannot_be_found_is_named(name: str, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(OptionError, match=f"models=hf:{name}: {words}") as caught:
        load(name)
    assert "\n" not in str(caught.value)
