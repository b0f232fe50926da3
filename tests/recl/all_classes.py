"""All causal classes of the installed transformers, tiny and random, read by the reader of `hf:`."""

import copy
from typing import Any

import numpy as np

from tests.recl.tiny_huggingface import fresh_loss, randomize
from txl_lightning.errors import UserError
from txl_lightning.recl.check import checked
from txl_lightning.recl.huggingface import HuggingFaceModel, position_table
from txl_lightning.recl.models import Member
from txl_lightning.recl.windows import WindowReader, window_losses

POSITIONS = 60
TOKENS = np.random.default_rng(3).integers(3, 100, 301)
CONTEXTS = [10, 30, 50, 70]
PLACES = np.array([120, 200, 280])
SIZES: dict[tuple[str, ...], int] = {
    ("vocab_size",): 120,
    ("hidden_size", "d_model", "n_embd", "n_embed", "embedding_size", "word_embed_proj_dim"): 32,
    ("intermediate_size", "ffn_dim", "n_inner", "d_ff", "dff", "decoder_ffn_dim"): 64,
    ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "decoder_layers"): 2,
    ("num_attention_heads", "n_head", "n_heads", "num_heads", "decoder_attention_heads"): 4,
    ("num_key_value_heads", "num_experts", "n_routed_experts", "num_local_experts"): 4,
    ("head_dim", "rotary_dim", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim"): 8,
    ("q_lora_rank", "kv_lora_rank", "index_head_dim", "moe_intermediate_size"): 16,
    ("num_experts_per_tok", "moe_topk", "index_n_heads"): 2,
    ("n_group", "topk_group", "n_shared_experts", "bos_token_id"): 1,
    ("max_position_embeddings", "n_positions", "max_seq_len", "n_ctx"): POSITIONS,
    ("linear_num_key_heads", "linear_num_value_heads"): 2,
    ("linear_key_head_dim", "linear_value_head_dim", "state_size", "mamba_d_state"): 8,
    ("mamba_d_head", "mamba_n_heads", "mamba_num_heads", "mamba_head_dim"): 8,
    ("sliding_window",): 16,
    ("index_topk",): 20,
    ("pad_token_id",): 0,
    ("eos_token_id",): 2,
}


def model_types() -> list[str]:
    """Return the types of `AutoModelForCausalLM`."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    return list(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)


def small_model(model_type: str) -> Any:
    """Return a tiny random model of a type."""
    import transformers
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    text_config = CONFIG_MAPPING[model_type]().get_text_config()
    known = {*text_config.to_dict(), *text_config.attribute_map}
    options: dict[str, Any] = {}
    for names, size in SIZES.items():
        options.update({name: size for name in names if name in known})
    if hasattr(text_config, "is_decoder"):
        options["is_decoder"] = True
    layer_types = text_config.to_dict().get("layer_types")
    if layer_types:
        options["layer_types"] = list(dict.fromkeys(layer_types))
        options["num_hidden_layers"] = len(options["layer_types"])
    config = type(text_config)(**options)
    return randomize(lambda: transformers.AutoModelForCausalLM.from_config(config))


def outcome(model_type: str) -> str:
    """Read a type, and compare its losses with fresh windows; return what happened."""
    try:
        small = small_model(model_type)
        small.config.use_cache = False
        model = HuggingFaceModel(small)
    except Exception as error:  # of a config that cannot be so small
        return f"not built: {type(error).__name__}"
    untouched = copy.deepcopy(model)
    table = position_table(small, POSITIONS)
    limit = None if table is None else table[0]
    reader = WindowReader(model, limit=limit, one_pass=True)
    member = Member(model_type, model_type, model_type, reader)
    try:
        member = checked(member, TOKENS, CONTEXTS)
    except UserError as error:
        return f"refused: {error}"
    losses_CP = window_losses(member.reader, TOKENS, PLACES, CONTEXTS)
    for c, context in enumerate(CONTEXTS):
        visible = member.reader.visible(context)
        for p, place in enumerate(PLACES):
            if abs(losses_CP[c, p] - fresh_loss(untouched, TOKENS, visible, int(place))) > 1e-3:
                return f"wrong at {context} tokens"
    way = "one pass" if member.reader.one_pass else "direct"
    return way if limit is None else f"{way}, limited"
