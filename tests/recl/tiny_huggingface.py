"""Tiny random models of transformers and a tokenizer trained on a text, made without a network."""

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch

LARGEST = 50_000_000  # parameters; some types have parts that a config does not make small
POSITIONS = 48
VOCABULARY = 300
TEXT = ""
for i in range(400):
    smile = "😀" if i % 9 == 0 else ""
    TEXT += f"line {i}: the square of {i} is {i * i}, élan {smile}\n"
SIZES = {
    VOCABULARY: "vocab_size",
    32: "hidden_size d_model n_embd n_embed embedding_size word_embed_proj_dim",
    64: "intermediate_size ffn_dim n_inner d_ff dff decoder_ffn_dim",
    POSITIONS: "max_position_embeddings n_positions max_seq_len n_ctx",
    20: "index_topk",
    16: "q_lora_rank kv_lora_rank index_head_dim moe_intermediate_size sliding_window",
    8: (
        "head_dim rotary_dim qk_rope_head_dim qk_nope_head_dim v_head_dim "
        "linear_key_head_dim linear_value_head_dim state_size mamba_d_state "
        "mamba_d_head mamba_n_heads mamba_num_heads mamba_head_dim"
    ),
    4: (
        "num_attention_heads n_head n_heads num_heads decoder_attention_heads "
        "num_key_value_heads num_experts n_routed_experts num_local_experts"
    ),
    2: (
        "num_hidden_layers n_layer n_layers num_layers decoder_layers num_experts_per_tok "
        "moe_topk index_n_heads linear_num_key_heads linear_num_value_heads eos_token_id"
    ),
    1: "n_group topk_group n_shared_experts bos_token_id",
    0: "pad_token_id",
}


def model_of(model_type: str, **options: Any) -> Any:
    """Return a causal model of a type, with weights large enough for losses that differ.

    Raises:
        ValueError: it cannot be small.
    """
    import transformers

    config_class = type(transformers.CONFIG_MAPPING[model_type]().get_text_config())
    known = config_class().to_dict()
    sizes = {}
    for size, names in SIZES.items():
        for name in names.split():
            if name in known or name in config_class.attribute_map:
                sizes[name] = size
    if "is_decoder" in known:
        sizes["is_decoder"] = True
    if known.get("layer_types"):
        kinds = sorted(set(known["layer_types"])) * 2
        sizes["layer_types"] = kinds
        sizes["num_hidden_layers"] = len(kinds)
    config = config_class(**{**sizes, **options})
    with torch.device("meta"):
        unfilled = transformers.AutoModelForCausalLM.from_config(config)
    if sum(parameter.numel() for parameter in unfilled.parameters()) > LARGEST:
        raise ValueError(f"{model_type} has more than {LARGEST:,} parameters")
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = transformers.AutoModelForCausalLM.from_config(config)
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.dim() == 2:
                    parameter.normal_(std=0.2)
    return model.eval()


def save_tokenizer(folder: Path) -> None:
    """Save a byte-level BPE tokenizer."""
    import tokenizers
    import transformers

    byte_level = tokenizers.pre_tokenizers.ByteLevel
    backend = tokenizers.Tokenizer(tokenizers.models.BPE())
    backend.pre_tokenizer = byte_level(add_prefix_space=False)
    backend.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=["<begin>"],
        initial_alphabet=byte_level.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator([TEXT], trainer)
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<begin>")
    tokenizer.save_pretrained(folder)


def save_tiny(folder: Path, model_type: str, **options: Any) -> str:
    """Save a model with a tokenizer, and return the folder."""
    save_tokenizer(folder)
    model_of(model_type, **options).save_pretrained(folder)
    return str(folder)


def change(folder: str | Path, file: str, **changes: Any) -> None:
    """Change entries of a JSON file."""
    path = Path(folder) / file
    content = json.loads(path.read_text())
    path.write_text(json.dumps({**content, **changes}))


def fresh_loss(model: Any, tokens: np.ndarray, context: int, place: int) -> float:
    """Return the loss of a window of exactly c tokens, read by a copy of the model."""
    window = torch.from_numpy(tokens[place - context : place + 1])[None]
    with torch.no_grad():
        fresh = copy.deepcopy(model)
        losses, _ = fresh.score(
            window[:, :-1],
            window[:, -1:],
        )
    return float(losses)
