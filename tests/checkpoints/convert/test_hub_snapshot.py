"""A folder as the hub has `transfo-xl/transfo-xl-wt103`: `txl convert` reads it as it is, `txl evaluate` scores it.

Assumed, from transformers 3.0.2 and 4.37.2: `vocab.json` is that of `TransfoXLTokenizerFast`, a dictionary from words
to numbers. Its words come from the authors' pickle, opened with `encoding="latin1"`. The weights have the names of
`TransfoXLLMHeadModel`; in safetensors one of two tied tensors is left out.
"""

import json
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from tests.checkpoints.convert.test_convert_command import Convert
from tests.model.tiny_model import score_segments, tiny_model
from tests.training.small_run import evaluated
from txl_lightning.errors import OptionError
from txl_lightning.evaluation.trained import load_trained
from txl_lightning.model.checkpoints import to_huggingface
from txl_lightning.model.transformer_xl import TransformerXL

WORDS = [
    "<eos>",
    "the",
    ",",
    "–",
    "café",
    "<unk>",
    "of",
    "in",
    "was",
    "@-@",
    "=",
    "naïve",
    "city",
    "river",
    "東京",
]
LINES = [" = the river = ", " the café of 東京 was naïve – unheard , ", " in the city @-@ of "]
OF_THE_HUB = {
    "adaptive": True,
    "architectures": ["TransfoXLLMHeadModel"],
    "attn_type": 0,
    "ext_len": 0,
    "tgt_len": 128,
}
OF_THE_HUB |= {
    "init": "normal",
    "proj_init_std": 0.01,
    "sample_softmax": -1,
    "tie_projs": [False, True, True],
}
NAMES = {
    "crit.cluster_weight",
    "crit.out_projs.0",
    "crit.out_layers.2.bias",
    "transformer.word_emb.emb_projs.2",
}
NAMES |= {"transformer.layers.1.dec_attn.r_r_bias", "transformer.pos_emb.inv_freq"}
LENGTHS = {"batch_size": 2, "segment_len": 4, "mem_len": 6, "same_length": True, "clamp_len": 7}


def of_python_2(words: list[str]) -> list[str]:
    return [word.encode().decode("latin-1") for word in words]


def published_model() -> TransformerXL:
    sizes: dict[str, Any] = {
        "vocab_size": len(WORDS),
        "cutoffs": (5, 10),
        "div_val": 2,
        "untie_biases": True,
    }
    return (
        tiny_model(**sizes, mem_len=6, same_length=True, clamp_len=7, memory_start="zeros")
        .float()
        .eval()
    )


def write_snapshot(
    folder: Path, weights: str = "safetensors", words: list[str] | None = None
) -> Path:
    state, config = to_huggingface(published_model())
    assert set(state) > NAMES
    folder.mkdir()
    tensors = OrderedDict((name, tensor.clone().contiguous()) for name, tensor in state.items())
    ends = ("weight", "projs.1", "projs.2")
    tied = [name for name in tensors if name.startswith("crit.out_") and name.endswith(ends)]
    if weights == "safetensors":
        for name in tied[::2]:
            del tensors[name]
        save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    else:
        torch.save(
            tensors, folder / "pytorch_model.bin", _use_new_zipfile_serialization=weights == "zip"
        )
    (folder / "config.json").write_text(json.dumps({**config, **OF_THE_HUB}))
    numbers = {word: i for i, word in enumerate(of_python_2(WORDS) if words is None else words)}
    (folder / "vocab.json").write_text(json.dumps(numbers, ensure_ascii=False))
    return folder


@pytest.fixture
def convert(tmp_path: Path) -> Convert:
    """`txl convert` with a corpus in which words have another order of counts than in the vocabulary."""
    (tmp_path / "text.txt").write_text("\n".join(LINES * 60) + "\n", "utf-8")
    return Convert(tmp_path, tmp_path)


@pytest.mark.parametrize("weights", ["safetensors", "zip", "legacy"])
@pytest.mark.parametrize("words", [of_python_2(WORDS), WORDS], ids=["Python 2", "UTF-8"])
def test_a_snapshot_scores_as_its_model_does(convert, tmp_path, weights, words):
    folder = write_snapshot(tmp_path / "hub", weights, words)
    corpus = "data.level=word"
    vocabulary = f"vocabulary={folder / 'vocab.json'}"
    checkpoint = convert(folder, "huggingface", "wt103.ckpt", "txl", corpus, vocabulary)
    trained = load_trained(checkpoint)
    model = published_model()
    text = tmp_path / "text.txt"
    assert (trained.vocabulary.symbols, trained.vocabulary_given) == (tuple(WORDS), True)
    assert (trained.model.config.mem_len, trained.model.config.clamp_len) == (6, 7)

    result = evaluated(
        checkpoint, tmp_path, splits=["test"], data_path=str(text), cached=False, **LENGTHS
    )
    lines = text.read_text("utf-8").split("\n")[:-1]
    numbers = [
        WORDS.index(w) if w in WORDS else 5 for line in lines for w in (*line.split(), "<eos>")
    ]
    tokens = np.array(numbers)[
        -result["test"]["tokens"] - 2 - result["test"]["left_out"]["trimmed"] :
    ]
    streams = torch.from_numpy(tokens[: len(tokens) // 2 * 2].reshape(2, -1))
    with torch.no_grad():
        nll, _ = score_segments(model, streams, 4)
    assert result["test"]["nll"] == pytest.approx(float(nll.mean()), rel=1e-5)
    assert result["test"]["ppl"] == pytest.approx(float(nll.mean().exp()), rel=1e-5)


def test_unusable_vocabularies_are_named(convert, tmp_path):
    folder = write_snapshot(tmp_path / "hub")
    corpus = "data.level=word"
    vocabulary = folder / "vocab.json"
    for content in (
        "no JSON",
        "[1, 2]",
        '["a"]',
        '{"a": 0, "b": 2}',
        '{"a": 0, "b": 0}',
        '{"a": "0"}',
    ):
        vocabulary.write_text(content)
        with pytest.raises(
            OptionError, match=r"vocabulary=.*vocab.json: (must be a dictionary|cannot be used)"
        ):
            convert(folder, "huggingface", "x.ckpt", "txl", corpus, f"vocabulary={vocabulary}")
    with pytest.raises(OptionError, match=r"vocabulary=None: must be a file .*, or corpus"):
        convert(folder, "huggingface", "x.ckpt", "txl", corpus)
