"""Read and write checkpoints for other Transformer-XL implementations.

    original      the paper's PyTorch code, `MemTransformerLM`, with each of its four `attn_type`
    Hugging Face  `TransfoXLLMHeadModel`: the relative encoding, under a `transformer.` prefix
    TensorFlow    the paper's TensorFlow code, of the published models; read only

`names.py` has the one table of weights; here are the options, and the checks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from txl_lightning.config.architecture import TransformerXLConfig
from txl_lightning.errors import CheckpointError, UserError
from txl_lightning.model.checkpoints import tensorflow
from txl_lightning.model.checkpoints.names import PREFIXES, Family, named_views
from txl_lightning.model.transformer_xl import TransformerXL

ATTENTION_TYPES = ("relative", "shaw", "absolute", "al_rfou")  # attn_type 0, 1, 2, 3
REQUIRED_OPTIONS = ("vocab_size", "n_layer", "d_model", "n_head", "d_head", "d_inner", "mem_len")
SAME_OPTIONS = (
    *REQUIRED_OPTIONS,
    "dropout",
    "clamp_len",
    "same_length",
    "div_val",
    "layer_norm_epsilon",
    "init_std",
)
RENAMED = {"attention_dropout": "dropatt", "pre_norm": "pre_lnorm", "untie_biases": "untie_r"}
ONLY_ORIGINAL = ("ext_len", "extra_key", "memory_start", "table_len")
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
COMPUTED = "pos_emb.inv_freq"  # stored by the PyTorch codes, computed here


def from_original(weights: Mapping[str, Tensor], config: Mapping[str, Any]) -> TransformerXL:
    """Build a model with weights from the paper's PyTorch code (`MemTransformerLM.state_dict()`).

    Args:
        weights: tensors under that code's names.
        config: its options (`n_layer`, `d_model`, `attn_type`, `mem_len`, …); `memory_start`,
            `extra_key` and `layer_norm_epsilon` may be added.

    Raises:
        CheckpointError: names or shapes do not match, or an option is missing.
    """
    biases = weights.get("r_w_bias")
    table = weights.get("r_emb")
    options = dict(config)
    is_relative = config.get("attn_type", 0) == 0
    options["untie_r"] = is_relative and biases is not None and biases.dim() == 3
    options["table_len"] = None
    if table is not None and table.dim() > 1:
        options["table_len"] = table.shape[1]
    tie_projections = _tie_projections(_list(config, "tie_projs"))
    return _build(_config_from(options, tie_projections), weights, "original")


def from_huggingface(weights: Mapping[str, Tensor], config: Mapping[str, Any]) -> TransformerXL:
    """Build a model with weights from Hugging Face's `TransfoXLLMHeadModel`, which starts from attended zeros.

    Args:
        weights: tensors under that class's names.
        config: the fields in its `TransfoXLConfig`.

    Raises:
        CheckpointError: names or shapes do not match, or an option is missing.
    """
    return _build(_of_huggingface(config), weights, "Hugging Face")


def _of_huggingface(config: Mapping[str, Any]) -> TransformerXLConfig:
    options = {"memory_start": "zeros", "untie_r": True}
    options.update(config)
    is_shared = config.get("proj_share_all_but_first", True)
    return _config_from(options, "all_but_first" if is_shared else "none")


def from_tensorflow(
    weights: Mapping[str, Tensor | np.ndarray], config: Mapping[str, Any]
) -> TransformerXL:
    """Build a model with weights from the paper's TensorFlow code, which starts from attended zeros.

    With its `same_length` a query sees mem_len + 1 keys (`extra_key`).

    Args:
        weights: tensors by variable name; float16 and bfloat16 become float32. Optimizer variables are ignored.
        config: flags in that code: `mem_len`, and any of `same_length`, `clamp_len`, `dropout`, `dropatt` and
            `init_std`. The architecture (`n_token`, `n_layer`, `cutoffs`, `untie_r`, …) is read from the variables.

    Raises:
        CheckpointError: names or shapes do not match, or `mem_len` is missing.
    """
    variables: dict[str, Tensor] = {}
    for name in tensorflow.model_variables(weights):
        variable = torch.as_tensor(weights[name])
        variables[name] = variable.to(torch.promote_types(variable.dtype, torch.float32))
    architecture = tensorflow.architecture(variables)
    try:
        tie_projections = _tie_projections(architecture["tie_projs"])
    except CheckpointError:  # another pattern: every cluster gets a copy
        tie_projections = "none"
    options: dict[str, Any] = {
        "layer_norm_epsilon": 1e-12,
        "memory_start": "zeros",
        "extra_key": True,
    }
    for name, value in config.items():
        if value is not None:
            options[name] = value
    options.update(architecture)
    full = tensorflow.with_all_projections(variables, architecture)
    return _build(_config_from(options, tie_projections), full, "TensorFlow")


def to_original(model: TransformerXL) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return weights and config for the paper's PyTorch code, the inverse of `from_original`.

    The config has further entries (`untie_r`, `memory_start`, `extra_key`), so that nothing is lost on the way back;
    the paper's code ignores them.

    Raises:
        CheckpointError: that code has no such encoding, or the model has terms switched off.
    """
    config = model.config
    who = "the paper's code"
    if config.encoding not in ATTENTION_TYPES:
        has = ", ".join(ATTENTION_TYPES)
        raise CheckpointError(f"encoding={config.encoding}: {who} has only {has}")
    if config.encoding == "al_rfou" and config.n_head * config.d_head != config.d_model:
        has = "n_head·d_head = d_model for al_rfou"
        raise CheckpointError(f"d_head={config.d_head}: {who} has only {has}")
    options = _config_to(config)
    options["attn_type"] = ATTENTION_TYPES.index(config.encoding)
    options["tie_weight"] = True
    first = config.tie_projections == "all"
    others = config.tie_projections != "none"
    options["tie_projs"] = [first] + [others] * len(config.cutoffs)
    for name in ONLY_ORIGINAL:
        options[name] = getattr(config, name)
    _check_kept(model, _config_from(options, config.tie_projections), who)
    return _weights(model, "original"), options


