"""Tiny random models of transformers and a tokenizer trained on a text, made without a network."""

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

POSITIONS = 48
VOCABULARY = 300
TEXT = ""
for i in range(400):
    smile = "😀" if i % 9 == 0 else ""
    TEXT += f"line {i}: the square of {i} is {i * i}, élan {smile}\n"
SPECIAL = {"vocab_size": VOCABULARY, "bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0}
SIZES = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": POSITIONS,
}
DECODER_SIZES = {
    "d_model": 32,
    "encoder_layers": 1,
    "decoder_layers": 2,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 32,
    "decoder_ffn_dim": 32,
}
CONFIGS: dict[str, dict[str, Any]] = {
    "GPT2Config": {"n_positions": POSITIONS, "n_embd": 32, "n_layer": 2, "n_head": 2},
    "GPTJConfig": {
        "n_positions": POSITIONS,
        "n_embd": 32,
        "n_layer": 2,
        "n_head": 2,
        "rotary_dim": 8,
    },
    "MptConfig": {"d_model": 32, "n_heads": 4, "n_layers": 2, "max_seq_len": POSITIONS},
    "OPTConfig": {**SIZES, "ffn_dim": 64, "word_embed_proj_dim": 32},
    "MambaConfig": {"hidden_size": 32, "state_size": 4, "num_hidden_layers": 2},
    "T5Config": {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 1, "num_heads": 2},
    "BartConfig": DECODER_SIZES,
    "RobertaConfig": {**SIZES, "is_decoder": True},
    "XGLMConfig": {
        "d_model": 32,
        "ffn_dim": 64,
        "num_layers": 2,
        "attention_heads": 4,
        "max_position_embeddings": POSITIONS,
    },
}


def config_of(transformers: Any, name: str, **options: Any) -> Any:
    """Return a small config of a class; those that are not in `CONFIGS` have the usual sizes."""
    sizes = CONFIGS.get(name, {**SIZES, "num_key_value_heads": 4})
    return getattr(transformers, name)(**{**SPECIAL, **sizes, **options})


def model_of(transformers: Any, name: str, **options: Any) -> Any:
    """Return a model with weights large enough for losses that differ."""
    config = config_of(transformers, name, **options)
    auto = transformers.AutoModelForCausalLM
    if config.is_encoder_decoder:
        auto = transformers.AutoModelForSeq2SeqLM
    return randomize(lambda: auto.from_config(config))


def randomize(make: Callable[[], Any]) -> Any:
    """Make a model with random weights, those of matrices larger than usual."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = make()
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.dim() == 2:
                    parameter.normal_(std=0.2)
    return model.eval()


def save_tokenizer(
    transformers: Any,
    folder: Path,
    text: str = TEXT,
    vocabulary: int = VOCABULARY,
) -> None:
    """Save a byte-level BPE tokenizer of at most `vocabulary` tokens."""
    import tokenizers

    byte_level = tokenizers.pre_tokenizers.ByteLevel
    backend = tokenizers.Tokenizer(tokenizers.models.BPE())
    backend.pre_tokenizer = byte_level(add_prefix_space=False)
    backend.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=["<begin>"],
        initial_alphabet=byte_level.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator([text], trainer)
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<begin>")
    tokenizer.save_pretrained(folder)


def save_tiny(transformers: Any, folder: Path, name: str, **options: Any) -> str:
    """Save a model with a tokenizer, and return the folder."""
    save_tokenizer(transformers, folder)
    model_of(transformers, name, **options).save_pretrained(folder)
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
        losses, _ = copy.deepcopy(model).score(window[:, :-1], window[:, -1:])
    return float(losses)
