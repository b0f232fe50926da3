"""Weights of the other two implementations of Transformer-XL, in and out.

paper   the PyTorch code of the paper ("original"): u and v at the top level
ours    `TransformerXL.state_dict()`
hf      Hugging Face's TransfoXLLMHeadModel: a `transformer.` prefix, u and v in every layer
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from txl_lightning.errors import UserError
from txl_lightning.model.config import TransformerXLConfig
from txl_lightning.model.transformer_xl import TransformerXL

LAYER_KEYS = {
    "dec_attn.qkv_net.weight": "attention.qkv.weight",
    "dec_attn.r_net.weight": "attention.position.weight",
    "dec_attn.o_net.weight": "attention.output.weight",
    "dec_attn.layer_norm.weight": "attention_norm.weight",
    "dec_attn.layer_norm.bias": "attention_norm.bias",
    "pos_ff.CoreNet.0.weight": "feed_forward.0.weight",
    "pos_ff.CoreNet.0.bias": "feed_forward.0.bias",
    "pos_ff.CoreNet.3.weight": "feed_forward.3.weight",
    "pos_ff.CoreNet.3.bias": "feed_forward.3.bias",
    "pos_ff.layer_norm.weight": "feed_forward_norm.weight",
    "pos_ff.layer_norm.bias": "feed_forward_norm.bias",
}
EMBEDDING = "word_emb.emb_layers.0.weight"
TIED_EMBEDDING = "crit.out_layers.0.weight"
SOFTMAX_BIAS = "crit.out_layers.0.bias"
REQUIRED_OPTIONS = ("vocab_size", "n_layer", "d_model", "n_head", "d_head", "d_inner", "mem_len")
INVERSE_FREQUENCIES = "pos_emb.inv_freq"  # not a weight: both codes store it, we compute it


class CheckpointError(UserError, ValueError):
    """A checkpoint is not what it should be, or cannot be held by the other format."""


def from_original(weights: Mapping[str, Tensor], config: Mapping[str, Any]) -> TransformerXL:
    """A model with the weights of the paper's PyTorch code (`MemTransformerLM.state_dict()`).

    Args:
        weights: tensors under that code's own names.
        config: its options (`n_layer`, `d_model`, `attn_type`, `mem_len`, …); `memory_start` may be added.

    Raises:
        CheckpointError: names or shapes do not fit, or the architecture is not covered.
    """
    if config.get("attn_type", 0) != 0:
        raise CheckpointError(f"attn_type={config['attn_type']}: only 0 (relative encoding) can be loaded")
    untied = config.get("untie_r", False) or weights.get("r_w_bias", torch.empty(0)).dim() == 3
    ours = _config_from(config, pre_norm=config.get("pre_lnorm", False), untie_biases=untied)
    take = _Taker(weights, "original")
    state = _common_state(take, ours, prefix="")
    for name, key in (("u", "r_w_bias"), ("v", "r_r_bias")):
        bias = take(key)
        state[name] = bias if untied else bias[None]
    return _build(ours, state, take)


def from_huggingface(weights: Mapping[str, Tensor], config: Mapping[str, Any]) -> TransformerXL:
    """A model with the weights of Hugging Face's `TransfoXLLMHeadModel`, which starts from attended zeros.

    Args:
        weights: tensors under that class's own names.
        config: the fields of its `TransfoXLConfig`.

    Raises:
        CheckpointError: names or shapes do not fit, or the architecture is not covered.
    """
    ours = _config_from(
        {"memory_start": "zeros", **config},
        pre_norm=config.get("pre_lnorm", False),
        untie_biases=config.get("untie_r", True),
    )
    take = _Taker(weights, "Hugging Face")
    state = _common_state(take, ours, prefix="transformer.")
    for name, key in (("u", "r_w_bias"), ("v", "r_r_bias")):
        if ours.untie_biases:
            state[name] = torch.stack([take(f"transformer.layers.{n}.dec_attn.{key}") for n in range(ours.n_layer)])
        else:
            state[name] = take(f"transformer.{key}", f"transformer.layers.0.dec_attn.{key}")[None]
            for n in range(ours.n_layer):  # the layers hold further names of the one shared tensor
                take.drop(f"transformer.layers.{n}.dec_attn.{key}")
    return _build(ours, state, take)


def to_original(model: TransformerXL) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The inverse of `from_original`: weights and config of the paper's PyTorch code."""
    state = model.state_dict()
    weights = _common_weights(state, model.config, prefix="")
    for name, key in (("u", "r_w_bias"), ("v", "r_r_bias")):
        weights[key] = state[name] if model.config.untie_biases else state[name][0]
    return weights, {
        **_config_to(model.config),
        "attn_type": 0,
        "pre_lnorm": model.config.pre_norm,
        "untie_r": model.config.untie_biases,
        "ext_len": model.config.ext_len,
        "memory_start": model.config.memory_start,
    }