def to_huggingface(model: TransformerXL) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return weights and config for Hugging Face's class, the inverse of `from_huggingface`.

    Raises:
        CheckpointError: that class lacks something: another encoding, terms switched off, extended context, an empty
            start of the memory.
    """
    options = _config_to(model.config)
    options["architectures"] = ["TransfoXLLMHeadModel"]
    options["model_type"] = "transfo-xl"
    options["adaptive"] = True
    options["proj_share_all_but_first"] = model.config.tie_projections == "all_but_first"
    _check_kept(model, _of_huggingface(options), "Hugging Face's class")
    return _weights(model, "Hugging Face"), options


def _check_kept(model: TransformerXL, kept: TransformerXLConfig, who: str) -> None:
    """Raise `CheckpointError` for an option with an effect that another implementation does not keep."""
    if type(model) is not TransformerXL:
        raise CheckpointError(f"{type(model).__name__}: {who} has no such model")
    ours = _effective_options(model.config)
    theirs = _effective_options(kept)
    # The encoding first: other differences may follow from it.
    for name in ("encoding", *ours):
        if ours[name] != theirs[name]:
            raise CheckpointError(f"{name}={ours[name]}: {who} has only {name}={theirs[name]}")


def _effective_options(config: TransformerXLConfig) -> dict[str, Any]:
    """Return the options without differences that have no effect."""
    options = dict(vars(config))
    options["terms"] = config.active_terms
    options["extra_key"] = config.same_length and config.extra_key
    if config.d_embed == config.d_model:
        options["d_embed"] = None
    if config.mem_len == 0:
        options["memory_start"] = "empty"
    return options


def _build(
    config: TransformerXLConfig, weights: Mapping[str, Tensor], family: Family
) -> TransformerXL:
    """Return a model with another implementation's weights."""
    given = dict(weights)
    given.pop(PREFIXES[family] + COMPUTED, None)
    if config.n_layer > len(given):
        has = f"the checkpoint has {len(given)} weights in all"
        raise CheckpointError(f"n_layer={config.n_layer}: {has}")
    expected = {}
    for names, view in named_views(shapes_of(lambda: TransformerXL(config)), config, family):
        present = [name for name in names if name in given]
        if not present:
            lacks = f"it has no {names[0]!r}"
            raise CheckpointError(f"not a checkpoint of the {family} Transformer-XL: {lacks}")
        for name in present:
            expected[name] = view
    check(given, expected)
    given = _with_flipped_clusters(given, family)
    dtype = given[next(iter(expected))].dtype
    model = TransformerXL(config).to(dtype)
    for names, view in named_views(model.state_dict(), config, family):
        first, *tied = [name for name in names if name in given]
        view.copy_(given[first])
        for name in tied:
            if not torch.equal(given[name], given[first]):
                where = "in this checkpoint; here it always is"
                raise CheckpointError(f"{name} is not tied to {first} {where}")
    return model


