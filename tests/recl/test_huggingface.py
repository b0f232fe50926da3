"""Models of transformers, tiny and random: the library's own losses, limits, tokens, and what the result states."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.recl.small_recl import recl
from tests.recl.tiny_huggingface import (
    POSITIONS,
    TEXT,
    VOCABULARY,
    change,
    model_of,
    save_tiny,
)
from txl_lightning.errors import OptionError
from txl_lightning.recl.huggingface import HuggingFaceModel, load_huggingface
from txl_lightning.recl.models import Member, foreign_errors
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


def load(folder: str | Path, begin_of_text: bool | None = None) -> Member:
    reference = f"hf:{folder}"
    with foreign_errors(reference, "cannot be loaded"):
        return load_huggingface(reference, 60, begin_of_text)


def measured(
    directory: Path, *folders: str, text: bytes = TEXT.encode(), **options: Any
) -> dict[str, Any]:
    """Results of models on a text, in the folder `run`."""
    path = directory / "text.txt"
    path.write_bytes(text)
    models = [f"hf:{folder}" for folder in folders]
    return recl(
        directory / "run",
        models=models,
        data_path=str(path),
        bootstrap=0,
        **options,
    )


def library_loss(model: Any, window: list[int]) -> float:
    """The loss that transformers computes for the last token of a window."""
    ids = torch.tensor([window])
    labels = torch.full_like(ids, -100)
    labels[0, -1] = ids[0, -1]
    with torch.no_grad():
        return float(model(input_ids=ids, labels=labels, use_cache=False).loss)


@pytest.mark.parametrize(
    ("kind", "begin"),
    [
        ("gpt2", []),
        ("llama", [0, 7]),
        ("mamba", []),
    ],
)
def test_losses_are_the_librarys_own_with_exactly_c_tokens(kind, begin):
    model = model_of(kind)
    reader = WindowReader(HuggingFaceModel(model, begin), one_pass=True)
    losses_CP = window_losses(reader, TOKENS, PLACES, CONTEXTS)
    for c, context in enumerate(CONTEXTS):
        for p, t in enumerate(PLACES):
            window = begin + TOKENS[t - context : t + 1].tolist()
            assert losses_CP[c, p] == pytest.approx(
                library_loss(model, window),
                abs=1e-5,
            )
    assert np.abs(losses_CP[0] - losses_CP[-1]).max() > 0.01


ENDLESS = "none, it reads on beyond the 48 positions of its config"
DYNAMIC = {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 4.0}}
FAILS = "more tokens fail (index "
LIMITS = [
    ("gpt2", {}, POSITIONS, FAILS),
    ("opt", {}, POSITIONS, FAILS),
    ("gptj", {}, POSITIONS, FAILS),
    # Counted from the padding token's number, 1.
    ("roberta", {"pad_token_id": 1}, POSITIONS - 2, FAILS),
    ("llama", DYNAMIC, None, ENDLESS),
    ("rwkv", {}, None, ENDLESS),
    ("falcon", {"alibi": True}, None, ENDLESS),
    ("xglm", {}, None, ENDLESS),
    ("mamba", {}, None, None),
]


@pytest.mark.parametrize(("kind", "options", "limit", "reason"), LIMITS)
def test_only_a_table_of_positions_limits_a_model(kind, options, limit, reason, tmp_path):
    loaded = load(save_tiny(tmp_path, kind, **options))
    assert loaded.reader.limit == limit
    assert str(loaded.findings["limit_reason"]).startswith(str(reason))
    losses = window_losses(
        loaded.reader,
        TOKENS,
        np.array([100]),
        [limit or 50, 60],
    )
    assert (losses[0] == losses[1]) == (limit is not None)


def test_a_class_that_exchanges_its_attention_reads_every_window_as_loaded():
    """BigBird keeps its full attention after a short window."""
    sizes = {"max_position_embeddings": 300, "block_size": 4, "num_random_blocks": 1}
    model = model_of("big_bird", is_decoder=False, **sizes)
    reader = HuggingFaceModel(model)
    tokens = torch.from_numpy(TOKENS[None])
    with torch.no_grad():
        first, _ = reader.score(
            tokens[:, :256],
            tokens[:, 1:257],
        )
        reader.score(
            tokens[:, :20],
            tokens[:, 1:21],
        )
        assert model.bert.attention_type == "original_full"
        again, _ = reader.score(
            tokens[:, :256],
            tokens[:, 1:257],
        )
    torch.testing.assert_close(again, first)


def test_code_of_an_author_is_not_run_and_the_result_says_so(tmp_path):
    folder = save_tiny(tmp_path / "model", "llama")
    entry = {"AutoModelForCausalLM": "modeling_own.OwnModel"}
    change(folder, "config.json", auto_map=entry, architectures=["OwnModel"])
    result = measured(tmp_path, folder)
    assert result["models"][0]["code_not_run"] == "LlamaForCausalLM, TokenizersBackend"
    line = "model: its own code is not run; read as LlamaForCausalLM, TokenizersBackend."
    assert line in (tmp_path / "run/recl.md").read_text()
    assert line in (tmp_path / "run/recl.html").read_text()


def test_a_begin_of_text_token_is_read_as_the_tokenizer_does(tmp_path):
    """A tokenizer that adds <begin> before and after a text; Llama's and Gemma's add it before."""
    folder = save_tiny(tmp_path, "gpt2")
    assert load(folder).findings["begin_of_text"] == []
    assert load(folder, begin_of_text=True).findings["begin_of_text"] == [0]
    begin = {"SpecialToken": {"id": "<begin>", "type_id": 0}}
    text = {"Sequence": {"id": "A", "type_id": 0}}
    processor = {
        "type": "TemplateProcessing",
        "single": [begin, text, begin],
        "pair": [begin, text, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"<begin>": {"id": "<begin>", "ids": [0], "tokens": ["<begin>"]}},
    }
    change(folder, "tokenizer.json", post_processor=processor)
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
    ["llama", "gpt2", "mamba", "xglm", "opt", "bert"],
)
def test_a_folder_without_a_tokenizer_is_refused(kind, tmp_path):
    model_of(kind).save_pretrained(tmp_path)
    with pytest.raises(OptionError, match=rf"models=hf:{tmp_path}: has no tokenizer") as caught:
        load(tmp_path).tokenize(TEXT.encode())
    assert "\n" not in str(caught.value)


def test_tokens_spell_the_text(tmp_path):
    content = "élan 😀 is 4€\n  two" + TEXT[:200]
    text = load(save_tiny(tmp_path, "gpt2")).tokenize(content.encode())
    texts = text.spell(0, len(text.tokens))
    assert "".join(texts) == content
    assert any(shown.endswith("€") for shown in texts)  # several tokens


STRIPPED = [{"type": "NFD"}, {"type": "StripAccents"}]
CHANGES = [
    ({"type": "Lowercase"}, "The  ", "the  "),
    ({"type": "Replace", "pattern": {"Regex": " +"}, "content": " "}, " ﬁne", "ﬁne"),
    ({"type": "Sequence", "normalizers": STRIPPED}, "é of 0", "e of 0"),
]


@pytest.mark.parametrize(("normalizer", "text", "read"), CHANGES)
def test_a_tokenizer_that_changes_the_text_stands_in_the_result(normalizer, text, read, tmp_path):
    folder = save_tiny(tmp_path / "model", "llama")
    change(folder, "tokenizer.json", normalizer=normalizer)
    result = measured(
        tmp_path,
        folder,
        text=TEXT.replace("the square", "The  ﬁne é").encode(),
    )
    changed = result["models"][0]["changed_text"]
    assert changed["text"].startswith(text)
    assert changed["read"].startswith(read)
    assert (result["unit"], result["corpus"]["level"]) == ("ppl", "token")
    for file in ("recl.md", "recl.html"):
        assert "model: its tokenizer changes the text (" in (tmp_path / "run" / file).read_text()


def test_weights_and_an_adapter_that_are_not_read_stand_in_the_result(tmp_path):
    folder = save_tiny(tmp_path, "llama")
    change(folder, "config.json", num_hidden_layers=1)
    (tmp_path / "adapter_config.json").write_text("{}")
    weights, *_, adapter = load(folder).findings["not_read"]
    assert weights == "model.layers.1.input_layernorm.weight"
    assert adapter == "its adapter, which needs peft: pip install peft"


OWN_TYPE = {"model_type": "own", "auto_map": {"AutoConfig": "a.B"}}
UNUSABLE = [
    ({"num_hidden_layers": 3}, r"has no weights for model\.layers\.2\.input_layernorm\.w"),
    ({"intermediate_size": 63}, "cannot be loaded"),
    (OWN_TYPE, "custom code"),
    ({"is_encoder_decoder": True}, "must be a causal language model, not an encoder-decoder"),
]


@pytest.mark.parametrize(("changes", "words"), UNUSABLE)
def test_a_folder_without_a_usable_model_gives_one_line(changes, words, tmp_path):
    folder = save_tiny(tmp_path, "llama")
    change(folder, "config.json", **changes)
    with pytest.raises(
        OptionError,
        match=f"models=hf:{tmp_path}: .*{words}",
    ) as caught:
        load(folder)
    assert "\n" not in str(caught.value)


FILES = [
    ("model.gguf", "model.gguf", "a file for llama.cpp: give the folder of the original weights"),
    (
        "",
        "model.safetensors",
        "weights alone: give the folder that has config.json and a tokenizer",
    ),
    ("", "adapter_config.json", "an adapter alone: merge it into its base model"),
    ("best.ckpt", "best.ckpt", "a checkpoint of txl train goes into checkpoints="),
]


@pytest.mark.parametrize(("named", "file", "words"), FILES)
def test_what_is_no_model_is_named_with_what_to_do(named, file, words, tmp_path):
    (tmp_path / file).write_text("{}")
    fault = f"models=hf:{tmp_path / named}: has no config.json, and is {words}"
    with pytest.raises(OptionError, match=fault):
        load(tmp_path / named)


def test_a_model_that_reads_no_token_is_refused(tmp_path):
    """An XMOD without a language cannot read anything."""
    folder = save_tiny(tmp_path, "xmod")
    with pytest.raises(OptionError, match=f"models=hf:{tmp_path}: reads no token: .*language"):
        load(folder)


def test_a_model_that_cannot_be_found_is_named(monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(OptionError, match=r"models=hf:/nowhere/model: has no config.json"):
        load("/nowhere/model")
    with pytest.raises(OptionError, match=r"models=hf:no/one: cannot be loaded .*connect"):
        load("no/one")


def test_another_tokenizer_and_other_bytes_are_refused(runs, tmp_path):
    folder = save_tiny(tmp_path / "model", "gpt2")
    with pytest.raises(OptionError, match=rf"hf:{folder}: cannot read the text .*0xff"):
        measured(tmp_path, folder, text=b"a\xffb" * 100)
    (tmp_path / "text.txt").write_text(TEXT)
    options = {
        "models": [f"hf:{folder}"],
        "data_path": f"{tmp_path}/text.txt",
    }
    with pytest.raises(OptionError, match=f"hf:{folder}: reads other tokens than .*best.ckpt"):
        recl(
            tmp_path / "run",
            runs.checkpoint("relative"),
            **options,
        )
