"""Generation: tokens drawn one at a time from a model's distribution (paper, appendix E)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from txl_lightning.errors import require
from txl_lightning.model.inference.cached import CachedTransformerXL, can_cache
from txl_lightning.model.shapes import Counts, Tokens
from txl_lightning.model.transformer_xl import TransformerXL

MIN_TEMPERATURE = 1e-6
Seed: TypeAlias = int | torch.Generator


@runtime_checkable
class GenerativeModel(Protocol):
    """A language model with the next token's distribution after every token."""

    def __call__(self, tokens_BT: Tensor, memory: Any = None, /) -> tuple[Tensor, Any]:
        """Return the tokens' hidden states, and the state after the last."""
        ...

    def log_probabilities(self, hidden_BTD: Tensor, /) -> Tensor:
        """Return log P(next token | h) for every token in the vocabulary."""
        ...


def generate(
    model: GenerativeModel,
    prompt_BT: Tokens | Sequence[Int[Tensor, " _T"]],
    n_tokens: int,
    *,
    top_k: int | None = 40,
    top_p: float = 1.0,
    temperature: float = 1.0,
    seed: Seed | Sequence[Seed] = 0,
    segment_len: int = 128,
    document_start: int | None = None,
    closed_documents: bool = False,
) -> Iterator[Counts]:
    """Continue B prompts; yield one token per prompt as soon as it is drawn.

        for token_B in generate(model, prompt_BT, 500): ...

    A token is drawn from P(token | prompt, tokens drawn so far)^(1 / temperature), restricted to the likeliest tokens
    (`candidates`) and normalised again. The paper draws 500 or 1,000 tokens from the top 40, after up to 512 context
    tokens. The prompt is read in segments, and every drawn token is a segment: the context is the memory, `mem_len`
    tokens in every layer, and absolute encodings give every drawn token the position at a segment's end. A
    TransformerXL runs with cached keys and values where `can_cache` allows it.

    Prompts are one batch, with unequal lengths (`lengths_B`) where the model takes them. A prompt gets the same tokens
    as alone, if it is given a separate seed.

    Args:
        model: with dropout off (`eval()`); for other lengths use `with_lengths`.
        prompt_BT: at least one token each, on the model's device; the drawn tokens are there too. Prompts with
            different lengths are a list of B tensors.
        n_tokens: number of tokens to draw.
        top_k: draw from this many likeliest tokens; None for all.
        top_p: draw from the fewest likeliest tokens whose probabilities add up to this (nucleus sampling, Holtzman et
            al. 2020); applied after `top_k`. 1 for all.
        temperature: below 1 favours the likelier tokens, above 1 flattens the distribution.
        seed: seed for all draws, or a CPU generator: draws are made on the CPU for every device; or a list with one for
            each prompt.
        segment_len: prompt tokens that are read at once.
        document_start: a token that begins a document, in prompts and among drawn tokens, for a model with
            `memory_reset=document`. Without it everything drawn belongs to the prompt's last document.
        closed_documents: whether `document_start` also ends a document (`<S>` at both ends of a sentence). Then it
            begins one only directly after the one that ends the document before.

    Raises:
        OptionError: an option is not allowed, a prompt is empty, the prompts have unequal lengths and the model takes
            one, or it has no memory (`mem_len=0`), or cannot generate.
        RuntimeError: the model is in training mode.
    """
    lengths = [len(prompt) for prompt in prompt_BT]
    require(min(lengths, default=0) > 0, "prompt", lengths, "must have at least one token")
    require(n_tokens >= 0, "n_tokens", n_tokens, "must be an integer >= 0")
    require(segment_len >= 1, "segment_len", segment_len, "must be an integer >= 1")
    sampling = Sampling(top_k, top_p, temperature)
    sampling.check()
    generators = _generators(seed, len(lengths))
    model = _generating(model)
    takes_lengths = getattr(model, "takes_lengths", False)
    allowed = f"must have one length: {type(model).__name__} takes streams of one length"
    require(takes_lengths or len(set(lengths)) == 1, "prompt", lengths, allowed)
    longest_first = sorted(range(len(lengths)), key=lambda row: -lengths[row])
    reader = _Reader(model, document_start, closed_documents)
    reader.begin([prompt_BT[row] for row in longest_first], segment_len)
    return _draw(reader, longest_first, n_tokens, sampling, generators)