def _weights(model: TransformerXL, family: Family) -> dict[str, Tensor]:
    """Return a model's weights under another implementation's names."""
    state = model.state_dict()
    weights = {}
    for names, view in named_views(state, model.config, family):
        for name in names:
            weights[name] = view
    if model.config.kind.table is None:
        d_model = model.config.d_model
        exponents = torch.arange(0, d_model, 2, dtype=torch.float64) / d_model
        frequencies = 10000.0**-exponents
        weights[PREFIXES[family] + COMPUTED] = frequencies.to(state["softmax.bias"].dtype)
    return _with_flipped_clusters(weights, family)


def _with_flipped_clusters(weights: dict[str, Tensor], family: Family) -> dict[str, Tensor]:
    """Reverse the original's cluster columns."""
    if family != "original":
        return weights
    flipped = dict(weights)
    for name, tensor in weights.items():
        if name.startswith("crit.cluster_"):
            flipped[name] = tensor.flip(0)
    return flipped


def _config_from(options: Mapping[str, Any], tie_projections: str) -> TransformerXLConfig:
    """Translate another implementation's options."""
    missing = [name for name in REQUIRED_OPTIONS if options.get(name) is None]
    if missing:
        raise CheckpointError(f"the config lacks {', '.join(missing)}")
    attention_type = options.get("attn_type", 0)
    if attention_type not in range(len(ATTENTION_TYPES)):
        raise CheckpointError(f"attn_type={attention_type}: must be 0, 1, 2 or 3")
    values: dict[str, Any] = {"dropout": 0.0}
    for name in (*SAME_OPTIONS, "ext_len", "table_len"):
        if name in options:
            values[name] = options[name]
    for ours, theirs in RENAMED.items():
        if theirs in options:
            values[ours] = options[theirs]
    values["encoding"] = ATTENTION_TYPES[attention_type]
    values["extra_key"] = bool(options.get("extra_key", False))
    values["d_embed"] = options.get("d_embed")
    if values["d_embed"] == options["d_model"]:
        values["d_embed"] = None
    values["cutoffs"] = tuple(_list(options, "cutoffs"))
    has_zeros = str(options.get("memory_start")).startswith("zeros")
    values["memory_start"] = "zeros" if has_zeros else "empty"
    return TransformerXLConfig(**values, tie_projections=tie_projections)


def _config_to(config: TransformerXLConfig) -> dict[str, Any]:
    """Return the options that both families name alike."""
    options = {}
    for name in SAME_OPTIONS:
        options[name] = getattr(config, name)
    for ours, theirs in RENAMED.items():
        options[theirs] = getattr(config, ours)
    options["d_embed"] = config.d_embed or config.d_model
    options["cutoffs"] = list(config.cutoffs)
    return options


def _list(config: Mapping[str, Any], name: str) -> list[Any]:
    value = config.get(name) or []
    if not isinstance(value, (list, tuple)):
        raise CheckpointError(f"{name}={value}: must be a list")
    return list(value)


def _tie_projections(tied: list[bool]) -> str:
    """Translate a list with one truth value per cluster to `tie_projections`."""
    if not tied or (not tied[0] and all(tied[1:])):
        return "all_but_first"
    if all(tied):
        return "all"
    if not any(tied):
        return "none"
    allowed = "must be true for all clusters, none, or all but the first"
    raise CheckpointError(f"tie_projs={tied}: {allowed}")


def check(found: Mapping[str, Any], like: Mapping[str, Tensor]) -> None:
    """Check that these are the weights for `like`, whose tensors may be on the meta device: floats with the same
    shapes.

    Raises:
        CheckpointError: they are not, or they are not finite; says which.
    """
    for name, tensor in found.items():
        if name not in like:
            raise CheckpointError(f"has {name}, which does not belong there")
        if tensor.dtype not in FLOATS:
            raise CheckpointError(
                f"{name} has numbers of type {tensor.dtype}, not {like[name].dtype}"
            )
        if tensor.shape != like[name].shape:
            raise CheckpointError(
                f"{name} has shape {list(tensor.shape)}, the config says {list(like[name].shape)}"
            )
        if not bool(torch.isfinite(tensor).all()):
            raise CheckpointError(
                f"has weights that are not finite ({name}): its training diverged"
            )


def shapes_of(build: Callable[[], nn.Module]) -> dict[str, Tensor]:
    """Return a model's `state_dict` on the meta device: only the modules themselves need memory.

    Raises:
        UserError: a tensor would be larger than any memory.
    """
    try:
        with torch.device("meta"):
            return build().state_dict()
    except RuntimeError as error:
        if "overflow" not in str(error):
            raise
        raise UserError(f"a model of these sizes fits into no memory ({error})") from error
