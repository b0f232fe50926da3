"""Conversion from and to the checkpoints of other implementations of Transformer-XL.

    original      the paper's PyTorch code, `MemTransformerLM`, with each of its four `attn_type`
    Hugging Face  `TransfoXLLMHeadModel`: the relative encoding, under a `transformer.` prefix
    TensorFlow    the paper's TensorFlow code, of the published models; read only

`weight_mapping` names the tensors that hold the same weights, for both directions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from txl_lightning.config.architecture import TransformerXLConfig
from txl_lightning.model.checkpoints import tensorflow
from txl_lightning.model.checkpoints.contents import CheckpointError, check, shapes_of
from txl_lightning.model.checkpoints.tensorflow import EMBEDDING, SCOPE, SOFTMAX
from txl_lightning.model.transformer_xl import TransformerXL

ATTENTION_TYPES = ("relative", "shaw", "absolute", "al_rfou")  # attn_type 0, 1, 2, 3
REQUIRED_OPTIONS = ("vocab_size", "n_layer", "d_model", "n_head", "d_head", "d_inner", "mem_len")
ONLY = {  # in both other implementations
    **{"norm": "layer", "feed_forward": "relu", "final_norm": False, "qk_norm": False},
}
SAME_OPTIONS = (*REQUIRED_OPTIONS, "dropout", "clamp_len", "same_length", "div_val")
FURTHER_OPTIONS = ("layer_norm_epsilon", "init_std")
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


def from_original(weights: Mapping[str, Tensor], config: Mapping[str, Any]) -> TransformerXL:
    """Build a model with the weights of the paper's PyTorch code (`MemTransformerLM.state_dict()`).

    Those of its fork with memory tokens (Bulatov et al. 2022) have `mem_tokens` as well.

    Args:
        weights: tensors under the names of that code.
        config: its options (`n_layer`, `d_model`, `attn_type`, `mem_len`, …), with memory tokens `num_mem_tokens`,
            `mem_at_end` and `read_mem_from_cache`; `memory_start`, `extra_key` and `layer_norm_epsilon` may be added.

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
            table_len=None if table is None or table.dim() < 2 else table.shape[1],
            untie_biases=encoding == "relative" and weights.get("r_w_bias", torch.empty(0)).dim() == 3,
            tie_projections=_tie_projections(_list(config, "tie_projs")),
            n_tokens=config.get("num_mem_tokens") or 0,
            write_tokens=bool(config.get("mem_at_end", True)),
            tokens_see_states=bool(config.get("read_mem_from_cache", False)),
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
            variables.

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

    A model with memory tokens is one of the fork of that code which has them.
    The config has further entries (`untie_r`, `memory_start`, `extra_key`), so that nothing is lost on the way
    back; the paper's code ignores them.

    Raises:
        CheckpointError: that code has no such encoding, norm or feed-forward, or the model has terms switched off.
    """
    config = model.config
    narrower = config.encoding == "al_rfou" and config.n_head * config.d_head != config.d_model
    lacks = {"d_head": (narrower, "only n_head·d_head = d_model for al_rfou")}
    _require_parts(config, "the paper's code", ATTENTION_TYPES, lacks)
    n_clusters, n = len(config.cutoffs) + 1, config.n_tokens
    fork = {"num_mem_tokens": n, "mem_at_end": config.write_tokens, "read_mem_from_cache": config.tokens_see_states}
    tied = {"none": [False] * n_clusters, "all": [True] * n_clusters}
    return _weights(model, "original"), {
        **_config_to(config),
        "attn_type": ATTENTION_TYPES.index(config.encoding),
        "tie_weight": True,
        "tie_projs": tied.get(config.tie_projections, [False] + [True] * (n_clusters - 1)),
        **{name: getattr(config, name) for name in ("ext_len", "extra_key", "memory_start")},
        **(fork if n else {}),
    }


def to_huggingface(model: TransformerXL) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return weights and config for Hugging Face's class, the inverse of `from_huggingface`.

    Raises:
        CheckpointError: that class lacks something: another encoding, norm or feed-forward, terms switched off,
            extended context, an empty start of the memory.
    """
    config = model.config
    lacks = {
        "ext_len": (config.ext_len > 0, "no extended context"),
        "extra_key": (config.same_length and config.extra_key, "no such mask; convert with same_length=false"),
        "n_tokens": (config.n_tokens > 0, "no memory tokens"),
        "tie_projections": (config.tie_projections == "all", "a projection of its own in the first cluster"),
        "memory_start": (
            config.memory_start != "zeros" and config.mem_len > 0,
            "only memory_start=zeros, attended to; convert with that if it is what you want",
        ),
    }
    _require_parts(config, "Hugging Face's class", ("relative",), lacks)
    return _weights(model, "Hugging Face"), {
        **_config_to(config),
        "architectures": ["TransfoXLLMHeadModel"],
        "model_type": "transfo-xl",
        "adaptive": True,
        "proj_share_all_but_first": config.tie_projections == "all_but_first",
    }


