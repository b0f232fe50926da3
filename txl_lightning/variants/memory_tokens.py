"""Recurrent Memory Transformer (Bulatov et al. 2022, arXiv:2207.06881, §3.2): memory tokens around every segment.

    row of a segment     [z ∘ tokens ∘ z]     z: n memory tokens, beside the scaled embeddings
    next z               outputs of the last layer, after norm and dropout, after the segment

Memory tokens pass all layers as tokens do: positions count them, and their states enter the memory. `from_original`
reads the authors' fork of Transformer-XL's code.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from txl_lightning.config.architecture import TransformerXLConfig
from txl_lightning.errors import Count
from txl_lightning.model import checkpoints
from txl_lightning.model.checkpoints import check
from txl_lightning.model.encodings import LayerPositions
from txl_lightning.model.memory import Memory
from txl_lightning.model.positions import VisibleKeys
from txl_lightning.model.shapes import Counts, Hidden, Places, Requested, Tokens
from txl_lightning.model.transformer_xl import TransformerXL, register_variant


@dataclass
class MemoryTokensConfig(TransformerXLConfig):
    """Options for `variant=memory_tokens`.

    Args:
        n_tokens: n, memory tokens that are read before every segment and written after it.
        write_tokens: whether memory tokens are written at separate places after the segment (`mem_at_end` in the
            authors' code). Otherwise the row is [z ∘ tokens], and the next z are the outputs at its first places.
        tokens_see_states: whether memory tokens attend to the memory's states (`read_mem_from_cache`).
    """

    n_tokens: Count = 10
    write_tokens: bool = True
    tokens_see_states: bool = False

    @property
    def is_recurrent(self) -> bool:
        return True


@dataclass
class TokenMemory(Memory):
    """Memory with states and memory tokens.

    Args:
        tokens_nBD: memory tokens that the next segment reads.
    """

    tokens_nBD: Float[Tensor, "n B D"] | None = field(default=None, kw_only=True)


class InitialTokens(nn.Module):
    """Memory tokens before a stream, drawn from N(0, 1), the scale that LayerNorm's outputs have.

    The authors' code draws one and repeats it; an encoding without positions could never tell them
    apart.
    """

    def __init__(self, config: MemoryTokensConfig) -> None:
        super().__init__()
        self.initial = nn.Parameter(torch.randn(config.n_tokens, config.d_model))


@register_variant("memory_tokens")
class MemoryTokensTransformerXL(TransformerXL):
    """Transformer-XL with memory tokens. A segment's tokens attend to the read places as to any earlier key.

        read       attend to all read places
        written    attend to read places, segment, and all written places

    Both attend to the memory's states only with `tokens_see_states`. With `same_length` there are no such rules: each
    place sees the nearest keys, as in the authors' code.

    A memory token may see later keys, which have no distance. As in the authors' code, their terms (b) + (d) are what
    `relative_shift` reads there, from the next query's row: 0 for the next key, and (q_{i+1} + v)·r_{K-d} for the d-th
    key after it. With n ≥ 3 memory tokens they depend on K.
    """

    config: MemoryTokensConfig
    config_class = MemoryTokensConfig
    state_class = TokenMemory
    cannot: ClassVar = {
        **dict.fromkeys(
            ("cached inference", "one-pass windows", "documents", "extended context", "generation"),
            "memory tokens are written once, at a segment's end",
        ),
        "unequal lengths": "memory tokens need streams of one length",
        "attention lengths": "the context in memory tokens is no number of keys",
    }

    def __init__(self, config: MemoryTokensConfig) -> None:
        super().__init__(config)
        # Last, so that all other parameters are drawn as without it.
        self.memory_tokens = InitialTokens(config)

    def start_memory(self, batch_size: int, static: bool = False) -> TokenMemory:
        """Return the memory before B streams' first tokens, with the trained initial tokens."""
        tokens_nBD = self.memory_tokens.initial[:, None].expand(
            -1,
            batch_size,
            -1,
        )
        return replace(super().start_memory(batch_size, static), tokens_nBD=tokens_nBD)  # type: ignore[call-arg, return-value]

    def forward(
        self,
        tokens_BT: Tokens | None = None,
        memory: Any = None,
        n_last: int | None = None,
        places_Q: Places | None = None,
        *,
        inputs_BTD: Hidden | None = None,
        lengths_B: Counts | None = None,
    ) -> tuple[Requested, Any]:
        embedded_BTD = self.embed(tokens_BT, inputs_BTD, lengths_B)
        B, T = embedded_BTD.shape[:2]
        n = self.config.n_tokens
        if memory is None:
            memory = self.start_memory(B)
        memory = self.prepare_memory(memory, B)
        z_BnD = self._tokens_before(memory)
        row = [z_BnD, embedded_BTD]
        if self.config.write_tokens:
            row.append(z_BnD)
        n_returned = T if n_last is None else n_last
        # Places, from the last, that hold the returned tokens and all that is written.
        last = n + (n_returned if self.config.write_tokens else T)
        hidden_BQD, after = super().forward(
            memory=memory, n_last=last, inputs_BTD=torch.cat(row, dim=1)
        )
        if self.config.write_tokens:
            hidden_BTD, written_BnD = hidden_BQD.split([n_returned, n], dim=1)
        else:
            written_BnD = hidden_BQD[:, :n]
            hidden_BTD = hidden_BQD[:, last - n_returned :]
        # A copy: a checkpoint would hold a view's whole storage.
        written_nBD = written_BnD.transpose(0, 1).clone(memory_format=torch.contiguous_format)
        if not memory.keeps_gradient:
            written_nBD = written_nBD.detach()
        if places_Q is not None:
            hidden_BTD = hidden_BTD[:, places_Q]
        return hidden_BTD, replace(after, tokens_nBD=written_nBD)  # type: ignore[call-arg]

    def _tokens_before(self, memory: Any) -> Tensor:
        """Return the memory tokens that a segment reads; the initial ones where a stream was reset."""
        z_nBD = memory.tokens_nBD
        initial = self.memory_tokens.initial
        if memory.in_document_B is not None:
            was_reset_B1 = memory.in_document_B[:, None] < 0
            z_nBD = torch.where(
                was_reset_B1,
                initial[:, None],
                z_nBD,
            )
        # DDP waits for a gradient for every parameter; after the first segment it is zero.
        return z_nBD.transpose(0, 1) + 0.0 * initial

    def positions(self, n_keys: int, like: Tensor) -> list[LayerPositions]:
        layers = super().positions(n_keys, like)
        return [without_distance_k(positions) for positions in layers]

    def visible(self, memory: Memory, n_tokens: int, like: Tensor) -> VisibleKeys:
        """Return the keys that places in a row may attend to."""
        visible = super().visible(memory, n_tokens, like)
        if self.config.attention_len is not None:
            return visible
        mask_QK = visible.mask_TK
        M = memory.length
        n = self.config.n_tokens
        read = slice(0, n)
        mask_QK[read, M : M + n] = 0.0
        if not self.config.tokens_see_states:
            mask_QK[read, :M] = float("-inf")
        if self.config.write_tokens:
            written = slice(mask_QK.shape[0] - n, None)
            mask_QK[written, mask_QK.shape[1] - n :] = 0.0
            if not self.config.tokens_see_states:
                mask_QK[written, :M] = float("-inf")
        return visible._replace(causal=False)


def without_distance_k(positions: LayerPositions) -> LayerPositions:
    """Set the entries for distance K, which no key has, to zero; the rotation stays.

    `relative_shift` gives these entries to the key after each query.
    """
    changed: dict[str, Tensor] = {}
    for name in ("table_HSE", "sinusoids_SD"):
        vectors = getattr(positions, name)
        if vectors is not None:
            changed[name] = F.pad(vectors[..., 1:, :], (0, 0, 1, 0))
    if positions.bias_HS is not None:
        changed["bias_HS"] = F.pad(positions.bias_HS[:, 1:], (1, 0))
    return positions._replace(**changed)


def from_original(
    weights: Mapping[str, Tensor], config: Mapping[str, Any]
) -> MemoryTokensTransformerXL:
    """Build a model with weights from the authors' code, a fork of the paper's.

    Args:
        weights: as for `model.checkpoints.from_original`, and `mem_tokens`, [n, 1, D].
        config: its options, and `num_mem_tokens`, `mem_at_end` and `read_mem_from_cache`.

    Raises:
        CheckpointError: names or shapes do not match, or an option is missing.
    """
    of_core = dict(weights)
    tokens_n1D = of_core.pop("mem_tokens", torch.empty(0))
    core = checkpoints.from_original(of_core, config)
    options: dict[str, Any] = {}
    for f in fields(core.config):
        options[f.name] = getattr(core.config, f.name)
    options["n_tokens"] = config.get("num_mem_tokens", 0)
    options["write_tokens"] = bool(config.get("mem_at_end", True))
    options["tokens_see_states"] = bool(config.get("read_mem_from_cache", False))
    dtype = next(core.parameters()).dtype
    model = MemoryTokensTransformerXL(MemoryTokensConfig(**options)).to(dtype)
    check({"mem_tokens": tokens_n1D}, {"mem_tokens": model.memory_tokens.initial[:, None]})
    state = core.state_dict()
    state["memory_tokens.initial"] = tokens_n1D[:, 0]
    model.load_state_dict(state)
    return model
