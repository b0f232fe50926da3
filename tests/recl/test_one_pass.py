"""Models of transformers whose losses change with the length of the window: exact at every context of the grid."""

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.recl import test_huggingface as models
from tests.recl.small_recl import recl
from tests.recl.tiny_huggingface import TEXT, VOCABULARY, random_model, save_tiny
from txl_lightning.evaluation.losses import window_losses
from txl_lightning.recl.models import Member, TokenizedText, checked, load_huggingface

transformers, pytestmark = models.transformers, models.pytestmark

TOKENS = np.random.default_rng(3).integers(0, VOCABULARY, 401)
CONTEXTS = [40, 60, 80, 96, 120, 160, 200, 240]
SMALL = {"vocab_size": VOCABULARY, "bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0, "hidden_size": 32}
SMALL |= {"intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 4}
SMALL |= {"max_position_embeddings": 400}
FACTORS = {"short_factor": [1.0] * 4, "long_factor": [4.0, 8.0, 16.0, 32.0], "factor": 4.0}
LONGROPE = {"rope_type": "longrope", "rope_theta": 1e4, "original_max_position_embeddings": 100, **FACTORS}
DYNAMIC = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 4.0}
ORIGINAL: dict[str, Any] = {"original_max_position_embeddings": 100}
LLAMA3 = ORIGINAL | {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
ROPES = {"linear": {}, "yarn": ORIGINAL, "llama3": LLAMA3, "dynamic": {}, "longrope": ORIGINAL | FACTORS}
INDEXER = {"index_topk": 80, "index_n_heads": 2, "index_head_dim": 16, "q_lora_rank": 16, "kv_lora_rank": 16}
INDEXER |= {"qk_nope_head_dim": 8, "qk_rope_head_dim": 8, "qk_head_dim": 16, "v_head_dim": 8, "n_group": 1}
INDEXER |= {"moe_intermediate_size": 16, "n_routed_experts": 4, "num_experts_per_tok": 2, "topk_group": 1}
BY_WINDOW: dict[str, tuple[str, dict[str, Any]]] = {
    "longrope": ("Phi3Config", {"original_max_position_embeddings": 100, "rope_parameters": LONGROPE}),
    "dynamic": ("LlamaConfig", {"rope_parameters": DYNAMIC, "max_position_embeddings": 100}),
    "doge": ("DogeConfig", {"keep_window_size": 80}),
    "deepseek_v32": ("DeepseekV32Config", INDEXER),
    "glm_moe_dsa": ("GlmMoeDsaConfig", INDEXER),
    "hy_v4": ("HYV4Config", INDEXER),
}


def saved(folder: Path, name: str, options: dict[str, Any]) -> str:
    save_tiny(transformers, folder, "gpt2")
    config = getattr(transformers, name)(**SMALL | options)
    random_model(transformers.AutoModelForCausalLM, config).save_pretrained(folder)
    return f"hf:{folder}"


def fresh_losses(model: Any, positions: np.ndarray, contexts: list[int]) -> np.ndarray:
    """Losses of windows of exactly c tokens, each read by a model that has read nothing before."""
    text = torch.from_numpy(TOKENS)[None]

    def loss(c: int, t: int) -> float:
        return copy.deepcopy(model).score(text[:, t - c : t], text[:, t : t + 1])[0].item()

    with torch.no_grad():
        return np.array([[loss(c, t) for t in positions] for c in contexts])


def exactly_read(folder: Path, name: str, options: dict[str, Any]) -> Member:
    """The model as it is checked, after a comparison of its losses with those of fresh windows."""
    loaded = load_huggingface(saved(folder, name, options), "name", False)
    loaded = replace(loaded, reader=replace(loaded.reader, limit=None))
    untouched = copy.deepcopy(loaded.reader.model)
    found = checked(loaded, TokenizedText(TOKENS, None, len(TOKENS)), CONTEXTS, 100)
    positions = np.arange(250, 400, 25)
    expected = fresh_losses(untouched, positions, CONTEXTS)
    np.testing.assert_allclose(window_losses(found.reader, TOKENS, positions, CONTEXTS), expected, rtol=0, atol=1e-5)
    return found


@pytest.mark.parametrize("kind", BY_WINDOW)
def test_a_model_that_reads_long_windows_otherwise_gets_windows_of_exactly_c_tokens(kind: str, tmp_path: Path) -> None:
    found = exactly_read(tmp_path, *BY_WINDOW[kind])
    assert (found.reader.one_pass, found.one_pass_difference > 0.01) == (False, True)


@pytest.mark.parametrize("name", ["LlamaConfig", "MistralConfig", "Olmo2Config"])
@pytest.mark.parametrize("rope", ROPES)
def test_every_scaling_of_rotations_is_read_exactly(rope: str, name: str, tmp_path: Path) -> None:
    """Those that depend on the length of the window are read in windows of their own, the others in one pass."""
    scaled = {"rope_type": rope, "rope_theta": 1e4, "factor": 4.0, **ROPES[rope]}
    found = exactly_read(tmp_path, name, {"rope_parameters": scaled, "max_position_embeddings": 100})
    assert found.reader.one_pass == (rope not in ("longrope", "dynamic"))


@pytest.mark.parametrize(("length", "exact"), [(39, True), (100, False), (240, True)])
def test_a_change_at_a_length_is_seen_between_the_contexts(length: int, exact: bool, tmp_path: Path) -> None:
    """Beyond the grid or below it, all windows are rotated alike."""
    own = {"original_max_position_embeddings": length}
    options = {**own, "rope_parameters": {**LONGROPE, **own}}
    loaded = load_huggingface(saved(tmp_path, "Phi3Config", options), "name", False)
    found = checked(loaded, TokenizedText(TOKENS, None, len(TOKENS)), [40, 120, 239 + exact], 100)
    assert found.reader.one_pass == exact


def test_a_sliding_window_is_exact_in_one_pass_and_the_difference_is_written(tmp_path: Path) -> None:
    sliding = saved(tmp_path / "sliding", "MistralConfig", {"sliding_window": 9})
    long = saved(tmp_path / "long", *BY_WINDOW["doge"])
    (tmp_path / "text.txt").write_text(TEXT)
    result = recl(tmp_path, models=[sliding, long], data_path=str(tmp_path / "text.txt"), max_context=96, step=46)
    one, own = result["models"]
    assert (one["scoring"], own["scoring"]) == ("one pass", "direct")
    assert one["one_pass_difference"] < 1e-4 < 0.01 < own["one_pass_difference"]
    assert "long is read in windows of exactly c tokens" in (tmp_path / "recl.md").read_text()
