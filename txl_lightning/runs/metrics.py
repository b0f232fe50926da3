"""Metrics of a run: loss and its units, the products that training needs, the peak of the device, memory."""

from __future__ import annotations

import math
import resource
import sys
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric

from txl_lightning.model.transformer_xl import TransformerXL
from txl_lightning.runs.models import Model

WITHOUT_FLOAT64 = ("mps",)  # types of devices
# Dense products per second by a part of the device's name: in bfloat16 or float16, in TF32 and in float32, from
# NVIDIA's data sheets without sparsity. The first part that the name contains counts.
PEAKS = {
    "H100 PCIe": (756e12, 378e12, 51e12),
    "H100 NVL": (835e12, 417e12, 60e12),
    "H200 NVL": (835e12, 417e12, 60e12),
    "H100": (989e12, 494e12, 67e12),
    "H200": (989e12, 494e12, 67e12),
    "A100": (312e12, 156e12, 19.5e12),
}


def loss_unit(level: str) -> str:
    """Return the unit of losses: `ppl` for words, ids and the tokens of BPE, `bpc` for characters and bytes.

    Args:
        level: level of the tokens: byte, char, word, bpe, ids, or token for the pieces of another tokenizer.
    """
    return "ppl" if level in ("word", "bpe", "ids", "token") else "bpc"


def loss_metrics(nll: float, level: str, bytes_per_token: float | None = None) -> dict[str, float]:
    """Return the metrics of a mean loss: `nll`, `ppl` or `bpc`, for ids also `bpt`, and `bpb`, which compares levels.

    bpc = bpt = nll / ln 2        bpb = bpc / bytes per token
    ppl = exp nll (infinite from nll = 700, where float64 nearly overflows)

    Args:
        nll: mean negative log-likelihood in nats per token.
        level: see `loss_unit`.
        bytes_per_token: mean over the same tokens; without `bpb` if it is None or nan (not known) or 0 (no text).
    """
    bits = nll / math.log(2)
    unit = loss_unit(level)
    values = {"nll": nll, unit: bits if unit == "bpc" else math.exp(nll) if nll < 700 else math.inf}
    values |= {"bpt": bits} if level == "ids" else {}
    if not bytes_per_token or math.isnan(bytes_per_token):
        return values
    return {**values, "bpb": bits / bytes_per_token}


def errors_by_unit(error: float | None, nll: float, level: str) -> dict[str, float | None]:
    """Convert a standard error in nats to the unit of the level: d bpc = d nll / ln 2, d ppl = ppl · d nll."""
    values = loss_metrics(nll, level)
    unit = loss_unit(level)
    scale = values["ppl"] if unit == "ppl" else 1 / math.log(2)
    return {"nll": error, unit: None if error is None else scale * error}


def unit_name(level: str) -> str:
    """Return the unit of losses in words: see `loss_unit`; the bits of a byte-level model are per byte."""
    if level == "byte":
        return "bits per byte"
    return "perplexity" if loss_unit(level) == "ppl" else "bits per character"


def shown_units(values: Mapping[str, float], prefix: str = "") -> list[str]:
    """Return the units of a loss to show: `bpc` or `ppl`, `bpt` of ids, and `bpb` where it is known and not the same.

    Args:
        values: metrics by name.
        prefix: of their names, such as `val/`.
    """
    units = [unit for unit in ("bpc", "ppl", "bpt", "bpb") if f"{prefix}{unit}" in values]
    same = units == ["bpc", "bpb"] and values[f"{prefix}bpc"] == values[f"{prefix}bpb"]
    return units[:1] if same else units


