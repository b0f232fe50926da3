"""Naive float64 version of the paper's TensorFlow model: random variables for any flags, and its losses."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

Flags = dict[str, Any]
Variables = dict[str, np.ndarray]
FLAGS: Flags = {
    **{"n_token": 30, "n_layer": 2, "d_model": 8, "d_embed": 8, "n_head": 2, "d_head": 3, "d_inner": 10},
    **{"cutoffs": [], "div_val": 1, "tie_projs": [False], "proj_same_dim": True, "untie_r": False},
    **{"mem_len": 5, "same_length": True, "clamp_len": -1},
}


def clusters(flags: Flags) -> list[tuple[int, int, int]]:
    """First token, end and width of every cluster."""
    edges = [0, *flags["cutoffs"], flags["n_token"]]
    return [(edges[i], edges[i + 1], flags["d_embed"] // flags["div_val"] ** i) for i in range(len(edges) - 1)]


def random_variables(flags: Flags, seed: int = 0) -> Variables:
    """Variables of the TensorFlow graph by name: only those that it creates with these flags."""
    random = np.random.default_rng(seed)
    D, E, width = flags["d_model"], flags["d_embed"], flags["n_head"] * flags["d_head"]
    biases = [*([flags["n_layer"]] if flags["untie_r"] else []), flags["n_head"], flags["d_head"]]
    shapes: dict[str, list[int]] = {"r_w_bias": biases, "r_r_bias": biases}
    found = clusters(flags)
    if flags["div_val"] == 1:
        shapes["adaptive_embed/lookup_table"] = [flags["n_token"], E]
        if E != D:
            shapes["adaptive_embed/proj_W"] = [E, D]
    for i, (first, end, narrow) in enumerate(found):
        if flags["div_val"] > 1:
            shapes[f"adaptive_embed/cutoff_{i}/lookup_table"] = [end - first, narrow]
            if narrow != D or flags["proj_same_dim"]:
                shapes[f"adaptive_embed/cutoff_{i}/proj_W"] = [narrow, D]
        if flags["cutoffs"]:
            shapes[f"adaptive_softmax/cutoff_{i}/b"] = [end - first]
            without = narrow == D and (flags["div_val"] == 1 or not flags["proj_same_dim"])
            if not flags["tie_projs"][i] and not without:
                shapes[f"adaptive_softmax/cutoff_{i}/proj"] = [narrow, D]
    if flags["cutoffs"]:
        shapes["adaptive_softmax/cutoff_0/cluster_W"] = [len(flags["cutoffs"]), E]
        shapes["adaptive_softmax/cutoff_0/cluster_b"] = [len(flags["cutoffs"])]
    else:
        shapes["adaptive_softmax/bias"] = [flags["n_token"]]
    for n in range(flags["n_layer"]):
        for name, shape in {
            **{"rel_attn/qkv/kernel": [D, 3 * width], "rel_attn/r/kernel": [D, width]},
            **{"rel_attn/o/kernel": [width, D], "ff/layer_1/kernel": [D, flags["d_inner"]]},
            **{"ff/layer_1/bias": [flags["d_inner"]], "ff/layer_2/kernel": [flags["d_inner"], D]},
            **{f"{part}/LayerNorm/{end}": [D] for part in ("rel_attn", "ff") for end in ("beta", "gamma")},
            "ff/layer_2/bias": [D],
        }.items():
            shapes[f"layer_{n}/{name}"] = shape
    return {f"transformer/{name}": random.normal(size=shape) * 0.5 for name, shape in shapes.items()}


def naive_losses(variables: Variables, flags: Flags, stream_BT: Tensor, tgt_len: int) -> tuple[Tensor, Tensor]:
    """Loss of every target of the streams, and the memory after them [N, B, M, D]."""
    named = {name.removeprefix("transformer/"): torch.tensor(value) for name, value in variables.items()}
    memory = torch.zeros(flags["n_layer"], len(stream_BT), flags["mem_len"], flags["d_model"], dtype=torch.float64)
    losses = []
    segments = zip(stream_BT[:, :-1].split(tgt_len, 1), stream_BT[:, 1:].split(tgt_len, 1), strict=True)
    for tokens, targets in segments:
        hidden = torch.stack([torch.stack([embed(named, flags, int(t)) for t in row]) for row in tokens])
        states = []
        for n in range(flags["n_layer"]):
            both = torch.cat([memory[n], hidden], dim=1)
            states.append(both[:, both.shape[1] - flags["mem_len"] :])
            hidden = layer(named, flags, n, both, hidden.shape[1])
        memory = torch.stack(states)
        pairs = zip(hidden.flatten(0, 1), targets.flatten().tolist(), strict=True)
        losses.append(torch.stack([loss(named, flags, h, t) for h, t in pairs]).view_as(targets))
    return torch.cat(losses, dim=1), memory


def embed(named: dict[str, Tensor], flags: Flags, token: int) -> Tensor:
    for i, (first, end, _) in enumerate(clusters(flags)):
        if first <= token < end:
            scope = f"adaptive_embed/cutoff_{i}/" if flags["div_val"] > 1 else "adaptive_embed/"
            vector = named[scope + "lookup_table"][token - (first if flags["div_val"] > 1 else 0)]
            projection = named.get(scope + "proj_W")
            return (vector if projection is None else vector @ projection) * flags["d_model"] ** 0.5
    raise IndexError(token)


def layer(named: dict[str, Tensor], flags: Flags, n: int, both: Tensor, T: int) -> Tensor:
    """Attend from the last T states to all that are visible, head by head; then feed forward."""

    def weight(name: str) -> Tensor:
        return named[f"layer_{n}/{name}"]

    D, H, E = flags["d_model"], flags["n_head"], flags["d_head"]
    K, M = both.shape[1], both.shape[1] - T
    q, k, v = (part.unflatten(-1, (H, E)) for part in (both @ weight("rel_attn/qkv/kernel")).chunk(3, dim=-1))
    u_HE, v_HE = (named[name][n] if flags["untie_r"] else named[name] for name in ("r_w_bias", "r_r_bias"))
    attended = torch.zeros(len(both), T, H, E, dtype=torch.float64)
    for i in range(M, K):
        keys = [j for j in range(i + 1) if not flags["same_length"] or i - j <= M]
        distances = torch.tensor([i - j for j in keys], dtype=torch.float64)
        if flags["clamp_len"] > 0:
            distances = distances.clamp(max=flags["clamp_len"])
        angles = distances[:, None] / 10000 ** (torch.arange(0, D, 2, dtype=torch.float64) / D)
        r = (torch.cat([angles.sin(), angles.cos()], -1) @ weight("rel_attn/r/kernel")).unflatten(-1, (H, E))
        scores = torch.einsum("bhe,bjhe->bjh", q[:, i] + u_HE, k[:, keys])
        scores = scores + torch.einsum("bhe,jhe->bjh", q[:, i] + v_HE, r)
        attended[:, i - M] = torch.einsum("bjh,bjhe->bhe", torch.softmax(scores / E**0.5, dim=1), v[:, keys])
    hidden = norm(both[:, M:] + attended.flatten(2) @ weight("rel_attn/o/kernel"), weight, "rel_attn")
    inner = torch.relu(hidden @ weight("ff/layer_1/kernel") + weight("ff/layer_1/bias"))
    return norm(hidden + inner @ weight("ff/layer_2/kernel") + weight("ff/layer_2/bias"), weight, "ff")


def norm(x: Tensor, weight: Any, part: str) -> Tensor:
    centred = x - x.mean(-1, keepdim=True)
    scaled = centred / (centred.square().mean(-1, keepdim=True) + 1e-12).sqrt()
    return scaled * weight(f"{part}/LayerNorm/gamma") + weight(f"{part}/LayerNorm/beta")


def loss(named: dict[str, Tensor], flags: Flags, hidden: Tensor, target: int) -> Tensor:
    found = clusters(flags)
    if len(found) == 1:
        projected = named.get("adaptive_embed/proj_W")
        vector = hidden if projected is None else projected @ hidden
        logits = named["adaptive_embed/lookup_table"] @ vector + named["adaptive_softmax/bias"]
        return -torch.log_softmax(logits, 0)[target]
    of_target = next(i for i, (first, end, _) in enumerate(found) if first <= target < end)
    head = torch.log_softmax(cluster_logits(named, flags, hidden, 0), 0)
    if of_target == 0:
        return -head[target]
    tail = torch.log_softmax(cluster_logits(named, flags, hidden, of_target), 0)
    return -head[found[0][1] + of_target - 1] - tail[target - found[of_target][0]]


def cluster_logits(named: dict[str, Tensor], flags: Flags, hidden: Tensor, i: int) -> Tensor:
    first, end, _ = clusters(flags)[i]
    clustered = flags["div_val"] > 1
    scope = f"adaptive_embed/cutoff_{i}/" if clustered else "adaptive_embed/"
    table = named[scope + "lookup_table"] if clustered else named[scope + "lookup_table"][first:end]
    bias, own = named[f"adaptive_softmax/cutoff_{i}/b"], named.get(f"adaptive_softmax/cutoff_{i}/proj")
    projection = named.get(scope + "proj_W") if flags["tie_projs"][i] else own
    if i == 0:
        table = torch.cat([table, named["adaptive_softmax/cutoff_0/cluster_W"]])
        bias = torch.cat([bias, named["adaptive_softmax/cutoff_0/cluster_b"]])
    return table @ (hidden if projection is None else projection @ hidden) + bias