def _generating(model: Any) -> Any:
    """Return the model that generates, cached where that is possible.

    Raises:
        OptionError: the model has no memory, or cannot generate.
        RuntimeError: it is in training mode.
    """
    reason = getattr(model, "cannot", {}).get("generation")
    require(reason is None, "model", type(model).__name__, f"cannot generate: {reason}")
    if isinstance(model, CachedTransformerXL | TransformerXL):
        mem_len = model.config.mem_len
        needed = "must be >= 1 to generate: a drawn token reads the ones before it from the memory"
        require(mem_len >= 1, "mem_len", mem_len, needed)
    if can_cache(model):
        return CachedTransformerXL(model)  # it refuses dropout itself
    if getattr(model, "training", False):
        raise RuntimeError("the model is in training mode, with dropout on; call eval() on it")
    return model


def _generators(seed: Seed | Sequence[Seed], n_prompts: int) -> list[torch.Generator]:
    """Return one generator for all prompts, or one for each."""
    seeds: list[Any] = [seed]
    if isinstance(seed, Sequence):
        seeds = list(seed)
        allowed = f"must be one, or one for each of the {n_prompts} prompts"
        require(len(seeds) == n_prompts, "seed", seed, allowed)
    generators = []
    for value in seeds:
        if not isinstance(value, torch.Generator):
            value = torch.Generator().manual_seed(value)
        generators.append(value)
    return generators


def generate_all(
    model: GenerativeModel,
    prompt_BT: Tokens | Sequence[Int[Tensor, " _T"]],
    n_tokens: int,
    **options: Any,
) -> Int[Tensor, "B n_tokens"]:
    """Return all drawn tokens at once; takes the same arguments as `generate`."""
    tokens = [token_B[:, None] for token_B in generate(model, prompt_BT, n_tokens, **options)]
    return torch.cat([prompt_BT[0].new_empty(len(prompt_BT), 0), *tokens], dim=1)


@dataclass(frozen=True)
class Sampling:
    """How a token is drawn; see `generate`."""

    top_k: int | None
    top_p: float
    temperature: float

    def check(self) -> None:
        """Validate the options.

        Raises:
            OptionError: one is not allowed; the message names it.
        """
        allowed = "must be an integer >= 1, or null for all tokens"
        require(self.top_k is None or self.top_k >= 1, "top_k", self.top_k, allowed)
        require(
            0.0 < self.top_p <= 1.0, "top_p", self.top_p, "must be in (0, 1]; 1 keeps all tokens"
        )
        allowed = f"must be a number >= {MIN_TEMPERATURE:g}; top_k=1 takes the likeliest token"
        fits = MIN_TEMPERATURE <= self.temperature < math.inf
        require(fits, "temperature", self.temperature, allowed)


@dataclass
class _Reader:
    """Prompts, and the tokens drawn after them, that the model reads as a batch, and their memory.

    Args:
        model: model; it takes lengths, or all prompts have one length.
        document_start, closed_documents: as for `generate`.
        segments: what is to be read, and how many tokens in each row, None for all.
        last_G1: last tokens, with their marks.
    """

    model: GenerativeModel
    document_start: int | None = None
    closed_documents: bool = False
    memory: Any = None
    segments: list[tuple[Tensor, Tensor | None]] = field(default_factory=list)
    last_G1: Tensor | None = None

    def begin(self, prompts: Sequence[Tensor], segment_len: int) -> None:
        """Cut prompts, the longest first, into segments.

        All prompts end in the last segment; one with fewer segments begins at a later one.
        """
        pieces = []
        for prompt in prompts:
            marked = self._with_starts(prompt[None], None)[0]
            pieces.append(marked.split(segment_len))
        self.last_G1 = torch.stack([parts[-1][-1:] for parts in pieces])
        for n_left in range(len(pieces[0]), 0, -1):
            begun = [parts[-n_left] for parts in pieces if len(parts) >= n_left]
            lengths = [len(part) for part in begun]
            lengths_G = None
            if len(set(lengths)) > 1:
                lengths_G = torch.tensor(lengths, device=begun[0].device)
            self.segments.append((pad_sequence(begun, batch_first=True), lengths_G))

    def add(self, token_G1: Tensor) -> None:
        """Add every row's drawn token to what is to be read."""
        self.last_G1 = self._with_starts(token_G1, self.last_G1)
        self.segments = [(self.last_G1, None)]

    def read(self) -> Tensor:
        """Read the segments that are left and return the next tokens' log-probabilities."""
        n_begun = len(self.segments[0][0])
        for tokens_GT, lengths_G in self.segments:
            if len(tokens_GT) > n_begun:
                # The rows that begin now get a copy of some stream's memory, reset.
                rows_G = torch.arange(len(tokens_GT), device=tokens_GT.device)
                memory = self.memory.select(rows_G.clamp(max=n_begun - 1))
                self.memory = memory.reset(rows_G >= n_begun)
                n_begun = len(tokens_GT)
            if lengths_G is None:
                hidden_GTD, self.memory = self.model(tokens_GT, self.memory)
                last_G1D = hidden_GTD[:, -1:]
            else:
                model: Any = self.model
                hidden_GTD, self.memory = model(tokens_GT, self.memory, lengths_B=lengths_G)
                last_G1D = hidden_GTD.take_along_dim(lengths_G[:, None, None] - 1, dim=1)
        return self.model.log_probabilities(last_G1D)[:, 0]

    def _with_starts(self, tokens_GT: Tensor, last_G1: Tensor | None) -> Tensor:
        """Return the tokens with every document's first one marked.

        Args:
            tokens_GT: tokens.
            last_G1: tokens before them; None for none.
        """
        if self.document_start is None:
            return tokens_GT
        begins_GT = tokens_GT == self.document_start
        if self.closed_documents:
            if last_G1 is None:
                last_G1 = tokens_GT.new_full((len(tokens_GT), 1), -1)
            before_GT = torch.cat([last_G1, tokens_GT[:, :-1]], dim=1)
            begins_GT = begins_GT & (before_GT == self.document_start)
        return torch.where(begins_GT, ~tokens_GT, tokens_GT)