class TokenLoss(Metric):
    """Mean loss over tokens and their number of bytes, from float64 sums over all ranks.

    torchmetrics' Perplexity is not used: it needs all logits, sums in float32 and becomes infinite when one
    token has probability 0.
    """

    full_state_update = False
    nll_sum: Tensor
    n_bytes: Tensor
    tokens: Tensor

    def __init__(self) -> None:
        super().__init__()
        for name in ("nll_sum", "n_bytes", "tokens"):
            self.add_state(name, torch.zeros((), dtype=torch.float64), dist_reduce_fx="sum")

    def update(self, nll: Tensor, n_bytes: Tensor | float = math.nan) -> None:
        """Add the losses of some tokens, in nats, and their number of bytes (nan if it is not known)."""
        device = torch.device("cpu") if nll.device.type in WITHOUT_FLOAT64 else nll.device
        if self.device != device:
            self.to(device)
        self.nll_sum += nll.detach().to(device).double().sum()
        self.n_bytes += n_bytes.to(device) if isinstance(n_bytes, Tensor) else n_bytes
        self.tokens += nll.numel()

    def compute(self) -> tuple[float, int, float]:
        """Return the mean loss in nats per token (nan without tokens), the tokens and the bytes (nan if not known)."""
        return float(self.nll_sum / self.tokens), int(self.tokens), float(self.n_bytes)


def training_flops(model: Model, batch_size: int, segment_len: int) -> float:
    """Return the floating-point operations of the matrix products that one training step needs.

        6 · B·T · (weights of the layers' matrices + D · columns of the softmax's head)
        + N · 6 · B·T · n · W · K        n products of W = H·E with each of K visible keys (Transformer-XL only)
        + N · 4 · (B·M · D · P·W + (M + T) · D · W)        keys and values of the memory; W_{k,R} of the distances

    A product counts 2 forward, and 2 for each gradient: of the weight and of the input. Memory and distances need no
    gradient of the input. n counts the values, the queries with keys (a) and with distances (b); K = M + (T + 1) / 2,
    or M with `same_length` (with `extra_key` M + 1). Not counted: elementwise operations, (c) and (d), hidden keys,
    gradients through the memory, and the tail clusters of an adaptive embedding and softmax, whose share depends on the
    text; of a variant of the model, whatever its layers do not have.

    Args:
        model: its memory is full, M = `memory_slots`.
        batch_size: B, streams.
        segment_len: T.
    """
    D, embedding = model.config.d_model, model.embedding
    matrices = sum(p.numel() for p in model.layers.parameters() if p.ndim == 2)
    per_step, T = 0.0, segment_len
    if isinstance(model, TransformerXL):
        config, terms = model.config, model.config.active_terms
        M, width = config.memory_slots, config.n_head * config.d_head
        attention: list[Any] = [layer.attention for layer in model.layers]
        distances = sum(one.position.weight.numel() for one in attention if one.position is not None)
        matrices -= distances
        keys_and_values = sum((one.has_keys + 1) * width * D for one in attention)
        per_step += 4 * (batch_size * M * keys_and_values + (M + T) * distances)
        n_products = 1 + ("a" in terms) + ("b" in terms)
        n_visible = M + (T + 1) / 2 if config.attention_len is None else config.attention_len
        per_step += 6 * config.n_layer * batch_size * T * n_products * width * n_visible
    head = embedding.edges[1] + embedding.n_clusters - 1
    projection = embedding.projection(0)
    head_weights = head * embedding.tables[0].shape[1] + (0 if projection is None else 2 * projection.numel())
    return per_step + 6 * batch_size * (T * matrices + segment_len * head_weights)


def peak_flops(device: torch.device, precision: str) -> float | None:
    """Return the products per second of a GPU by its data sheet; None for a CPU, an unknown GPU or float64.

    Args:
        device: device of the model.
        precision: `trainer.precision`. 32-true counts as TF32 where torch may use it.
    """
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else ""
    peaks = next((peaks for part, peaks in PEAKS.items() if part in name), None)
    if peaks is None or precision not in ("bf16-mixed", "16-mixed", "32-true"):
        return None
    if precision != "32-true":
        return peaks[0]
    return peaks[2] if torch.get_float32_matmul_precision() == "highest" else peaks[1]


def peak_memory(device: torch.device) -> int:
    """Return the most memory so far, in bytes: tensors on a GPU, or resident memory of this process on a CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024
