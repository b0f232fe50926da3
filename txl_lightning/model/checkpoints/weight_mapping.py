"""Names of the same weights here and in other implementations: one table for both directions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor

from txl_lightning.config.architecture import TransformerXLConfig
from txl_lightning.errors import UserError

Family = Literal["original", "Hugging Face", "TensorFlow"]
SCOPE = "transformer/"  # of the TensorFlow variables
EMBEDDING, SOFTMAX = SCOPE + "adaptive_embed/", SCOPE + "adaptive_softmax/"

IN_EVERY_LAYER = {
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
IN_EVERY_LAYER_OF_TENSORFLOW = {
    "rel_attn/qkv/kernel": "attention.qkv.weight",
    "rel_attn/r/kernel": "attention.position.weight",
    "rel_attn/o/kernel": "attention.output.weight",
    "rel_attn/LayerNorm/gamma": "attention_norm.weight",
    "rel_attn/LayerNorm/beta": "attention_norm.bias",
    "ff/layer_1/kernel": "feed_forward.0.weight",
    "ff/layer_1/bias": "feed_forward.0.bias",
    "ff/layer_2/kernel": "feed_forward.3.weight",
    "ff/layer_2/bias": "feed_forward.3.bias",
    "ff/LayerNorm/gamma": "feed_forward_norm.weight",
    "ff/LayerNorm/beta": "feed_forward_norm.bias",
}


class CheckpointError(UserError, ValueError):
    """A checkpoint that does not fit its format, or a model that the other format cannot hold."""


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


def _stacked(theirs: Sequence[str], ours: str) -> Entry:
    return Entry(theirs, ours, lambda tensors: torch.stack(list(tensors)), lambda tensor: list(tensor.unbind()))


def _with_axis_of_one(theirs: Sequence[str], ours: str) -> Entry:
    """Map tied tensors to one tensor with a further axis of length one."""
    return Entry(theirs, ours, lambda tensors: tensors[0][None], lambda tensor: [tensor[0]], repeated=True)


def _transposed(theirs: str, ours: str, repeated: bool = False) -> Entry:
    def swap(tensor: Tensor) -> Tensor:
        return tensor.transpose(0, -1)

    return Entry([theirs], ours, lambda tensors: swap(tensors[0]), lambda tensor: [swap(tensor)], repeated, repeated)


def _reversed_rows(theirs: str, ours: str) -> Entry:
    return Entry([theirs], ours, lambda tensors: tensors[0].flip(0), lambda tensor: [tensor.flip(0)])


def weight_mapping(config: TransformerXLConfig, family: Family) -> Iterator[Entry]:
    """Iterate over the entries of an architecture, a tensor before those tied to it."""
    if family == "TensorFlow":
        yield from _of_tensorflow(config)
        return
    prefix = "transformer." if family == "Hugging Face" else ""
    width = config.n_head * config.d_head
    yield Entry([prefix + "pos_emb.inv_freq"], None, optional=True)  # stored by them, computed here
    yield from _embedding_and_softmax(config, family, prefix)
    for n in range(config.n_layer):
        theirs, ours = f"{prefix}layers.{n}.", f"layers.{n}."
        for their_name, our_name in IN_EVERY_LAYER.items():
            yield Entry([theirs + their_name], ours + our_name)
        if config.kind.absolute:
            names = [theirs + "dec_attn.q_net.weight", theirs + "dec_attn.kv_net.weight"]
            yield _concatenated(names, ours + "attention.qkv.weight", [width, 2 * width])
        else:
            yield Entry([theirs + "dec_attn.qkv_net.weight"], ours + "attention.qkv.weight")
        if config.kind.projects:
            yield Entry([theirs + "dec_attn.r_net.weight"], ours + "attention.position.weight")
    if config.encoding == "relative":
        yield from _global_biases(config, family)
    elif config.encoding == "shaw":
        yield Entry(["r_w_bias"], "encoding.u")
        yield Entry(["r_emb"], "encoding.table")
        yield Entry(["r_bias"], "encoding.distance_bias")
    elif config.encoding == "al_rfou":
        heads = (config.n_head, config.d_head)  # the original shapes a row of D numbers as H × E
        yield Entry(["r_emb"], "encoding.table", lambda x: x[0].flatten(2), lambda x: [x.unflatten(-1, heads)])


def _global_biases(config: TransformerXLConfig, family: Family) -> Iterator[Entry]:
    """Map u and v: top-level in the original; in Hugging Face's class in every layer too."""
    for their_name, our_name in (("r_w_bias", "encoding.u"), ("r_r_bias", "encoding.v")):
        in_layers = [f"transformer.layers.{n}.dec_attn.{their_name}" for n in range(config.n_layer)]
        if family == "original":
            yield Entry([their_name], our_name) if config.untie_biases else _with_axis_of_one([their_name], our_name)
        elif config.untie_biases:
            yield _stacked(in_layers, our_name)
        else:
            yield _with_axis_of_one([f"transformer.{their_name}", *in_layers], our_name)


