"""Conversion from and to the checkpoints of other implementations of Transformer-XL.

    original      the paper's PyTorch code, `MemTransformerLM`, with each of its four `attn_type`
    Hugging Face  `TransfoXLLMHeadModel`: the relative encoding, under a `transformer.` prefix
    TensorFlow    the paper's TensorFlow code, of the published models; read only

`weight_mapping` names the tensors that hold the same weights, for both directions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from txl_lightning.config.architecture import TransformerXLConfig
from txl_lightning.model.checkpoints import tensorflow
from txl_lightning.model.checkpoints.weight_mapping import CheckpointError, Family, weight_mapping
from txl_lightning.model.transformer_xl import TransformerXL

ATTENTION_TYPES = ("relative", "shaw", "absolute", "al_rfou")  # attn_type 0, 1, 2, 3
REQUIRED_OPTIONS = ("vocab_size", "n_layer", "d_model", "n_head", "d_head", "d_inner", "mem_len")
ONLY = {"norm": "layer", "feed_forward": "relu", "final_norm": False}  # in both other implementations
SAME_OPTIONS = (*REQUIRED_OPTIONS, "dropout", "clamp_len", "same_length", "div_val")
FURTHER_OPTIONS = ("layer_norm_epsilon", "init_std")


def from_original(weights: Mapping[str, Tensor], config: Mapping[str, Any]) -> TransformerXL:
    """Build a model with the weights of the paper's PyTorch code (`MemTransformerLM.state_dict()`).

    Args:
        weights: tensors under the names of that code.
        config: its options (`n_layer`, `d_model`, `attn_type`, `mem_len`, …); `memory_start`, `extra_key` and
            `layer_norm_epsilon` may be added.

    Raises:
        CheckpointError: names or shapes do not match, or an option is missing.
    """
    attention_type = config.get("attn_type", 0)
    if attention_type not in range(len(ATTENTION_TYPES)):
        raise CheckpointError(f"attn_type={attention_type}: must be 0, 1, 2 or 3")
    encoding = ATTENTION_TYPES[attention_type]
    table = weights.get("r_emb")
    return _build(
        _config_from(
            config,
            encoding=encoding,
            extra_key=bool(config.get("extra_key", False)),
            table_len=None if table is None else table.shape[1],
            untie_biases=encoding == "relative" and weights.get("r_w_bias", torch.empty(0)).dim() == 3,
            tie_projections=_tie_projections(config.get("tie_projs")),
        ),
        weights,
        "original",
    )


def from_huggingface(weights: Mapping[str, Tensor], config: Mapping[str, Any]) -> TransformerXL:
    """Build a model with the weights of Hugging Face's `TransfoXLLMHeadModel`, which starts from attended zeros.

    Args:
        weights: tensors under the names of that class.
        config: the fields of its `TransfoXLConfig`.

    Raises:
        CheckpointError: names or shapes do not match, or an option is missing.
    """
    shared = config.get("proj_share_all_but_first", True)
    return _build(
        _config_from(
            {"memory_start": "zeros", **config},
            untie_biases=config.get("untie_r", True),
            tie_projections="all_but_first" if shared else "none",
        ),
        weights,
        "Hugging Face",
    )


def from_tensorflow(weights: Mapping[str, Tensor | np.ndarray], config: Mapping[str, Any]) -> TransformerXL:
    """Build a model with the weights of the paper's TensorFlow code, which starts from attended zeros.

    With its `same_length` a query sees mem_len + 1 keys (`extra_key`). Variables of the optimizer are ignored
    (`tensorflow.ignored_variables`). A projection that `proj_same_dim=false` leaves out becomes the identity.

    Args:
        weights: tensors by variable name, with or without `:0`; float16 and bfloat16 become float32.
        config: flags of that code: `mem_len`, and any of `same_length`, `clamp_len`, `dropout`, `dropatt` and
            `init_std`. Those of the architecture (`n_token`, `n_layer`, `cutoffs`, `untie_r`, …) are read from the
            variables where they are not given.

    Raises:
        CheckpointError: names, shapes or flags do not match, or `mem_len` is missing.
    """
    variables = tensorflow.model_variables(weights)
    flags = tensorflow.model_flags(variables, config)
    variables, tied = tensorflow.with_all_projections(variables, flags)
    return _build(
        _config_from(
            {"layer_norm_epsilon": 1e-12, "memory_start": "zeros", **flags, "vocab_size": flags["n_token"]},
            untie_biases=bool(flags["untie_r"]),
            tie_projections=_tie_projections(tied, otherwise="none"),
            extra_key=True,
        ),
        variables,
        "TensorFlow",
    )


def to_original(model: TransformerXL) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return weights and config for the paper's PyTorch code, the inverse of `from_original`.

    The config has further entries (`untie_r`, `memory_start`, `extra_key`), so that nothing is lost on the way
    back; the paper's code ignores them.

    Raises:
        CheckpointError: that code has no such encoding, norm or feed-forward, or the model has terms switched off.
    """
    config = model.config
    if config.encoding not in ATTENTION_TYPES:
        raise CheckpointError(f"encoding={config.encoding}: the paper's code has only {', '.join(ATTENTION_TYPES)}")
    _require_parts(config, "the paper's code")
    if config.encoding == "al_rfou" and config.n_head * config.d_head != config.d_model:
        raise CheckpointError(f"d_head={config.d_head}: the paper's code needs n_head·d_head = d_model for al_rfou")
    n_clusters = len(config.cutoffs) + 1
    tied = {"none": [False] * n_clusters, "all": [True] * n_clusters}
    return _weights(model, "original"), {
        **_config_to(config),
        "attn_type": ATTENTION_TYPES.index(config.encoding),
        "pre_lnorm": config.pre_norm,
        "untie_r": config.untie_biases,
        "tie_weight": True,
        "tie_projs": tied.get(config.tie_projections, [False] + [True] * (n_clusters - 1)),
        "ext_len": config.ext_len,
        "extra_key": config.extra_key,
        "memory_start": config.memory_start,
    }