def _require_parts(
    config: TransformerXLConfig, who: str, encodings: Sequence[str], lacks: dict[str, tuple[bool, str]]
) -> None:
    """Raise `CheckpointError` unless another implementation has all parts of a model."""
    all_lack: dict[str, tuple[bool, str]] = {
        "vocab_size": (config.vocab_size is None, "tokens, always"),
        "encoding": (config.encoding not in encodings, f"only {', '.join(encodings)}"),
        **{name: (getattr(config, name) != only, f"only {name}={only}") for name, only in ONLY.items()},
        "terms": (config.active_terms != config.kind.terms, f"all terms of encoding={config.encoding}, always"),
        "compression": (config.compression is not None, "no compressed memory"),
        "memory_reset": (config.memory_reset != "never", "no resets; convert model.with_lengths(memory_reset='never')"),
        **lacks,
    }
    for name, (lacking, has) in all_lack.items():
        if lacking:
            raise CheckpointError(f"{name}={getattr(config, name)}: {who} has {has}")


def _build(config: TransformerXLConfig, weights: Mapping[str, Tensor], family: Family) -> TransformerXL:
    left = dict(weights)
    check(left, {name: torch.empty(tensor.shape, device="meta") for name, tensor in left.items()})
    state: dict[str, Tensor] = {}
    for entry in weight_mapping(config, family):
        present = {name: left.pop(name) for name in entry.theirs if name in left}
        absent = [name for name in entry.theirs if name not in present]
        if absent and not entry.optional and not (entry.repeated and present):
            raise CheckpointError(f"not a checkpoint of the {family} Transformer-XL: it has no {absent[0]!r}")
        if entry.ours is None or not present:
            continue
        try:
            ours = (
                [entry.join([tensor]) for tensor in present.values()]
                if entry.repeated
                else [entry.join([*present.values()])]
            )
        except (IndexError, RuntimeError) as error:  # of torch: too few axes, or lengths that differ
            raise CheckpointError(
                f"{' and '.join(present)}: has another shape than the config says ({error})"
            ) from error
        for name, tensor in zip(present, ours, strict=False):
            if not torch.equal(tensor, state.setdefault(entry.ours, tensor)):
                raise CheckpointError(f"{name} is not tied in this checkpoint; {entry.ours} is always tied")
    if left:
        raise CheckpointError(f"the {family} checkpoint has weights that this architecture lacks: {sorted(left)[:3]}")
    check(state, shapes_of(lambda: TransformerXL(config)), only=True)
    model = TransformerXL(config).to(state["embedding.tables.0"].dtype)
    model.load_state_dict(state)
    return model


def _weights(model: TransformerXL, family: Family) -> dict[str, Tensor]:
    state = model.state_dict()
    weights: dict[str, Tensor] = {}
    for entry in weight_mapping(model.config, family):
        if entry.ours is not None:
            pieces = entry.split(state[entry.ours])
            weights |= dict(zip(entry.theirs, pieces * len(entry.theirs) if entry.repeated else pieces, strict=True))
    exponents = torch.arange(0, model.config.d_model, 2, dtype=torch.float64) / model.config.d_model
    if model.config.kind.table is None:  # their sinusoids
        weights[PREFIXES[family] + "pos_emb.inv_freq"] = (10000.0**-exponents).to(state["softmax.bias"].dtype)
    return weights