def to_huggingface(model: TransformerXL) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The inverse of `from_huggingface`.

    Raises:
        CheckpointError: the model does something that class cannot: extended context, an empty start.
    """
    config = model.config
    if config.ext_len:
        raise CheckpointError(f"ext_len={config.ext_len}: Hugging Face's class has no extended context")
    if config.memory_start != "zeros" and config.mem_len:
        raise CheckpointError(
            f"memory_start={config.memory_start}: Hugging Face's class always starts from attended zeros; "
            "convert model.with_lengths(memory_start='zeros') if that is what you want"
        )
    state = model.state_dict()
    weights = _common_weights(state, config, prefix="transformer.")
    for name, key in (("u", "r_w_bias"), ("v", "r_r_bias")):
        for n in range(config.n_layer):
            bias = state[name][n if config.untie_biases else 0]
            weights[f"transformer.layers.{n}.dec_attn.{key}"] = bias
            if not config.untie_biases:
                weights[f"transformer.{key}"] = bias
    return weights, {
        **_config_to(config),
        "architectures": ["TransfoXLLMHeadModel"],
        "model_type": "transfo-xl",
        "pre_lnorm": config.pre_norm,
        "untie_r": config.untie_biases,
    }


class _Taker:
    """Takes tensors out of a checkpoint and knows what nobody asked for."""

    def __init__(self, weights: Mapping[str, Tensor], family: str) -> None:
        self.left, self.family = dict(weights), family

    def __call__(self, *names: str) -> Tensor:
        for name in names:
            if name in self.left:
                return self.left.pop(name)
        raise CheckpointError(f"not a checkpoint of the {self.family} Transformer-XL: it has no {names[0]!r}")

    def drop(self, name: str) -> Tensor | None:
        return self.left.pop(name, None)


def _common_state(take: _Taker, config: TransformerXLConfig, prefix: str) -> dict[str, Tensor]:
    """What both families name alike, under our names."""
    state = {"embedding.weight": take(prefix + EMBEDDING), "softmax_bias": take(SOFTMAX_BIAS)}
    tied = take.drop(TIED_EMBEDDING)
    if tied is not None and not torch.equal(tied, state["embedding.weight"]):
        raise CheckpointError(
            f"{TIED_EMBEDDING} differs from {prefix + EMBEDDING}: the softmax is not tied, ours always is"
        )
    take.drop(prefix + INVERSE_FREQUENCIES)
    for n in range(config.n_layer):
        for theirs, ours in LAYER_KEYS.items():
            state[f"layers.{n}.{ours}"] = take(f"{prefix}layers.{n}.{theirs}")
    return state


def _common_weights(state: Mapping[str, Tensor], config: TransformerXLConfig, prefix: str) -> dict[str, Tensor]:
    """The inverse of `_common_state`."""
    exponents = torch.arange(0, config.d_model, 2, dtype=torch.float64) / config.d_model
    weights = {
        prefix + EMBEDDING: state["embedding.weight"],
        TIED_EMBEDDING: state["embedding.weight"],
        SOFTMAX_BIAS: state["softmax_bias"],
        prefix + INVERSE_FREQUENCIES: (10000.0**-exponents).to(state["softmax_bias"].dtype),
    }
    for n in range(config.n_layer):
        for theirs, ours in LAYER_KEYS.items():
            weights[f"{prefix}layers.{n}.{theirs}"] = state[f"layers.{n}.{ours}"]
    return weights


def _config_from(config: Mapping[str, Any], **architecture: Any) -> TransformerXLConfig:
    missing = [name for name in REQUIRED_OPTIONS if name not in config]
    if missing:
        raise CheckpointError(f"the config lacks {', '.join(missing)}")
    for name, plain in (("cutoffs", []), ("div_val", 1)):
        if list(config.get(name) or []) if name == "cutoffs" else config.get(name, plain) != plain:
            raise CheckpointError(f"{name}={config[name]}: the adaptive softmax cannot be loaded")
    if config.get("d_embed", config["d_model"]) != config["d_model"]:
        raise CheckpointError(f"d_embed={config['d_embed']}: must equal d_model={config['d_model']}")
    return TransformerXLConfig(
        vocab_size=config["vocab_size"],
        n_layer=config["n_layer"],
        d_model=config["d_model"],
        n_head=config["n_head"],
        d_head=config["d_head"],
        d_inner=config["d_inner"],
        dropout=config.get("dropout", 0.0),
        attention_dropout=config.get("dropatt", 0.0),
        mem_len=config["mem_len"],
        same_length=bool(config.get("same_length", False)),
        clamp_len=config.get("clamp_len", -1),
        ext_len=config.get("ext_len", 0),
        memory_start="zeros" if str(config.get("memory_start", "empty")).startswith("zeros") else "empty",
        **architecture,
    )


def _config_to(config: TransformerXLConfig) -> dict[str, Any]:
    """The options both families name alike."""
    same = ("vocab_size", "n_layer", "d_model", "n_head", "d_head", "d_inner", "dropout", "mem_len", "clamp_len")
    return {
        **{name: getattr(config, name) for name in same},
        "dropatt": config.attention_dropout,
        "same_length": config.same_length,
        "d_embed": config.d_model,
        "cutoffs": [],
        "div_val": 1,
    }


def _build(config: TransformerXLConfig, state: dict[str, Tensor], take: _Taker) -> TransformerXL:
    """The model with these weights, in their precision."""
    if take.left:
        raise CheckpointError(
            f"the {take.family} checkpoint has weights that this architecture lacks: {sorted(take.left)[:3]}"
        )
    model = TransformerXL(config).to(state["embedding.weight"].dtype)
    describe: Callable[[Tensor], list[int]] = lambda tensor: list(tensor.shape)  # noqa: E731
    for name, parameter in model.named_parameters():
        if parameter.shape != state[name].shape:
            raise CheckpointError(f"{name} has shape {describe(state[name])}, the config says {describe(parameter)}")
    model.load_state_dict(state)
    return model
