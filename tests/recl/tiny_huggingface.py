"""Tiny random models of transformers and a tokenizer trained on a text, made without a network."""

from pathlib import Path
from typing import Any

import torch

POSITIONS = 48
VOCABULARY = 300
TEXT = "".join(f"line {i}: the square of {i} is {i * i}, élan {'😀' if i % 9 == 0 else ''}\n" for i in range(400))
KINDS = ("gpt2", "llama", "mamba")


def configuration(transformers: Any, kind: str) -> Any:
    small = {"vocab_size": VOCABULARY, "bos_token_id": 0, "eos_token_id": 0}
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    if kind == "gpt2":
        return transformers.GPT2Config(n_positions=POSITIONS, n_embd=32, n_layer=2, n_head=2, **small)
    if kind in ("llama", "qwen2"):
        heads = {"num_key_value_heads": 2, "max_position_embeddings": POSITIONS}
        return getattr(transformers, f"{kind.title()}Config")(**sizes, **heads, **small)
    if kind == "t5":
        return transformers.T5Config(vocab_size=VOCABULARY, d_model=32, d_kv=8, d_ff=64, num_layers=1, num_heads=2)
    if kind == "bart":
        halves = {f"{half}_{name}": 2 for half in ("encoder", "decoder") for name in ("layers", "attention_heads")}
        return transformers.BartConfig(d_model=32, **halves, encoder_ffn_dim=32, decoder_ffn_dim=32, **small)
    if kind == "roberta":
        return transformers.RobertaConfig(**sizes, **small, max_position_embeddings=POSITIONS, is_decoder=True)
    return transformers.MambaConfig(hidden_size=32, state_size=4, num_hidden_layers=2, **small)


def model_of(transformers: Any, kind: str) -> torch.nn.Module:
    """A model with weights large enough for losses that differ."""
    auto = "AutoModelForSeq2SeqLM" if kind in ("t5", "bart") else "AutoModelForCausalLM"
    return random_model(getattr(transformers, auto), configuration(transformers, kind))


def random_model(auto: Any, config: Any) -> torch.nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model: torch.nn.Module = auto.from_config(config)
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.dim() == 2:
                    parameter.normal_(std=0.2)
    return model.eval()


def save_tiny(transformers: Any, folder: Path, kind: str, text: str = TEXT, vocabulary: int = VOCABULARY) -> str:
    """Save a model with a byte-level BPE tokenizer of at most `vocabulary` tokens, and return the folder."""
    import tokenizers

    backend = tokenizers.Tokenizer(tokenizers.models.BPE())
    backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = tokenizers.decoders.ByteLevel()
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    options = {"vocab_size": vocabulary, "special_tokens": ["<begin>"], "initial_alphabet": alphabet}
    trainer = tokenizers.trainers.BpeTrainer(show_progress=False, **options)
    backend.train_from_iterator([text], trainer)
    transformers.PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<begin>").save_pretrained(folder)
    model_of(transformers, kind).save_pretrained(folder)
    return str(folder)
