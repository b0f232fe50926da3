"""Which tensor of another implementation is which of ours: one table for both directions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from txl_lightning.model.config import TransformerXLConfig

Family = Literal["original", "Hugging Face"]

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


@dataclass(frozen=True)
class Entry:
    """Some tensors of theirs and the one of ours that holds the same numbers.

    Args:
        theirs: names in the other implementation.
        ours: name in `TransformerXL.state_dict()`; None for what we do not keep.
        join: our tensor from theirs.
        split: their tensors from ours.
        repeated: all of `theirs` are names of the same (tied) tensor; one is enough.
        optional: a checkpoint may lack them.
    """

    theirs: Sequence[str]
    ours: str | None
    join: Callable[[Sequence[Tensor]], Tensor] = lambda tensors: tensors[0]
    split: Callable[[Tensor], list[Tensor]] = lambda tensor: [tensor]
    repeated: bool = False
    optional: bool = False


def concatenated(theirs: Sequence[str], ours: str, sizes: list[int]) -> Entry:
    """Ours is theirs under each other."""
    return Entry(theirs, ours, lambda tensors: torch.cat(list(tensors)), lambda tensor: list(tensor.split(sizes)))


def stacked(theirs: Sequence[str], ours: str) -> Entry:
    """Ours has one more axis, of theirs."""
    return Entry(theirs, ours, lambda tensors: torch.stack(list(tensors)), lambda tensor: list(tensor.unbind()))


def alone(theirs: Sequence[str], ours: str) -> Entry:
    """Ours has one more axis, of length one; theirs may have several names for it."""
    return Entry(theirs, ours, lambda tensors: tensors[0][None], lambda tensor: [tensor[0]], repeated=True)


def reversed_rows(theirs: str, ours: str) -> Entry:
    """Ours is theirs upside down."""
    return Entry([theirs], ours, lambda tensors: tensors[0].flip(0), lambda tensor: [tensor.flip(0)])


def correspondence(config: TransformerXLConfig, family: Family) -> Iterator[Entry]:
    """All entries for an architecture, what something is tied to before what is tied to it."""
    prefix = "transformer." if family == "Hugging Face" else ""
    width = config.n_head * config.d_head
    yield Entry([prefix + "pos_emb.inv_freq"], None, optional=True)  # stored there, computed here
    yield from _embedding_and_softmax(config, family, prefix)
    for n in range(config.n_layer):
        theirs, ours = f"{prefix}layers.{n}.", f"layers.{n}."
        for their_name, our_name in IN_EVERY_LAYER.items():
            yield Entry([theirs + their_name], ours + our_name)
        if config.encoding in ("relative", "shaw"):
            yield Entry([theirs + "dec_attn.qkv_net.weight"], ours + "attention.qkv.weight")
        else:
            names = [theirs + "dec_attn.q_net.weight", theirs + "dec_attn.kv_net.weight"]
            yield concatenated(names, ours + "attention.qkv.weight", [width, 2 * width])
        if config.encoding == "relative":
            yield Entry([theirs + "dec_attn.r_net.weight"], ours + "attention.position.weight")
    if config.encoding == "relative":
        yield from _global_biases(config, family)
    elif config.encoding == "shaw":
        yield Entry(["r_w_bias"], "encoding.u")
        yield Entry(["r_emb"], "encoding.table")
        yield Entry(["r_bias"], "encoding.distance_bias")
    elif config.encoding == "al_rfou":
        heads = (config.n_head, config.d_head)  # that code shapes a row of D numbers as H × E
        yield Entry(["r_emb"], "encoding.table", lambda x: x[0].flatten(2), lambda x: [x.unflatten(-1, heads)])


def _global_biases(config: TransformerXLConfig, family: Family) -> Iterator[Entry]:
    """u and v: top-level in the original; in Hugging Face's class also in every layer."""
    for their_name, our_name in (("r_w_bias", "encoding.u"), ("r_r_bias", "encoding.v")):
        in_layers = [f"transformer.layers.{n}.dec_attn.{their_name}" for n in range(config.n_layer)]
        if family == "original":
            yield Entry([their_name], our_name) if config.untie_biases else alone([their_name], our_name)
        elif config.untie_biases:
            yield stacked(in_layers, our_name)
        else:
            yield alone([f"transformer.{their_name}", *in_layers], our_name)


def _embedding_and_softmax(config: TransformerXLConfig, family: Family, prefix: str) -> Iterator[Entry]:
    """Tables, projections, biases and cluster columns.

    Cluster i's column is `-i` in the original and `shortlist + i - 1` in the other two.
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
    yield concatenated(biases, "softmax.bias", sizes if config.div_val > 1 else [config.vocab_size])
    if config.cutoffs:
        for name in ("cluster_weight", "cluster_bias"):
            same = family == "Hugging Face"
            yield (
                Entry([f"crit.{name}"], f"softmax.{name}") if same else reversed_rows(f"crit.{name}", f"softmax.{name}")
            )
    if config.div_val == 1 and config.d_embed in (None, config.d_model):
        return
    for i in tables:
        yield Entry([f"{prefix}word_emb.emb_projs.{i}"], f"embedding.projections.{i}")
    for i in clusters:
        name = f"crit.out_projs.{i}"
        if config.tie_projections == "none" or (config.tie_projections == "all_but_first" and i == 0):
            yield Entry([name], f"softmax.projections.{i}")
        else:
            shared = f"embedding.projections.{i if config.div_val > 1 else 0}"
            yield Entry([name], shared, repeated=True, optional=True)
