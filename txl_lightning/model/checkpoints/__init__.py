"""Checkpoints of other implementations of Transformer-XL, read and written.

    original      the paper's PyTorch code, `MemTransformerLM`, with each of its four `attn_type`
    Hugging Face  `TransfoXLLMHeadModel`: the relative encoding, under a `transformer.` prefix
    TensorFlow    the paper's TensorFlow code, of the published models; read only

`named_views` is the one table of weights: views of ours in the shapes of the others, with their
names there. Reading copies into the views, writing returns them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from txl_lightning.config.architecture import TransformerXLConfig
from txl_lightning.errors import CheckpointError, UserError
from txl_lightning.model.checkpoints import tensorflow
from txl_lightning.model.checkpoints.tensorflow import EMBEDDING, SCOPE, SOFTMAX
from txl_lightning.model.transformer_xl import TransformerXL

ATTENTION_TYPES = ("relative", "shaw", "absolute", "al_rfou")  # attn_type 0, 1, 2, 3
REQUIRED_OPTIONS = ("vocab_size", "n_layer", "d_model", "n_head", "d_head", "d_inner", "mem_len")
SAME_OPTIONS = (
    *REQUIRED_OPTIONS,
    *("dropout", "clamp_len", "same_length", "div_val", "layer_norm_epsilon", "init_std"),
)
RENAMED = {"attention_dropout": "dropatt", "pre_norm": "pre_lnorm", "untie_biases": "untie_r"}
Family = Literal["original", "Hugging Face", "TensorFlow"]
PREFIXES: dict[Family, str] = {"original": "", "Hugging Face": "transformer.", "TensorFlow": SCOPE}
IN_EVERY_LAYER = (  # here, in both PyTorch codes, in the TensorFlow one, whose kernels are transposed
    ("attention.qkv.weight", "dec_attn.qkv_net.weight", "rel_attn/qkv/kernel"),
    ("attention.position.weight", "dec_attn.r_net.weight", "rel_attn/r/kernel"),
    ("attention.output.weight", "dec_attn.o_net.weight", "rel_attn/o/kernel"),
    ("attention_norm.weight", "dec_attn.layer_norm.weight", "rel_attn/LayerNorm/gamma"),
    ("attention_norm.bias", "dec_attn.layer_norm.bias", "rel_attn/LayerNorm/beta"),
    ("feed_forward.0.weight", "pos_ff.CoreNet.0.weight", "ff/layer_1/kernel"),
    ("feed_forward.0.bias", "pos_ff.CoreNet.0.bias", "ff/layer_1/bias"),
    ("feed_forward.3.weight", "pos_ff.CoreNet.3.weight", "ff/layer_2/kernel"),
    ("feed_forward.3.bias", "pos_ff.CoreNet.3.bias", "ff/layer_2/bias"),
    ("feed_forward_norm.weight", "pos_ff.layer_norm.weight", "ff/LayerNorm/gamma"),
    ("feed_forward_norm.bias", "pos_ff.layer_norm.bias", "ff/LayerNorm/beta"),
)
IN_ENCODING = (
    ("u", "r_w_bias"),
    ("v", "r_r_bias"),
    ("table", "r_emb"),
    ("distance_bias", "r_bias"),
)
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
COMPUTED = "pos_emb.inv_freq"  # stored by the PyTorch codes, computed here


def from_original(weights: Mapping[str, Tensor], config: Mapping[str, Any]) -> TransformerXL:
    """Build a model with the weights of the paper's PyTorch code (`MemTransformerLM.state_dict()`).

    Args:
        weights: tensors under the names of that code.
        config: its options (`n_layer`, `d_model`, `attn_type`, `mem_len`, …); `memory_start`,
            `extra_key` and `layer_norm_epsilon` may be added.

    Raises:
        CheckpointError: names or shapes do not match, or an option is missing.
    """
    biases, table = weights.get("r_w_bias", torch.empty(0)), weights.get("r_emb", torch.empty(0))
    untied = biases.dim() == 3 and config.get("attn_type", 0) == 0
    found = {"untie_r": untied, "table_len": table.shape[1] if table.dim() > 1 else None}
    tie_projections = _tie_projections(_list(config, "tie_projs"))
    return _build(_config_from({**config, **found}, tie_projections), weights, "original")


def from_huggingface(weights: Mapping[str, Tensor], config: Mapping[str, Any]) -> TransformerXL:
    """Build a model with the weights of Hugging Face's `TransfoXLLMHeadModel`, which starts from attended zeros.

    Args:
        weights: tensors under the names of that class.
        config: the fields of its `TransfoXLConfig`.

    Raises:
        CheckpointError: names or shapes do not match, or an option is missing.
    """
    return _build(_of_huggingface(config), weights, "Hugging Face")


def _of_huggingface(config: Mapping[str, Any]) -> TransformerXLConfig:
    shared = config.get("proj_share_all_but_first", True)
    start = {"memory_start": "zeros", "untie_r": True}
    return _config_from({**start, **config}, "all_but_first" if shared else "none")


def from_tensorflow(
    weights: Mapping[str, Tensor | np.ndarray], config: Mapping[str, Any]
) -> TransformerXL:
    """Build a model with the weights of the paper's TensorFlow code, which starts from attended zeros.

    With its `same_length` a query sees mem_len + 1 keys (`extra_key`).

    Args:
        weights: tensors by variable name; float16 and bfloat16 become float32. Those of an
            optimizer are ignored.
        config: flags of that code: `mem_len`, and any of `same_length`, `clamp_len`, `dropout`,
            `dropatt` and `init_std`. Those of the architecture (`n_token`, `n_layer`, `cutoffs`,
            `untie_r`, …) are read from the variables.

    Raises:
        CheckpointError: names or shapes do not match, or `mem_len` is missing.
    """
    variables = {
        name: torch.as_tensor(weights[name]) for name in tensorflow.model_variables(weights)
    }
    variables = {
        name: x.to(torch.promote_types(x.dtype, torch.float32)) for name, x in variables.items()
    }
    found = tensorflow.architecture(variables)
    try:
        tie_projections = _tie_projections(found["tie_projs"])
    except CheckpointError:  # another pattern: every cluster gets a copy
        tie_projections = "none"
    start = {"layer_norm_epsilon": 1e-12, "memory_start": "zeros", "extra_key": True}
    options = {
        **start,
        **{name: value for name, value in config.items() if value is not None},
        **found,
    }
    full = tensorflow.with_all_projections(variables, found)
    return _build(_config_from(options, tie_projections), full, "TensorFlow")


def to_original(model: TransformerXL) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return weights and config for the paper's PyTorch code, the inverse of `from_original`.

    The config has further entries (`untie_r`, `memory_start`, `extra_key`), so that nothing is lost
    on the way back; the paper's code ignores them.

    Raises:
        CheckpointError: that code has no such encoding, or the model has terms switched off.
    """
    config, who = model.config, "the paper's code"
    if config.encoding not in ATTENTION_TYPES:
        raise CheckpointError(
            f"encoding={config.encoding}: {who} has only {', '.join(ATTENTION_TYPES)}"
        )
    if config.encoding == "al_rfou" and config.n_head * config.d_head != config.d_model:
        raise CheckpointError(
            f"d_head={config.d_head}: {who} has only n_head·d_head = d_model for al_rfou"
        )
    n_clusters = len(config.cutoffs) + 1
    tied = {"none": [False] * n_clusters, "all": [True] * n_clusters}
    options = {
        **_config_to(config),
        "attn_type": ATTENTION_TYPES.index(config.encoding),
        "tie_weight": True,
        "tie_projs": tied.get(config.tie_projections, [False] + [True] * (n_clusters - 1)),
        **{
            name: getattr(config, name)
            for name in ("ext_len", "extra_key", "memory_start", "table_len")
        },
    }
    _check_kept(model, _config_from(options, config.tie_projections), who)
    return _weights(model, "original"), options