def _draw(
    reader: _Reader,
    order: list[int],
    n_tokens: int,
    sampling: Sampling,
    generators: list[torch.Generator],
) -> Iterator[Tensor]:
    """Yield a token per prompt, in the prompts' order; the reader's row n is prompt `order[n]`."""
    places_B = torch.tensor(order).argsort()
    is_in_order = order == sorted(order)
    for _ in range(n_tokens):
        with torch.no_grad():  # ends before the yield, or the caller would have no gradients either
            log_probabilities_BV = reader.read()
            if not is_in_order:
                log_probabilities_BV = log_probabilities_BV[places_B]
            token_B = _sample(log_probabilities_BV, sampling, generators)
        yield token_B
        drawn_B = token_B if is_in_order else token_B[order]
        reader.add(drawn_B[:, None])


def candidates(
    log_probabilities_BV: Float[Tensor, "B V"], top_k: int | None, top_p: float, temperature: float
) -> tuple[Float[Tensor, "B k"], Int[Tensor, "B k"]]:
    """Return the tokens that may be drawn, likeliest first, and their normalised probabilities.

    In this order: p^(1/temperature); the `top_k` likeliest, normalised; among these, every token whose likelier tokens
    add up to less than `top_p`. The likeliest token is always kept; tokens cut off by `top_p` have 0.
    """
    k = min(top_k or log_probabilities_BV.shape[1], log_probabilities_BV.shape[1])
    likeliest, tokens_Bk = log_probabilities_BV.float().topk(k, dim=-1)
    # The largest becomes 0, so that a low temperature cannot overflow.
    probabilities = ((likeliest - likeliest[:, :1]) / temperature).softmax(dim=-1)
    if top_p < 1.0:
        before = probabilities.cumsum(dim=-1) - probabilities
        probabilities = probabilities.where(
            before < max(top_p, torch.finfo(before.dtype).tiny), 0.0
        )
    return probabilities / probabilities.sum(dim=-1, keepdim=True), tokens_Bk


def _sample(
    log_probabilities_BV: Float[Tensor, "B V"],
    sampling: Sampling,
    generators: list[torch.Generator],
) -> Counts:
    """Draw one candidate for every stream, with one generator for all or one for each."""
    probabilities_Bk, tokens_Bk = candidates(
        log_probabilities_BV, sampling.top_k, sampling.top_p, sampling.temperature
    )
    drawn = []
    parts = probabilities_Bk.cpu().chunk(len(generators))
    for part, generator in zip(parts, generators, strict=True):
        drawn.append(torch.multinomial(part, 1, generator=generator))
    chosen_B1 = torch.cat(drawn).to(tokens_Bk.device)
    return tokens_Bk.gather(1, chosen_B1)[:, 0]
