"""Generation: tokens drawn one at a time from the distribution of a model (paper, appendix E)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from txl_lightning.errors import require
from txl_lightning.model.inference.cached import CachedTransformerXL, can_cache
from txl_lightning.model.transformer_xl import TransformerXL

MIN_TEMPERATURE = 1e-6


@runtime_checkable
class GenerativeModel(Protocol):
    """A language model with the distribution of the next token after every token."""

    def __call__(self, tokens_BT: Tensor, memory: Any = None, /) -> tuple[Tensor, Any]:
        """Return the hidden states of the tokens, and the state after the last."""
        ...

    def log_probabilities(self, hidden_BTD: Tensor, /) -> Tensor:
        """Return log P(next token | h) of every token of the vocabulary."""
        ...


def generate(
    model: GenerativeModel,
    prompt_BT: Int[Tensor, "B T"],
    n_tokens: int,
    *,
    top_k: int | None = 40,
    top_p: float = 1.0,
    temperature: float = 1.0,
    seed: int | torch.Generator = 0,
    segment_len: int = 128,
) -> Iterator[Int[Tensor, " B"]]:
    """Continue B prompts of one length; yield one token per prompt as soon as it is drawn.

        for token_B in generate(model, prompt_BT, 500): ...

    A token is drawn from P(token | prompt, tokens drawn so far)^(1 / temperature), restricted to the likeliest
    tokens (`candidates`) and normalised again. The paper draws 500 or 1,000 tokens from the top 40, after a
    context of up to 512 tokens. The prompt is read in segments, and every drawn token is a segment of one
    token: the context is the memory, `mem_len` tokens in every layer, and absolute encodings give every drawn
    token the position of a segment's end. A TransformerXL is run with cached keys and values,
    where `can_cache` allows it.

    Args:
        model: with dropout off (`eval()`); for other lengths use `with_lengths`.
        prompt_BT: at least one token, on the model's device; the drawn tokens are there too.
        n_tokens: number of tokens to draw.
        top_k: draw from this many of the likeliest tokens; None for all.
        top_p: draw from the fewest of the likeliest tokens whose probabilities add up to this (nucleus
            sampling, Holtzman et al. 2020); applied after `top_k`. 1 for all.
        temperature: below 1 favours the likelier tokens, above 1 flattens the distribution.
        seed: seed of the draws, which are made on CPU for every device; or a CPU generator.
        segment_len: tokens of the prompt that are read at once.

    Raises:
        OptionError: an option is not allowed, the prompt is empty, or the model has no memory (`mem_len=0`).
        RuntimeError: the model is in training mode.
    """
    require(prompt_BT.numel() > 0, "prompt", prompt_BT.tolist(), "must have at least one token")
    require(n_tokens >= 0, "n_tokens", n_tokens, "must be an integer >= 0")
    require(segment_len >= 1, "segment_len", segment_len, "must be an integer >= 1")
    check_sampling(top_k, top_p, temperature)
    if can_cache(model):
        model = CachedTransformerXL(model)
    if isinstance(model, CachedTransformerXL | TransformerXL):
        no_memory = "must be >= 1 to generate: a drawn token reads the ones before it from the memory"
        require(model.config.mem_len >= 1, "mem_len", model.config.mem_len, no_memory)
    if getattr(model, "training", False):
        raise RuntimeError("the model is in training mode, with dropout on; call eval() on it")
    generator = seed if isinstance(seed, torch.Generator) else torch.Generator().manual_seed(seed)
    return _draw(model, prompt_BT.split(segment_len, dim=1), n_tokens, (top_k, top_p, temperature), generator)


def generate_all(
    model: GenerativeModel, prompt_BT: Int[Tensor, "B T"], n_tokens: int, **options: Any
) -> Int[Tensor, "B n_tokens"]:
    """Return all drawn tokens at once; arguments and errors are those of `generate`."""
    tokens = [token_B[:, None] for token_B in generate(model, prompt_BT, n_tokens, **options)]
    return torch.cat([prompt_BT[:, :0], *tokens], dim=1)


def _draw(
    model: GenerativeModel,
    segments: tuple[Tensor, ...],
    n_tokens: int,
    sampling: tuple[int | None, float, float],
    generator: torch.Generator,
) -> Iterator[Tensor]:
    memory = None
    for _ in range(n_tokens):
        with torch.no_grad():  # ends before the yield, or the caller would have no gradients either
            for tokens_BT in segments:
                hidden_BTD, memory = model(tokens_BT, memory)
            log_probabilities_BV = model.log_probabilities(hidden_BTD[:, -1:])[:, 0]
            token_B = _sample(log_probabilities_BV, *sampling, generator=generator)
        yield token_B
        segments = (token_B[:, None],)


def check_sampling(top_k: int | None, top_p: float, temperature: float) -> None:
    """Validate the options of sampling.

    Raises:
        OptionError: one is not allowed; the message names it.
    """
    require(top_k is None or top_k >= 1, "top_k", top_k, "must be an integer >= 1, or null for all tokens")
    require(0.0 < top_p <= 1.0, "top_p", top_p, "must be in (0, 1]; 1 keeps all tokens")
    in_range = MIN_TEMPERATURE <= temperature < math.inf
    allowed = f"must be a number >= {MIN_TEMPERATURE:g}; top_k=1 takes the likeliest token"
    require(in_range, "temperature", temperature, allowed)


def candidates(
    log_probabilities_BV: Float[Tensor, "B V"], top_k: int | None, top_p: float, temperature: float
) -> tuple[Float[Tensor, "B k"], Int[Tensor, "B k"]]:
    """Return the tokens that may be drawn, likeliest first, and their normalised probabilities.

    In this order: p^(1/temperature); the `top_k` likeliest, normalised; of these, every token whose likelier
    tokens add up to less than `top_p`. The likeliest token is always kept; tokens cut off by `top_p` have 0.
    """
    k = min(top_k or log_probabilities_BV.shape[1], log_probabilities_BV.shape[1])
    likeliest, tokens_Bk = log_probabilities_BV.float().topk(k, dim=-1)
    # The largest becomes 0, so that a low temperature cannot overflow.
    probabilities = ((likeliest - likeliest[:, :1]) / temperature).softmax(dim=-1)
    if top_p < 1.0:
        before = probabilities.cumsum(dim=-1) - probabilities
        probabilities = probabilities.where(before < top_p, 0.0)
    return probabilities / probabilities.sum(dim=-1, keepdim=True), tokens_Bk


def _sample(
    log_probabilities_BV: Float[Tensor, "B V"],
    top_k: int | None,
    top_p: float,
    temperature: float,
    generator: torch.Generator,
) -> Int[Tensor, " B"]:
    """Draw one of the candidates for every stream."""
    probabilities_Bk, tokens_Bk = candidates(log_probabilities_BV, top_k, top_p, temperature)
    place_B1 = torch.multinomial(probabilities_Bk.cpu(), 1, generator=generator).to(tokens_Bk.device)
    return tokens_Bk.gather(1, place_B1)[:, 0]