def to_huggingface(model: TransformerXL) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return weights and config for Hugging Face's class, the inverse of `from_huggingface`.

    Raises:
        CheckpointError: that class lacks something: another encoding, terms switched off,
            extended context, an empty start of the memory.
    """
    options = {
        **_config_to(model.config),
        "architectures": ["TransfoXLLMHeadModel"],
        "model_type": "transfo-xl",
        "adaptive": True,
        "proj_share_all_but_first": model.config.tie_projections == "all_but_first",
    }
    _check_kept(model, _of_huggingface(options), "Hugging Face's class")
    return _weights(model, "Hugging Face"), options


def _check_kept(model: TransformerXL, kept: TransformerXLConfig, who: str) -> None:
    """Raise `CheckpointError` for an option that another implementation does not keep and that has an effect."""
    if type(model) is not TransformerXL:
        raise CheckpointError(f"{type(model).__name__}: {who} has no such model")

    def effective(config: TransformerXLConfig) -> dict[str, Any]:
        no_memory = {} if config.mem_len else {"memory_start": "empty"}
        d_embed = None if config.d_embed == config.d_model else config.d_embed
        extra_key = config.same_length and config.extra_key
        return {
            **vars(config),
            "terms": config.active_terms,
            "d_embed": d_embed,
            "extra_key": extra_key,
            **no_memory,
        }

    ours, theirs = effective(model.config), effective(kept)
    # The encoding first: others may differ because of it.
    for name in ("encoding", *ours):
        if ours[name] != theirs[name]:
            raise CheckpointError(f"{name}={ours[name]}: {who} has only {name}={theirs[name]}")


def named_views(
    state: Mapping[str, Tensor], config: TransformerXLConfig, family: Family
) -> Iterator[tuple[list[str], Tensor]]:
    """Iterate over the weights of a model as views in the shapes of another implementation, with their names there.

    Several names are those of one tied tensor. Cluster i's column is number `-i` in the original,
    which flips its cluster columns, and `shortlist + i - 1` in the other two.

    Args:
        state: `TransformerXL.state_dict()`.
        config: its architecture.
        family: other implementation.
    """
    prefix, in_tensorflow, width = (
        PREFIXES[family],
        family == "TensorFlow",
        config.n_head * config.d_head,
    )
    for n in range(config.n_layer):
        for ours, pytorch, variable in IN_EVERY_LAYER:
            name = (
                f"{prefix}layer_{n}/{variable}"
                if in_tensorflow
                else f"{prefix}layers.{n}.{pytorch}"
            )
            tensor = state.get(f"layers.{n}.{ours}")
            if tensor is None:  # only the relative encoding projects positions
                continue
            if ours == "attention.qkv.weight" and config.kind.absolute:
                for part, view in zip(("q", "kv"), tensor.split([width, 2 * width]), strict=True):
                    yield [name.replace("qkv", part)], view
            else:
                yield [name], tensor.T if name.endswith("kernel") else tensor
    for ours, theirs in IN_ENCODING:
        tensor = state.get(f"encoding.{ours}")
        in_layers = [f"{prefix}layers.{n}.dec_attn.{theirs}" for n in range(config.n_layer)]
        in_layers = (
            in_layers if family == "Hugging Face" else []
        )  # which has u and v in every layer, also if tied
        if tensor is None:
            continue
        if config.encoding == "relative" and not config.untie_biases:
            yield [prefix + theirs, *in_layers], tensor[0]
        elif in_layers:
            yield from (
                ([name], of_layer) for name, of_layer in zip(in_layers, tensor, strict=True)
            )
        elif config.encoding == "al_rfou":  # the original shapes a row of D numbers as H × E
            yield [theirs], tensor.unflatten(-1, (config.n_head, config.d_head))
        else:
            yield [prefix + theirs], tensor
    yield from _embedding_and_softmax(state, config, family)


def _embedding_and_softmax(
    state: Mapping[str, Tensor], config: TransformerXLConfig, family: Family
) -> Iterator[tuple[list[str], Tensor]]:
    edges, clustered, prefix = (
        (0, *config.cutoffs, config.vocab_size or 0),
        config.div_val > 1,
        PREFIXES[family],
    )
    clusters, in_tensorflow = range(len(edges) - 1), family == "TensorFlow"
    tables, sizes = (
        clusters if clustered else range(1),
        [end - first for first, end in pairwise(edges)],
    )
    if in_tensorflow:
        scope = f"{EMBEDDING}cutoff_{{}}/" if clustered else EMBEDDING
        table, projection, own = (
            scope + "lookup_table",
            scope + "proj_W",
            SOFTMAX + "cutoff_{}/proj",
        )
        bias = SOFTMAX + ("cutoff_{}/b" if config.cutoffs else "bias")
        columns = {
            "cluster_weight": f"{SOFTMAX}cutoff_0/cluster_W",
            "cluster_bias": f"{SOFTMAX}cutoff_0/cluster_b",
        }
    else:
        table, projection = (
            prefix + "word_emb.emb_layers.{}.weight",
            prefix + "word_emb.emb_projs.{}",
        )
        own, bias = "crit.out_projs.{}", "crit.out_layers.{}.bias"
        columns = {name: f"crit.{name}" for name in ("cluster_weight", "cluster_bias")}
    for i in tables:
        tied = [] if in_tensorflow else [f"crit.out_layers.{i}.weight"]
        yield [table.format(i), *tied], state[f"embedding.tables.{i}"]
    one_bias = not (clustered or (in_tensorflow and config.cutoffs))
    for i, view in enumerate(state["softmax.bias"].split(edges[-1] if one_bias else sizes)):
        yield [bias.format(i)], view
    for ours, theirs in columns.items() if config.cutoffs else ():
        yield [theirs], state[f"softmax.{ours}"]
    shared: dict[
        str, list[str]
    ] = {  # the softmax' own projections, and those of the embedding with what they share
        f"embedding.projections.{i}": [projection.format(i)]
        for i in tables
        if f"embedding.projections.{i}" in state
    }
    for i in clusters if shared else ():
        ours = f"softmax.projections.{i}"
        ours = ours if ours in state else f"embedding.projections.{i if clustered else 0}"
        shared.setdefault(ours, []).append(own.format(i))
    for ours, names in shared.items():
        yield names, state[ours].T if in_tensorflow else state[ours]


def _build(
    config: TransformerXLConfig, weights: Mapping[str, Tensor], family: Family
) -> TransformerXL:
    given = {
        name: tensor for name, tensor in weights.items() if name != PREFIXES[family] + COMPUTED
    }
    if config.n_layer > len(given):
        raise CheckpointError(
            f"n_layer={config.n_layer}: the checkpoint has {len(given)} weights in all"
        )
    expected = list(named_views(shapes_of(lambda: TransformerXL(config)), config, family))
    for names, _ in expected:
        if not any(name in given for name in names):
            raise CheckpointError(
                f"not a checkpoint of the {family} Transformer-XL: it has no {names[0]!r}"
            )
    check(given, {name: view for names, view in expected for name in names if name in given})
    given = _flipped(given, family)
    model = TransformerXL(config).to(
        given[next(name for name in expected[0][0] if name in given)].dtype
    )
    for names, view in named_views(model.state_dict(), config, family):
        first, *tied = [name for name in names if name in given]
        view.copy_(given[first])
        for name in tied:
            if not torch.equal(given[name], given[first]):
                raise CheckpointError(
                    f"{name} is not tied to {first} in this checkpoint; here it always is"
                )
    return model


def _weights(model: TransformerXL, family: Family) -> dict[str, Tensor]:
    state, d_model = model.state_dict(), model.config.d_model
    weights = {
        name: view for names, view in named_views(state, model.config, family) for name in names
    }
    if model.config.kind.table is None:
        exponents = torch.arange(0, d_model, 2, dtype=torch.float64) / d_model
        weights[PREFIXES[family] + COMPUTED] = (10000.0**-exponents).to(state["softmax.bias"].dtype)
    return _flipped(weights, family)


def _flipped(weights: dict[str, Tensor], family: Family) -> dict[str, Tensor]:
    """Reverse the order of the cluster columns of the original."""
    columns = [
        name for name in weights if name.startswith("crit.cluster_") and family == "original"
    ]
    return {**weights, **{name: weights[name].flip(0) for name in columns}}


def _config_from(options: Mapping[str, Any], tie_projections: str) -> TransformerXLConfig:
    """Translate the options of another implementation."""
    missing = [name for name in REQUIRED_OPTIONS if options.get(name) is None]
    if missing:
        raise CheckpointError(f"the config lacks {', '.join(missing)}")
    attention_type = options.get("attn_type", 0)
    if attention_type not in range(len(ATTENTION_TYPES)):
        raise CheckpointError(f"attn_type={attention_type}: must be 0, 1, 2 or 3")
    given = {
        name: options[name] for name in (*SAME_OPTIONS, "ext_len", "table_len") if name in options
    }
    given |= {ours: options[theirs] for ours, theirs in RENAMED.items() if theirs in options}
    return TransformerXLConfig(
        **{"dropout": 0.0, **given},
        encoding=ATTENTION_TYPES[attention_type],
        extra_key=bool(options.get("extra_key", False)),
        d_embed=None if options.get("d_embed") == options["d_model"] else options.get("d_embed"),
        cutoffs=tuple(_list(options, "cutoffs")),
        memory_start="zeros" if str(options.get("memory_start")).startswith("zeros") else "empty",
        tie_projections=tie_projections,
    )


def _config_to(config: TransformerXLConfig) -> dict[str, Any]:
    """Return the options that both families name alike."""
    return {
        **{name: getattr(config, name) for name in SAME_OPTIONS},
        **{theirs: getattr(config, ours) for ours, theirs in RENAMED.items()},
        "d_embed": config.d_embed or config.d_model,
        "cutoffs": list(config.cutoffs),
    }


def _list(config: Mapping[str, Any], name: str) -> list[Any]:
    value = config.get(name) or []
    if not isinstance(value, (list, tuple)):
        raise CheckpointError(f"{name}={value}: must be a list")
    return list(value)


def _tie_projections(tied: list[bool]) -> str:
    """Translate a list of one truth value per cluster to `tie_projections`."""
    if not tied or (not tied[0] and all(tied[1:])):
        return "all_but_first"
    if all(tied) or not any(tied):
        return "all" if tied[0] else "none"
    raise CheckpointError(
        f"tie_projs={tied}: must be true for all clusters, none, or all but the first"
    )


def check(found: Mapping[str, Any], like: Mapping[str, Tensor]) -> None:
    """Check that these are the weights of `like`, whose tensors may be on the meta device: floats of the same shapes.

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
    """Return the `state_dict` of a model on the meta device, which takes no memory but for the modules themselves.

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
