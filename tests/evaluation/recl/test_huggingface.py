"""Models of transformers, tiny and random: the library's own losses, one pass, states, limits, and refusals."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.evaluation.recl.tiny_huggingface import (
    KINDS,
    POSITIONS,
    TEXT,
    VOCABULARY,
    configuration,
    model_of,
    save_tiny,
)
from txl_lightning.errors import OptionError
from txl_lightning.evaluation.recl.models import HuggingFaceModel, load_huggingface
from txl_lightning.evaluation.scoring.windows import WindowReader, context_losses, loss_grid, position_blocks

transformers = pytest.importorskip("transformers", reason="needs the extra hf")
pytestmark = [
    pytest.mark.filterwarnings("default"),
    pytest.mark.skipif(
        hasattr(transformers, "TransfoXLLMHeadModel"), reason="this release is too old for the extra hf"
    ),
]

TOKENS = np.random.default_rng(3).integers(0, VOCABULARY, 300)
CONTEXTS = [5, 10, 15, 20]
POSITIONS_T, _ = position_blocks(len(TOKENS), 30, CONTEXTS)


def own_loss(model: Any, window: np.ndarray) -> float:
    """The loss that transformers computes for the last token of a window."""
    ids = torch.from_numpy(window)[None]
    labels = torch.full_like(ids, -100)
    labels[0, -1] = ids[0, -1]
    with torch.no_grad():
        return float(model(input_ids=ids, labels=labels).loss)


def own_losses(model: Any, contexts: list[int]) -> np.ndarray:
    return np.array([[own_loss(model, TOKENS[t - c : t + 1]) for t in POSITIONS_T] for c in contexts])


@pytest.mark.parametrize("kind", KINDS)
def test_losses_are_the_librarys_own_with_exactly_c_tokens(kind: str) -> None:
    model = model_of(transformers, kind)
    expected = own_losses(model, CONTEXTS)
    reader = WindowReader(HuggingFaceModel(model), one_pass=True)
    np.testing.assert_allclose(loss_grid(reader, TOKENS, POSITIONS_T, CONTEXTS), expected, rtol=0, atol=1e-5)
    direct = [context_losses(reader, TOKENS, POSITIONS_T, c) for c in CONTEXTS]
    np.testing.assert_allclose(direct, expected, rtol=0, atol=1e-5)
    assert np.abs(expected[0] - expected[-1]).max() > 0.01


@pytest.mark.parametrize("kind", KINDS)
def test_a_state_continues_a_text_and_stays_as_it_is(kind: str) -> None:
    model = HuggingFaceModel(model_of(transformers, kind))
    tokens_BT = torch.from_numpy(TOKENS[:40].reshape(2, 20))
    with torch.no_grad():
        whole, _ = model.score(tokens_BT[:, :-1], tokens_BT[:, 1:])
        first, state = model.score(tokens_BT[:, :7], tokens_BT[:, 1:8])
        for _ in range(2):
            second, _ = model.score(tokens_BT[:, 7:-1], tokens_BT[:, 8:], state)
            torch.testing.assert_close(torch.cat([first, second], dim=1), whole, rtol=0, atol=1e-5)
        some, _ = model.score(tokens_BT[:, 7:-1], tokens_BT[:, 16:], state)
    torch.testing.assert_close(some, whole[:, -4:], rtol=0, atol=1e-5)


@torch.no_grad()
def test_a_state_that_does_not_give_the_same_losses_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    tokens_BT = torch.from_numpy(TOKENS[:40].reshape(2, 20))
    rwkv = transformers.RwkvConfig(hidden_size=32, num_hidden_layers=2, context_length=48, vocab_size=VOCABULARY)
    forgetful = model_of(transformers, "mamba")
    forward = forgetful.forward

    def forget(*args: Any, cache_params: Any = None, **options: Any) -> Any:
        return forward(*args, **options)

    scaled = model_of(transformers, "llama")
    scaled.config.rope_parameters = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}
    models = {"rwkv": transformers.AutoModelForCausalLM.from_config(rwkv).eval(), "mamba": forgetful, "llama": scaled}
    for name, inner in models.items():
        model = HuggingFaceModel(inner)
        if name == "mamba":
            monkeypatch.setattr(inner, "forward", forget)
        _, state = model.score(tokens_BT[:, :7], tokens_BT[:, 1:8])
        with pytest.raises(TypeError, match="does not continue a text from its state"):
            model.score(tokens_BT[:, 7:-1], tokens_BT[:, 8:], state)


@pytest.mark.parametrize("kind", KINDS)
def test_a_begin_of_text_token_stands_before_every_window(kind: str) -> None:
    model = model_of(transformers, kind)
    reader = WindowReader(HuggingFaceModel(model, begin_of_text=0), one_pass=True)
    ours = loss_grid(reader, TOKENS, POSITIONS_T, [4, 8])
    begun = [[own_loss(model, np.append(0, TOKENS[t - c : t + 1])) for t in POSITIONS_T] for c in (4, 8)]
    np.testing.assert_allclose(ours, begun, rtol=0, atol=1e-5)
    direct = context_losses(reader, TOKENS, POSITIONS_T, 4)
    np.testing.assert_allclose(direct, begun[0], rtol=0, atol=1e-5)


def test_logits_are_computed_for_a_few_rows_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    reader = WindowReader(HuggingFaceModel(model_of(transformers, "gpt2")), one_pass=True)
    ours = loss_grid(reader, TOKENS, POSITIONS_T, CONTEXTS)
    monkeypatch.setattr("txl_lightning.evaluation.recl.models.LOGITS_AT_ONCE", 2 * 4 * VOCABULARY)
    np.testing.assert_allclose(loss_grid(reader, TOKENS, POSITIONS_T, CONTEXTS), ours, rtol=0, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_a_saved_model_is_loaded_with_its_tokenizer_and_its_limit(kind: str, tmp_path: Path) -> None:
    loaded = load_huggingface(save_tiny(transformers, tmp_path, kind), False, "float32")
    limit = None if kind == "mamba" else POSITIONS
    assert (loaded.kind, loaded.limit, loaded.one_pass) == (f"{kind}, Hugging Face", limit, True)
    tokens = torch.from_numpy(TOKENS[:20])[None]
    with torch.no_grad():
        theirs, _ = HuggingFaceModel(model_of(transformers, kind)).score(tokens[:, :-1], tokens[:, 1:])
        torch.testing.assert_close(loaded.model.score(tokens[:, :-1], tokens[:, 1:])[0], theirs)
    begun = load_huggingface(str(tmp_path), True, "bfloat16")
    assert (begun.begin_of_text, begun.limit) == (0, limit and POSITIONS - 1)
    assert next(begun.model.parameters()).dtype == torch.bfloat16
    assert len({loaded.checksum, begun.checksum, load_huggingface(str(tmp_path), True, "float32").checksum}) == 3


def test_tokens_know_their_bytes(tmp_path: Path) -> None:
    loaded = load_huggingface(save_tiny(transformers, tmp_path, "gpt2"), True, "float32")
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


def test_rotations_that_depend_on_the_length_are_read_directly() -> None:
    config = configuration(transformers, "llama")
    assert not huggingface.depends_on_length(config)
    for scaling in ({"rope_type": "longrope"}, {"full_attention": {"rope_type": "dynamic"}, "sliding": {}}):
        config.rope_parameters = scaling
        assert huggingface.depends_on_length(config)


@pytest.mark.parametrize(
    ("config", "positions"),
    [
        (lambda: transformers.RwkvConfig(hidden_size=32, num_hidden_layers=2, context_length=20, vocab_size=50), None),
        (lambda: transformers.MptConfig(d_model=32, n_heads=4, n_layers=1, max_seq_len=24, vocab_size=50), 24),
        (
            lambda: transformers.RobertaConfig(
                hidden_size=32,
                intermediate_size=64,
                num_hidden_layers=1,
                num_attention_heads=4,
                max_position_embeddings=48,
                is_decoder=True,
                vocab_size=50,
            ),
            46,  # 48 without those of padding
        ),
    ],
    ids=["rwkv", "mpt", "roberta"],
)
def test_a_limit_is_the_longest_window_that_a_model_reads(config: Any, positions: int | None) -> None:
    model = transformers.AutoModelForCausalLM.from_config(config()).eval()
    assert huggingface._positions(model) == positions
    tokens = torch.full((1, positions or 40), 7)
    with torch.no_grad():
        assert model(input_ids=tokens).logits.shape[1] == tokens.shape[1]
        if positions:
            with pytest.raises((RuntimeError, IndexError)):
                model(input_ids=torch.full((1, positions + 1), 7))


def test_spaces_at_the_end_of_a_token_are_its_own() -> None:
    tokenizers = pytest.importorskip("tokenizers", reason="needs the extra hf")
    backend = tokenizers.Tokenizer(tokenizers.models.BPE())
    backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=300, initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    content = "def f(x):\n        return x\n\n    y = 1\n" * 3
    backend.train_from_iterator([content], trainer)
    backend.post_processor = tokenizers.processors.ByteLevel(trim_offsets=True)  # that of GPT-2 and GPT-NeoX
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=backend)
    text = huggingface._tokenized(tokenizer, content.encode())
    sizes = [len(token) for token in tokenizer.convert_ids_to_tokens(text.tokens.tolist())]
    assert any(token.endswith("Ġ") for token in tokenizer.convert_ids_to_tokens(text.tokens.tolist()))
    assert text.starts is not None
    assert text.starts.tolist() == [sum(sizes[:i]) for i in range(len(sizes))]


def test_missing_weights_are_not_replaced_by_random_ones(tmp_path: Path) -> None:
    folder = save_tiny(transformers, tmp_path, "llama")
    transformers.AutoModelForCausalLM.from_pretrained(folder).model.save_pretrained(folder)  # without the head
    with pytest.raises(OptionError, match=r"models=hf:.*: has no weights for lm_head\.weight"):
        load_huggingface(folder, False, "float32")


def test_a_tokenizer_with_more_tokens_than_the_model_is_named(tmp_path: Path) -> None:
    folder = save_tiny(transformers, tmp_path, "gpt2", vocabulary=VOCABULARY)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    model.resize_token_embeddings(100)
    model.save_pretrained(folder)
    loaded = load_huggingface(folder, False, "float32")
    with pytest.raises(OptionError, match=r"knows 100 tokens, but its tokenizer gives number \d{3}"):
        loaded.tokenize(TEXT.encode())


@pytest.mark.parametrize(
    ("file", "change", "words"),
    [
        ("config.json", lambda content: None, "has no config.json"),
        (
            "config.json",
            lambda content: content.replace(b'"hidden_size": 32', b'"hidden_size": "x"'),
            "cannot be loaded",
        ),
        ("config.json", lambda content: content.replace(b'_size": 64', b'_size": 63'), "weights that do not fit its"),
        ("model.safetensors", lambda content: content[:1000], "cannot be loaded"),
    ],
)
def test_a_folder_with_damaged_files_gives_one_line(file: str, change: Any, words: str, tmp_path: Path) -> None:
    folder = save_tiny(transformers, tmp_path, "llama")
    content = change((tmp_path / file).read_bytes())
    (tmp_path / file).unlink()
    if content is not None:
        (tmp_path / file).write_bytes(content)
    with pytest.raises(OptionError, match=f"models=hf:{tmp_path}: .*{words}") as caught:
        load_huggingface(folder, False, "float32")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("kind", ["bert", "t5"])
def test_an_encoder_is_refused(kind: str, tmp_path: Path) -> None:
    folder = save_tiny(transformers, tmp_path, kind)
    with pytest.raises(OptionError, match=f"models=hf:{tmp_path}: .*is not a causal language model") as caught:
        load_huggingface(folder, False, "float32")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("/nowhere/model", "models=hf:/nowhere/model: no such folder"),
        ("not a name", "models=hf:not a name: is neither a folder nor the name of a model on the hub"),
        ("nobody/nothing", "models=hf:nobody/nothing: is neither a folder nor in the local cache, and the hub cannot"),
    ],
)
def test_a_model_that_cannot_be_found_is_named(name: str, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(OptionError, match=words) as caught:
        load_huggingface(name, False, "float32")
    assert "\n" not in str(caught.value)


def test_code_of_a_repository_is_not_run(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "own", "auto_map": {"AutoConfig": "code.Own"}}')
    (tmp_path / "code.py").write_text("raise SystemExit('was run')")
    with pytest.raises(OptionError, match="brings code of its own, which is not run"):
        load_huggingface(str(tmp_path), False, "float32")


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise ImportError(name)

    monkeypatch.setattr(huggingface.importlib, "import_module", missing)
    with pytest.raises(OptionError, match=r"needs transformers: pip install 'txl_lightning\[hf\]'"):
        load_huggingface("gpt2", False, "float32")


def test_a_tokenizer_without_a_begin_of_text_token(tmp_path: Path) -> None:
    folder = save_tiny(transformers, tmp_path, "gpt2")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    tokenizer.bos_token = None
    tokenizer.save_pretrained(folder)
    with pytest.raises(OptionError, match=r"begin_of_text=True: .* has no such token"):
        load_huggingface(folder, True, "float32")
