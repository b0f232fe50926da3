"""Models of transformers, tiny and random: the library's own losses, limits, tokens, and what the result states."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.evaluation.small_runs import SmallRuns
from tests.recl.small_recl import recl
from tests.recl.tiny_huggingface import (
    POSITIONS,
    TEXT,
    VOCABULARY,
    change,
    model_of,
    save_tiny,
    save_tokenizer,
)
from txl_lightning.errors import OptionError
from txl_lightning.recl.check import checked
from txl_lightning.recl.huggingface import HuggingFaceModel, load_huggingface
from txl_lightning.recl.models import Member
from txl_lightning.recl.positions import position_blocks
from txl_lightning.recl.windows import WindowReader, window_losses

transformers = pytest.importorskip("transformers", reason="needs the extra hf")
pytestmark = [
    pytest.mark.filterwarnings("default"),
    pytest.mark.skipif(
        hasattr(transformers, "TransfoXLLMHeadModel"),
        reason="too old a release for the extra hf",
    ),
]
TOKENS = np.random.default_rng(3).integers(0, VOCABULARY, 301)
CONTEXTS = [5, 10, 15, 20]
PLACES, _ = position_blocks(len(TOKENS), 30, CONTEXTS)


def load(folder: str | Path, longest: int = 20, begin_of_text: bool | None = None) -> Member:
    return load_huggingface(f"hf:{folder}", "name", longest, begin_of_text)


def measured(directory: Path, folder: str, text: str = TEXT, **options: Any) -> dict[str, Any]:
    """Results of a model on a text, in the folder `run`."""
    path = directory / "text.txt"
    path.write_text(text)
    options = {"models": [f"hf:{folder}"], "data_path": str(path), "bootstrap": 0, **options}
    return recl(directory / "run", **options)


def library_loss(model: Any, window: np.ndarray) -> float:
    """The loss that transformers computes for the last token of a window."""
    ids = torch.from_numpy(window)[None]
    labels = torch.full_like(ids, -100)
    labels[0, -1] = ids[0, -1]
    with torch.no_grad():
        return float(model(input_ids=ids, labels=labels, use_cache=False).loss)


@pytest.mark.parametrize(
    ("kind", "begin"),
    [("GPT2Config", []), ("LlamaConfig", [0, 7]), ("MambaConfig", [])],
)
def test_losses_are_the_librarys_own_with_exactly_c_tokens(kind: str, begin: list[int]) -> None:
    model = model_of(transformers, kind)
    reader = WindowReader(HuggingFaceModel(model, begin), one_pass=True)
    losses_CP = window_losses(reader, TOKENS, PLACES, CONTEXTS)
    for c, context in enumerate(CONTEXTS):
        for p, t in enumerate(PLACES):
            window = np.array([*begin, *TOKENS[t - context : t + 1]])
            assert losses_CP[c, p] == pytest.approx(library_loss(model, window), abs=1e-5)
    assert np.abs(losses_CP[0] - losses_CP[-1]).max() > 0.01


ENDLESS = "no table of positions ends at the 48 of its config"
DYNAMIC = {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 4.0}}
ENCODER = {"is_decoder": False, "pad_token_id": 1}
LIMITS: list[tuple[str, dict[str, Any], int | None, str]] = [
    ("GPT2Config", {}, POSITIONS, "its table of positions, transformer.wpe"),
    ("OPTConfig", {}, POSITIONS, "its table of positions, model.decoder.embed_positions"),
    ("GPTJConfig", {}, POSITIONS, "its table of positions, transformer.h.0.attn.embed_positions"),
    # Counted from the padding token's number, 1.
    ("RobertaConfig", {"pad_token_id": 1}, POSITIONS - 2, "its table of positions, roberta"),
    ("LlamaConfig", DYNAMIC, None, ENDLESS),
    ("RwkvConfig", {}, None, ENDLESS),
    ("FalconConfig", {"alibi": True}, None, ENDLESS),
    ("XGLMConfig", {}, None, ENDLESS),
    ("MambaConfig", {}, None, ""),
]


@pytest.mark.parametrize(("kind", "options", "limit", "reason"), LIMITS)
def test_only_a_table_of_positions_limits_a_model(
    kind: str,
    options: dict[str, Any],
    limit: int | None,
    reason: str,
    tmp_path: Path,
) -> None:
    loaded = load(save_tiny(transformers, tmp_path, kind, **options), longest=60)
    assert loaded.reader.limit == limit
    assert (loaded.findings["limit_reason"] or "").startswith(reason)
    losses = window_losses(loaded.reader, TOKENS, np.array([100]), [limit or 50, 60])
    assert (losses[0] == losses[1]) == (limit is not None)


@pytest.mark.parametrize(
    "kind", ["BertConfig", "RobertaConfig", "ElectraConfig", "CamembertConfig"]
)
def test_an_encoder_that_reads_both_sides_is_refused(kind: str, tmp_path: Path) -> None:
    loaded = load(save_tiny(transformers, tmp_path, kind, **ENCODER))
    words = rf"models=hf:{tmp_path}: must be a causal language model: .* later tokens .*is_decoder"
    with pytest.raises(OptionError, match=words):
        checked(loaded, TOKENS, CONTEXTS)
    change(tmp_path, "config.json", is_decoder=True)
    assert checked(load(tmp_path), TOKENS, CONTEXTS).reader.one_pass


def test_a_class_that_exchanges_its_attention_reads_every_window_as_loaded() -> None:
    """BigBird keeps its full attention after a short window."""
    model = model_of(
        transformers,
        "BigBirdConfig",
        is_decoder=False,
        max_position_embeddings=300,
        block_size=4,
        num_random_blocks=1,
    )
    reader = HuggingFaceModel(model)
    short = torch.from_numpy(TOKENS[None, :21])
    long = torch.from_numpy(TOKENS[None, :257])
    with torch.no_grad():
        first, _ = reader.score(long[:, :-1], long[:, 1:])
        reader.score(short[:, :-1], short[:, 1:])
        assert model.bert.attention_type == "original_full"
        again, _ = reader.score(long[:, :-1], long[:, 1:])
    torch.testing.assert_close(again, first)


@pytest.mark.parametrize(
    ("kind", "entry"),
    [
        ("LlamaConfig", {"AutoModelForCausalLM": "modeling_own.OwnModel"}),
        ("GPT2Config", {"AutoConfig": "configuration_own.OwnConfig"}),
        ("MambaConfig", {"AutoModel": "modeling_own.OwnModel"}),
    ],
)
def test_code_of_an_author_is_not_run_and_the_result_says_so(
    kind: str,
    entry: dict[str, str],
    tmp_path: Path,
) -> None:
    folder = save_tiny(transformers, tmp_path / "model", kind)
    change(folder, "config.json", auto_map=entry, architectures=["OwnModel"])
    result = measured(tmp_path, folder)
    name = type(model_of(transformers, kind)).__name__
    assert result["models"][0]["code_not_run"] == name
    line = f"model: its own code is not run; read as {name}."
    assert line in (tmp_path / "run/recl.md").read_text()
    assert line in (tmp_path / "run/recl.html").read_text()
    change(folder, "tokenizer_config.json", auto_map={"AutoTokenizer": ["own.OwnTokenizer", None]})
    assert load(folder).findings["code_not_run"] == f"{name}, TokenizersBackend"


def begins_with_bos(folder: str | Path) -> None:
    """Let the tokenizer put <begin> before a text and behind it; those of Llama and Gemma begin so."""
    special_token = {"SpecialToken": {"id": "<begin>", "type_id": 0}}
    template = (special_token, {"Sequence": {"id": "A", "type_id": 0}}, special_token)
    special = {"<begin>": {"id": "<begin>", "ids": [0], "tokens": ["<begin>"]}}
    change(
        folder,
        "tokenizer.json",
        post_processor={
            "type": "TemplateProcessing",
            "single": template,
            "pair": [*template, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": special,
        },
    )


def test_a_begin_of_text_token_is_read_as_the_tokenizer_does(tmp_path: Path) -> None:
    folder = save_tiny(transformers, tmp_path, "GPT2Config")
    assert load(folder).findings["begin_of_text"] == []
    assert load(folder, begin_of_text=True).findings["begin_of_text"] == [0]
    begins_with_bos(folder)
    loaded = load(folder)
    assert loaded.findings["begin_of_text"] == [0]
    assert loaded.reader.limit == POSITIONS - 1
    assert 0 not in loaded.tokenize(TEXT.encode()).tokens
    assert load(folder, begin_of_text=False).findings["begin_of_text"] == []
    change(folder, "tokenizer_config.json", bos_token=None)
    with pytest.raises(OptionError, match=r"begin_of_text=True: .* has no such token"):
        load(folder, begin_of_text=True)


@pytest.mark.parametrize(
    "kind",
    ["LlamaConfig", "GPT2Config", "MambaConfig", "XGLMConfig", "OPTConfig", "BertConfig"],
)
def test_a_folder_without_a_tokenizer_is_refused(kind: str, tmp_path: Path) -> None:
    model_of(transformers, kind).save_pretrained(tmp_path)
    with pytest.raises(OptionError, match=rf"models=hf:{tmp_path}: has no tokenizer") as caught:
        load(tmp_path).tokenize(TEXT.encode())
    assert "\n" not in str(caught.value)


def test_tokens_spell_the_text(tmp_path: Path) -> None:
    save_tokenizer(transformers, tmp_path)
    model_of(transformers, "GPT2Config").save_pretrained(tmp_path)
    content = "élan 😀 is 4€\n  two" + TEXT[:200]
    text = load(tmp_path).tokenize(content.encode())
    texts = text.spell(0, len(text.tokens))
    assert "".join(texts) == content
    assert any(shown.endswith("€") for shown in texts)  # several tokens
    assert text.spell(5, 9) == texts[5:9]


STRIPPED = [{"type": "NFD"}, {"type": "StripAccents"}]
CHANGES: list[tuple[dict[str, Any], str, str]] = [
    ({"type": "Lowercase"}, "The  ", "the  "),
    ({"type": "Replace", "pattern": {"Regex": " +"}, "content": " "}, " ﬁne", "ﬁne"),
    ({"type": "NFKC"}, "ﬁne é", "fine é"),
    ({"type": "Sequence", "normalizers": STRIPPED}, "é of 0", "e of 0"),
]


@pytest.mark.parametrize(("normalizer", "text", "read"), CHANGES)
def test_a_tokenizer_that_changes_the_text_stands_in_the_result(
    normalizer: dict[str, Any],
    text: str,
    read: str,
    tmp_path: Path,
) -> None:
    folder = save_tiny(transformers, tmp_path / "model", "LlamaConfig")
    change(folder, "tokenizer.json", normalizer=normalizer)
    result = measured(tmp_path, folder, TEXT.replace("the square", "The  ﬁne é"))
    changed = result["models"][0]["changed_text"]
    assert changed["text"].startswith(text)
    assert changed["read"].startswith(read)
    assert (result["unit"], result["corpus"]["level"]) == ("ppl", "token")
    for file in ("recl.md", "recl.html"):
        assert "model: its tokenizer changes the text (" in (tmp_path / "run" / file).read_text()


def test_weights_and_an_adapter_that_are_not_read_stand_in_the_result(tmp_path: Path) -> None:
    folder = save_tiny(transformers, tmp_path, "LlamaConfig")
    change(folder, "config.json", num_hidden_layers=1)
    (tmp_path / "adapter_config.json").write_text("{}")
    weights, *_, adapter = load(folder).findings["not_read"]
    assert weights == "model.layers.1.input_layernorm.weight"
    assert adapter == "its adapter, which needs peft: pip install peft"


def test_missing_weights_are_not_replaced_by_random_ones(tmp_path: Path) -> None:
    folder = save_tiny(transformers, tmp_path, "LlamaConfig")
    change(folder, "config.json", num_hidden_layers=3)
    words = r"has no weights for model\.layers\.2\.input_layernorm\.w"
    with pytest.raises(OptionError, match=words):
        load(folder)


UNUSABLE = [
    ("LlamaConfig", {"intermediate_size": 63}, "cannot be loaded"),
    ("LlamaConfig", {"model_type": "own", "auto_map": {"AutoConfig": "a.B"}}, "custom code"),
    ("T5Config", {}, "must be a causal language model, not an encoder-decoder"),
]


@pytest.mark.parametrize(("kind", "changes", "words"), UNUSABLE)
def test_a_folder_without_a_usable_model_gives_one_line(
    kind: str,
    changes: Any,
    words: str,
    tmp_path: Path,
) -> None:
    folder = save_tiny(transformers, tmp_path, kind)
    change(folder, "config.json", **changes)
    with pytest.raises(OptionError, match=f"models=hf:{tmp_path}: .*{words}") as caught:
        load(folder)
    assert "\n" not in str(caught.value)


FILES = [
    ("model.gguf", "model.gguf", "a file for llama.cpp: give the folder of the original weights"),
    ("", "model.gguf", "a file for llama.cpp"),
    (
        "",
        "model.safetensors",
        "weights alone: give the folder that has config.json and a tokenizer",
    ),
    ("", "pytorch_model.bin", "weights alone"),
    ("", "adapter_config.json", "an adapter alone: merge it into its base model"),
    ("best.ckpt", "best.ckpt", "a checkpoint of txl train goes into checkpoints="),
]


@pytest.mark.parametrize(("named", "file", "words"), FILES)
def test_what_is_no_model_is_named_with_what_to_do(
    named: str,
    file: str,
    words: str,
    tmp_path: Path,
) -> None:
    (tmp_path / file).write_text("{}")
    reference = str(tmp_path / named)
    with pytest.raises(
        OptionError, match=f"models=hf:{reference}: has no config.json, and is {words}"
    ):
        load(reference)


def test_a_model_that_cannot_be_found_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(OptionError, match=r"models=hf:/nowhere/model: has no config.json"):
        load("/nowhere/model")
    with pytest.raises(OptionError, match=r"models=hf:no/one: cannot be loaded .*connect"):
        load("no/one")


def test_models_of_one_tokenizer_make_a_group(tmp_path: Path) -> None:
    gpt2 = save_tiny(transformers, tmp_path / "gpt2", "GPT2Config")
    mamba = save_tiny(transformers, tmp_path / "mamba", "MambaConfig")
    models = [f"hf:{gpt2}", f"hf:{mamba}"]
    result = measured(tmp_path, gpt2, models=models, split="train", max_context=64)
    first, second = result["models"]
    assert (first["limit"], second["limit"]) == (POSITIONS, None)
    assert (first["scoring"], second["scoring"]) == ("one pass", "one pass")
    assert first["nll"][11] == first["nll"][15]  # 48 and 64 tokens
    assert second["nll"][11] != second["nll"][15]
    note = "gpt2: limit: its table of positions, transformer.wpe.weight."
    assert note in (tmp_path / "run/recl.md").read_text()


def test_another_tokenizer_and_other_bytes_are_refused(runs: SmallRuns, tmp_path: Path) -> None:
    folder = save_tiny(transformers, tmp_path / "model", "GPT2Config")
    (tmp_path / "text.txt").write_bytes(b"a\xffb" * 100)
    options: dict[str, Any] = {
        "models": [f"hf:{folder}"],
        "data_path": str(tmp_path / "text.txt"),
    }
    with pytest.raises(OptionError, match=f"hf:{folder}: cannot read the text .*0xff"):
        recl(tmp_path / "run", **options)
    (tmp_path / "text.txt").write_text(TEXT)
    checkpoint = runs.checkpoint("relative")
    with pytest.raises(OptionError, match=f"hf:{folder}: reads other tokens than .*best.ckpt"):
        recl(tmp_path / "run", checkpoint, **options)