def _embedding_and_softmax(config: TransformerXLConfig, family: Family, prefix: str) -> Iterator[Entry]:
    """Map tables, projections, biases and cluster columns.

    The column of cluster i is number `-i` in the original and `shortlist + i - 1` in the other two.
    """
    edges = (0, *config.cutoffs, config.vocab_size)
    clusters = range(len(edges) - 1)
    sizes = [edges[i + 1] - edges[i] for i in clusters]
    tables = clusters if config.div_val > 1 else range(1)
    for i in tables:
        yield Entry([f"{prefix}word_emb.emb_layers.{i}.weight"], f"embedding.tables.{i}")
        tied = f"crit.out_layers.{i}.weight"
        yield Entry([tied], f"embedding.tables.{i}", repeated=True, optional=True)
    biases = [f"crit.out_layers.{i}.bias" for i in tables]
    yield _concatenated(biases, "softmax.bias", sizes if config.div_val > 1 else [config.vocab_size])
    if config.cutoffs:
        for name in ("cluster_weight", "cluster_bias"):
            same = family == "Hugging Face"
            yield (
                Entry([f"crit.{name}"], f"softmax.{name}")
                if same
                else _reversed_rows(f"crit.{name}", f"softmax.{name}")
            )
    if config.div_val == 1 and config.d_embed in (None, config.d_model):
        return
    for i in tables:
        yield Entry([f"{prefix}word_emb.emb_projs.{i}"], f"embedding.projections.{i}")
    for i in clusters:
        name = f"crit.out_projs.{i}"
        if _has_own_projection(config, i):
            yield Entry([name], f"softmax.projections.{i}")
        else:
            shared = f"embedding.projections.{i if config.div_val > 1 else 0}"
            yield Entry([name], shared, repeated=True, optional=True)


def _of_tensorflow(config: TransformerXLConfig) -> Iterator[Entry]:
    """Map the variables of the TensorFlow code, with the projections that `with_all_projections` adds."""
    edges, clustered = (0, *config.cutoffs, config.vocab_size), config.div_val > 1
    projected = clustered or config.d_embed not in (None, config.d_model)
    for i in range(len(edges) - 1 if clustered else 1):
        scope = f"{EMBEDDING}cutoff_{i}/" if clustered else EMBEDDING
        yield Entry([f"{scope}lookup_table"], f"embedding.tables.{i}")
        if projected:
            yield _transposed(f"{scope}proj_W", f"embedding.projections.{i}")
    for i in range(len(edges) - 1 if projected else 0):
        if _has_own_projection(config, i):
            yield _transposed(f"{SOFTMAX}cutoff_{i}/proj", f"softmax.projections.{i}")
        else:
            shared = f"embedding.projections.{i if clustered else 0}"
            yield _transposed(f"{SOFTMAX}cutoff_{i}/proj", shared, repeated=True)
    if config.cutoffs:
        sizes = [end - first for first, end in pairwise(edges)]
        yield _concatenated([f"{SOFTMAX}cutoff_{i}/b" for i in range(len(sizes))], "softmax.bias", sizes)
        yield Entry([f"{SOFTMAX}cutoff_0/cluster_W"], "softmax.cluster_weight")
        yield Entry([f"{SOFTMAX}cutoff_0/cluster_b"], "softmax.cluster_bias")
    else:
        yield Entry([f"{SOFTMAX}bias"], "softmax.bias")
    for n in range(config.n_layer):
        for their_name, our_name in IN_EVERY_LAYER_OF_TENSORFLOW.items():
            theirs, ours = f"{SCOPE}layer_{n}/{their_name}", f"layers.{n}.{our_name}"
            yield _transposed(theirs, ours) if their_name.endswith("kernel") else Entry([theirs], ours)
    for their_name, our_name in (("r_w_bias", "encoding.u"), ("r_r_bias", "encoding.v")):
        theirs = SCOPE + their_name
        yield Entry([theirs], our_name) if config.untie_biases else _with_axis_of_one([theirs], our_name)


def _has_own_projection(config: TransformerXLConfig, cluster: int) -> bool:
    """Return whether the softmax of a cluster does not share the projection of the embedding."""
    return config.tie_projections == "none" or (config.tie_projections == "all_but_first" and cluster == 0)