def to_huggingface(model: TransformerXL) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return weights and config for Hugging Face's class, the inverse of `from_huggingface`.

    Raises:
        CheckpointError: that class lacks something: another encoding, norm or feed-forward, terms switched off,
            extended context, an empty start of the memory.
    """
    config = model.config
    if config.encoding != "relative":
        raise CheckpointError(f"encoding={config.encoding}: Hugging Face's class has only the relative encoding")
    _require_parts(config, "Hugging Face's class")
    if config.ext_len:
        raise CheckpointError(f"ext_len={config.ext_len}: Hugging Face's class has no extended context")
    if config.same_length and config.extra_key:
        raise CheckpointError("extra_key=True: Hugging Face's class has no such mask; convert with same_length=false")
    if config.tie_projections == "all":
        raise CheckpointError("tie_projections=all: Hugging Face's class never ties the first projection")
    if config.memory_start != "zeros" and config.mem_len:
        raise CheckpointError(
            f"memory_start={config.memory_start}: Hugging Face's class always starts from attended zeros; "
            "convert with memory_start=zeros if that is what you want"
        )
    return _weights(model, "Hugging Face"), {
        **_config_to(config),
        "architectures": ["TransfoXLLMHeadModel"],
        "model_type": "transfo-xl",
        "adaptive": True,
        "pre_lnorm": config.pre_norm,
        "untie_r": config.untie_biases,
        "proj_share_all_but_first": config.tie_projections == "all_but_first",
    }


def _build(config: TransformerXLConfig, weights: Mapping[str, Tensor], family: Family) -> TransformerXL:
    left = dict(weights)
    state: dict[str, Tensor] = {}
    for entry in weight_mapping(config, family):
        found = {name: left.pop(name) for name in entry.theirs if name in left}
        absent = [name for name in entry.theirs if name not in found]
        if absent and not entry.optional and not (entry.repeated and found):
            raise CheckpointError(f"not a checkpoint of the {family} Transformer-XL: it has no {absent[0]!r}")
        if entry.ours is None or not found:
            continue
        if not entry.repeated:
            state[entry.ours] = entry.join(list(found.values()))
            continue
        for name, tensor in found.items():
            tied = state.setdefault(entry.ours, entry.join([tensor]))
            if not torch.equal(entry.join([tensor]), tied):
                raise CheckpointError(f"{name} is not tied in this checkpoint; {entry.ours} is always tied")
    if left:
        raise CheckpointError(f"the {family} checkpoint has weights that this architecture lacks: {sorted(left)[:3]}")
    model = TransformerXL(config).to(state["embedding.tables.0"].dtype)
    for name, parameter in model.state_dict().items():
        if parameter.shape != state[name].shape:
            raise CheckpointError(
                f"{name} has shape {list(state[name].shape)}, the config says {list(parameter.shape)}"
            )
    model.load_state_dict(state)
    return model


def _weights(model: TransformerXL, family: Family) -> dict[str, Tensor]:
    if model.config.memory_reset != "never":
        raise CheckpointError(
            f"memory_reset={model.config.memory_reset}: other code never resets a memory; "
            "convert model.with_lengths(memory_reset='never') if that is what you want"
        )
    state = model.state_dict()
    weights: dict[str, Tensor] = {}
    for entry in weight_mapping(model.config, family):
        if entry.ours is None:
            continue
        pieces = entry.split(state[entry.ours])
        if entry.repeated:
            pieces = pieces * len(entry.theirs)
        weights |= dict(zip(entry.theirs, pieces, strict=True))
    exponents = torch.arange(0, model.config.d_model, 2, dtype=torch.float64) / model.config.d_model
    if model.config.kind.table is None:  # their sinusoids
        name = "transformer.pos_emb.inv_freq" if family == "Hugging Face" else "pos_emb.inv_freq"
        weights[name] = (10000.0**-exponents).to(state["softmax.bias"].dtype)
    return weights


def _config_from(config: Mapping[str, Any], **architecture: Any) -> TransformerXLConfig:
    missing = [name for name in REQUIRED_OPTIONS if name not in config]
    if missing:
        raise CheckpointError(f"the config lacks {', '.join(missing)}")
    start: Literal["zeros", "empty"] = "empty"
    if str(config.get("memory_start", "empty")).startswith("zeros"):
        start = "zeros"
    return TransformerXLConfig(
        **{name: config[name] for name in REQUIRED_OPTIONS},
        dropout=config.get("dropout", 0.0),
        attention_dropout=config.get("dropatt", 0.0),
        pre_norm=bool(config.get("pre_lnorm", False)),
        d_embed=None if config.get("d_embed") == config["d_model"] else config.get("d_embed"),
        cutoffs=tuple(config.get("cutoffs") or ()),
        div_val=config.get("div_val", 1),
        same_length=bool(config.get("same_length", False)),
        clamp_len=config.get("clamp_len", -1),
        ext_len=config.get("ext_len", 0),
        memory_start=start,
        **{name: config[name] for name in FURTHER_OPTIONS if name in config},
        **architecture,
    )


def _config_to(config: TransformerXLConfig) -> dict[str, Any]:
    """Return the options that both families name alike."""
    if config.compression is not None:
        raise CheckpointError(f"compression={config.compression}: no other implementation has a compressed memory")
    return {
        **{name: getattr(config, name) for name in (*SAME_OPTIONS, *FURTHER_OPTIONS)},
        "dropatt": config.attention_dropout,
        "d_embed": config.d_embed or config.d_model,
        "cutoffs": list(config.cutoffs),
    }


def _tie_projections(tied: list[bool] | None, otherwise: str | None = None) -> str:
    """Translate a list of one truth value per cluster to `tie_projections`; `otherwise` replaces other patterns."""
    if not tied or (not tied[0] and all(tied[1:])):
        return "all_but_first"
    if all(tied) or not any(tied):
        return "all" if tied[0] else "none"
    if otherwise is not None:
        return otherwise
    raise CheckpointError(f"tie_projs={tied}: must be true for all clusters, none, or all but the first")


def _require_parts(config: TransformerXLConfig, who: str) -> None:
    for name, only in ONLY.items():
        value = getattr(config, name)
        if value != only:
            raise CheckpointError(f"{name}={value}: {who} has only {name}={only}")
    if config.active_terms != config.kind.terms:
        raise CheckpointError(f"terms={config.terms}: {who} always has all terms of encoding={config.encoding}")
    if config.qk_norm:
        raise CheckpointError(f"qk_norm=True: {who} does not normalise queries and keys")
