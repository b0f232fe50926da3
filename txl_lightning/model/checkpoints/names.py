"""The one table of weights: ours, and the names and shapes that other implementations give them.

`named_views` yields our tensors as views in another implementation's shapes, with their names there. Reading copies
into the views, writing returns them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Literal

from torch import Tensor

from txl_lightning.config.architecture import TransformerXLConfig
from txl_lightning.model.checkpoints.tensorflow import EMBEDDING, SCOPE, SOFTMAX
from txl_lightning.model.embedding import cluster_sizes

Family = Literal["original", "Hugging Face", "TensorFlow"]
PREFIXES: dict[Family, str] = {
    "original": "",
    "Hugging Face": "transformer.",
    "TensorFlow": SCOPE,
}
# Here, in both PyTorch codes, in the TensorFlow one, whose kernels are transposed.
IN_EVERY_LAYER = (
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
State = Mapping[str, Tensor]
NamedView = tuple[list[str], Tensor]


def named_views(state: State, config: TransformerXLConfig, family: Family) -> Iterator[NamedView]:
    """Iterate over a model's weights as views with their names in another implementation.

    Several names belong to one tied tensor. Cluster i's column is number `-i` in the original, because it flips its
    cluster columns, and `shortlist + i - 1` in the other two.

    Args:
        state: `TransformerXL.state_dict()`.
        config: its architecture.
        family: other implementation.
    """
    for n in range(config.n_layer):
        yield from _layer(n, state, config, family)
    for ours, theirs in IN_ENCODING:
        tensor = state.get(f"encoding.{ours}")
        if tensor is not None:
            yield from _encoding_tensor(tensor, theirs, config, family)
    if family == "TensorFlow":
        yield from _tensorflow_embedding(state, config)
    else:
        yield from _pytorch_embedding(state, config, PREFIXES[family])


def _layer(
    n: int, state: State, config: TransformerXLConfig, family: Family
) -> Iterator[NamedView]:
    prefix = PREFIXES[family]
    width = config.n_head * config.d_head
    for ours, pytorch, variable in IN_EVERY_LAYER:
        tensor = state.get(f"layers.{n}.{ours}")
        if tensor is None:  # only the relative encoding projects positions
            continue
        if family == "TensorFlow":
            is_kernel = variable.endswith("kernel")
            yield [f"{prefix}layer_{n}/{variable}"], tensor.T if is_kernel else tensor
            continue
        name = f"{prefix}layers.{n}.{pytorch}"
        if ours == "attention.qkv.weight" and config.kind.absolute:
            q, kv = tensor.split([width, 2 * width])
            yield [name.replace("qkv", "q")], q
            yield [name.replace("qkv", "kv")], kv
        else:
            yield [name], tensor


def _encoding_tensor(
    tensor: Tensor, theirs: str, config: TransformerXLConfig, family: Family
) -> Iterator[NamedView]:
    name = PREFIXES[family] + theirs
    in_layers = []
    if family == "Hugging Face":  # it has u and v in every layer, also if they are tied
        for n in range(config.n_layer):
            in_layers.append(f"{PREFIXES[family]}layers.{n}.dec_attn.{theirs}")
    if config.encoding == "relative" and not config.untie_biases:
        yield [name, *in_layers], tensor[0]
    elif in_layers:
        for layer_name, layer_tensor in zip(in_layers, tensor, strict=True):
            yield [layer_name], layer_tensor
    elif config.encoding == "al_rfou":  # the original shapes a row with D numbers as H × E
        yield [name], tensor.unflatten(-1, (config.n_head, config.d_head))
    else:
        yield [name], tensor


def _pytorch_embedding(
    state: State, config: TransformerXLConfig, prefix: str
) -> Iterator[NamedView]:
    sizes = cluster_sizes(config)
    has_tables = config.div_val > 1  # one for each cluster
    for i in range(len(sizes) if has_tables else 1):
        names = [f"{prefix}word_emb.emb_layers.{i}.weight", f"crit.out_layers.{i}.weight"]
        yield names, state[f"embedding.tables.{i}"]
    biases = state["softmax.bias"].split(sizes) if has_tables else [state["softmax.bias"]]
    for i, bias in enumerate(biases):
        yield [f"crit.out_layers.{i}.bias"], bias
    if config.cutoffs:
        yield ["crit.cluster_weight"], state["softmax.cluster_weight"]
        yield ["crit.cluster_bias"], state["softmax.cluster_bias"]
    projection = prefix + "word_emb.emb_projs.{}"
    for ours, names in _projections(state, config, projection, "crit.out_projs.{}").items():
        yield names, state[ours]


def _tensorflow_embedding(state: State, config: TransformerXLConfig) -> Iterator[NamedView]:
    sizes = cluster_sizes(config)
    has_tables = config.div_val > 1
    scope = f"{EMBEDDING}cutoff_{{}}/" if has_tables else EMBEDDING
    for i in range(len(sizes) if has_tables else 1):
        yield [f"{scope}lookup_table".format(i)], state[f"embedding.tables.{i}"]
    if config.cutoffs:
        for i, bias in enumerate(state["softmax.bias"].split(sizes)):
            yield [f"{SOFTMAX}cutoff_{i}/b"], bias
        yield [f"{SOFTMAX}cutoff_0/cluster_W"], state["softmax.cluster_weight"]
        yield [f"{SOFTMAX}cutoff_0/cluster_b"], state["softmax.cluster_bias"]
    else:
        yield [f"{SOFTMAX}bias"], state["softmax.bias"]
    names_of = _projections(state, config, f"{scope}proj_W", SOFTMAX + "cutoff_{}/proj")
    for ours, names in names_of.items():
        yield names, state[ours].T


def _projections(
    state: State, config: TransformerXLConfig, embedding_name: str, softmax_name: str
) -> dict[str, list[str]]:
    """Return every projection's names: in the embedding, and in each softmax that shares it."""
    names: dict[str, list[str]] = {}
    n_clusters = len(config.cutoffs) + 1
    has_tables = config.div_val > 1
    for i in range(n_clusters if has_tables else 1):
        ours = f"embedding.projections.{i}"
        if ours in state:
            names[ours] = [embedding_name.format(i)]
    if not names:
        return names
    for i in range(n_clusters):
        ours = f"softmax.projections.{i}"
        if ours not in state:
            ours = f"embedding.projections.{i if has_tables else 0}"
        names.setdefault(ours, []).append(softmax_name.format(i))
    return names