def _config_from(config: Mapping[str, Any], **architecture: Any) -> TransformerXLConfig:
    missing = [name for name in REQUIRED_OPTIONS if config.get(name) is None]
    if missing:
        raise CheckpointError(f"the config lacks {', '.join(missing)}")
    given = {name: config[name] for name in (*SAME_OPTIONS, *FURTHER_OPTIONS, "ext_len") if name in config}
    return TransformerXLConfig(
        **{"dropout": 0.0, **given},
        attention_dropout=config.get("dropatt", 0.0),
        pre_norm=bool(config.get("pre_lnorm", False)),
        d_embed=None if config.get("d_embed") == config["d_model"] else config.get("d_embed"),
        cutoffs=tuple(_list(config, "cutoffs")),
        memory_start="zeros" if str(config.get("memory_start")).startswith("zeros") else "empty",
        **architecture,
    )


def _list(config: Mapping[str, Any], name: str) -> list[Any]:
    value = config.get(name) or []
    if not isinstance(value, (list, tuple)):
        raise CheckpointError(f"{name}={value}: must be a list")
    return list(value)


def _config_to(config: TransformerXLConfig) -> dict[str, Any]:
    """Return the options that both families name alike."""
    return {
        **{name: getattr(config, name) for name in (*SAME_OPTIONS, *FURTHER_OPTIONS)},
        "dropatt": config.attention_dropout,
        "d_embed": config.d_embed or config.d_model,
        "cutoffs": list(config.cutoffs),
        "pre_lnorm": config.pre_norm,
        "untie_r": config.untie_biases,
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


@dataclass(frozen=True)
class Entry:
    """One tensor of ours and the tensors of the other implementation with the same numbers.

    Args:
        theirs: names in the other implementation.
        ours: name in `TransformerXL.state_dict()`; None for a tensor that is not kept.
        join: computes our tensor from theirs.
        split: computes their tensors from ours.
        repeated: all of `theirs` name the same (tied) tensor; one of them is enough.
        optional: a checkpoint may lack them.
    """

    theirs: Sequence[str]
    ours: str | None
    join: Callable[[Sequence[Tensor]], Tensor] = lambda tensors: tensors[0]
    split: Callable[[Tensor], list[Tensor]] = lambda tensor: [tensor]
    repeated: bool = False
    optional: bool = False


def _concatenated(theirs: Sequence[str], ours: str, sizes: list[int]) -> Entry:
    return Entry(theirs, ours, lambda tensors: torch.cat(list(tensors)), lambda tensor: list(tensor.split(sizes)))


def _changed(theirs: str, ours: str, swap: Callable[[Tensor], Tensor], **tied: bool) -> Entry:
    """Map a tensor by a function that is its own inverse."""
    return Entry([theirs], ours, lambda tensors: swap(tensors[0]), lambda tensor: [swap(tensor)], **tied)


def weight_mapping(config: TransformerXLConfig, family: Family) -> Iterator[Entry]:
    """Iterate over the entries of an architecture, a tensor before those tied to it."""
    yield from _embedding_and_softmax(config, family)
    tensorflow, prefix = family == "TensorFlow", PREFIXES[family]
    for n in range(config.n_layer):
        for our_name, pytorch, in_tensorflow in IN_EVERY_LAYER:
            ours, theirs = f"layers.{n}.{our_name}", f"{prefix}layers.{n}.{pytorch}"
            if tensorflow:
                theirs = f"{prefix}layer_{n}/{in_tensorflow}"
                yield _changed(theirs, ours, _transpose) if theirs.endswith("kernel") else Entry([theirs], ours)
            elif pytorch == "dec_attn.qkv_net.weight" and config.kind.absolute:
                width = config.n_head * config.d_head
                yield _concatenated([theirs.replace("qkv", part) for part in ("q", "kv")], ours, [width, 2 * width])
            elif pytorch != "dec_attn.r_net.weight" or config.kind.projects:
                yield Entry([theirs], ours)
    if not tensorflow:
        yield Entry([prefix + "pos_emb.inv_freq"], None, optional=True)  # stored by them, computed here
    if config.n_tokens:
        yield Entry(["mem_tokens"], "memory_tokens.initial", lambda x: x[0][:, 0], lambda x: [x[:, None]])
    if config.encoding == "relative":
        yield from _global_biases(config, family)
    elif config.encoding == "shaw":
        for theirs, ours in (("r_w_bias", "u"), ("r_emb", "table"), ("r_bias", "distance_bias")):
            yield Entry([theirs], f"encoding.{ours}")
    elif config.encoding == "al_rfou":
        heads = (config.n_head, config.d_head)  # the original shapes a row of D numbers as H × E
        yield Entry(["r_emb"], "encoding.table", lambda x: x[0].flatten(2), lambda x: [x.unflatten(-1, heads)])


def _global_biases(config: TransformerXLConfig, family: Family) -> Iterator[Entry]:
    """Map u and v: beside the layers; in Hugging Face's class in every layer, if tied there too."""
    for their_name, ours in (("r_w_bias", "encoding.u"), ("r_r_bias", "encoding.v")):
        theirs, in_layers = [PREFIXES[family] + their_name], []
        if family == "Hugging Face":
            in_layers = [f"transformer.layers.{n}.dec_attn.{their_name}" for n in range(config.n_layer)]
        if not config.untie_biases:  # ours has a further axis of length one
            yield Entry([*theirs, *in_layers], ours, lambda x: x[0][None], lambda x: [x[0]], repeated=True)
        elif in_layers:
            yield Entry(in_layers, ours, lambda x: torch.stack(list(x)), lambda x: list(x.unbind()))
        else:
            yield Entry(theirs, ours)


def _embedding_and_softmax(config: TransformerXLConfig, family: Family) -> Iterator[Entry]:
    """Map tables, projections, biases and cluster columns, for TensorFlow with those that `with_all_projections` adds.

    The column of cluster i is number `-i` in the original and `shortlist + i - 1` in the other two.
    """
    edges, clustered = (0, *config.cutoffs, config.vocab_size or 0), config.div_val > 1
    clusters, prefix, tensorflow = range(len(edges) - 1), PREFIXES[family], family == "TensorFlow"
    tables = clusters if clustered else range(1)
    if tensorflow:
        scope = f"{EMBEDDING}cutoff_{{}}/" if clustered else EMBEDDING
        table, projection, own = scope + "lookup_table", scope + "proj_W", SOFTMAX + "cutoff_{}/proj"
        bias = SOFTMAX + ("cutoff_{}/b" if config.cutoffs else "bias")
    else:
        table, projection = prefix + "word_emb.emb_layers.{}.weight", prefix + "word_emb.emb_projs.{}"
        own, bias = "crit.out_projs.{}", "crit.out_layers.{}.bias"
    for i in tables:
        yield Entry([table.format(i)], f"embedding.tables.{i}")
        if not tensorflow:
            yield Entry([f"crit.out_layers.{i}.weight"], f"embedding.tables.{i}", repeated=True, optional=True)
    sizes = [end - first for first, end in pairwise(edges)]
    one_bias = not (clustered or (tensorflow and config.cutoffs))
    biases = [bias.format(i) for i in (range(1) if one_bias else clusters)]
    yield _concatenated(biases, "softmax.bias", [edges[-1]] if one_bias else sizes)
    columns = {"cluster_weight": "cluster_W", "cluster_bias": "cluster_b"} if config.cutoffs else {}
    for name, in_tensorflow in columns.items():
        theirs = f"{SOFTMAX}cutoff_0/{in_tensorflow}" if tensorflow else f"crit.{name}"
        yield _changed(theirs, f"softmax.{name}", _flip if family == "original" else _same)
    if not clustered and config.d_embed in (None, config.d_model):
        return
    swap = _transpose if tensorflow else _same
    for i in tables:
        yield _changed(projection.format(i), f"embedding.projections.{i}", swap)
    for i in clusters:
        if config.tie_projections == "none" or (config.tie_projections == "all_but_first" and i == 0):
            yield _changed(own.format(i), f"softmax.projections.{i}", swap)
        else:
            shared = f"embedding.projections.{i if clustered else 0}"
            yield _changed(own.format(i), shared, swap, repeated=True, optional=True)


def _same(tensor: Tensor) -> Tensor:
    return tensor


def _flip(tensor: Tensor) -> Tensor:
    return tensor.flip(0)


def _transpose(tensor: Tensor) -> Tensor:
    return tensor.transpose(0, -1)
