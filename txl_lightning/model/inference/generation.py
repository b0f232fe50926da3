"""Generation: tokens drawn one at a time from the distribution of a model (paper, appendix E)."""

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
from txl_lightning.model.transformer_xl import TransformerXL

MIN_TEMPERATURE = 1e-6
Seed: TypeAlias = int | torch.Generator


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
    prompt_BT: Int[Tensor, "B T"] | Sequence[Int[Tensor, " _T"]],
    n_tokens: int,
    *,
    top_k: int | None = 40,
    top_p: float = 1.0,
    temperature: float = 1.0,
    seed: Seed | Sequence[Seed] = 0,
    segment_len: int = 128,
    document_start: int | None = None,
    closed_documents: bool = False,
) -> Iterator[Int[Tensor, " B"]]:
    """Continue B prompts; yield one token per prompt as soon as it is drawn.

        for token_B in generate(model, prompt_BT, 500): ...

    A token is drawn from P(token | prompt, tokens drawn so far)^(1 / temperature), restricted to
    the likeliest tokens (`candidates`) and normalised again. The paper draws 500 or 1,000 tokens
    from the top 40, after a context of up to 512 tokens. The prompt is read in segments, and every
    drawn token is a segment of one
    token: the context is the memory, `mem_len` tokens in every layer, and absolute encodings give
    every drawn token the position of a segment's end. A TransformerXL is run with cached keys and
    values, where `can_cache` allows it.

    Prompts are one batch, of unequal lengths (`lengths_B`) where the model takes them. The others,
    such as a sliding window, read a batch for each length. Either way a prompt gets the tokens that
    it gets alone, if it is given a seed of its own.

    Args:
        model: with dropout off (`eval()`); for other lengths use `with_lengths`.
        prompt_BT: at least one token each, on the model's device; the drawn tokens are there too.
            Prompts of different lengths are a list of B tensors.
        n_tokens: number of tokens to draw.
        top_k: draw from this many of the likeliest tokens; None for all.
        top_p: draw from the fewest of the likeliest tokens whose probabilities add up to this
            (nucleus sampling, Holtzman et al. 2020); applied after `top_k`. 1 for all.
        temperature: below 1 favours the likelier tokens, above 1 flattens the distribution.
        seed: seed of all draws, which are made on CPU for every device, or a CPU generator; or a
            list of these, one for each prompt.
        segment_len: tokens of the prompt that are read at once.
        document_start: a token that begins a document, in prompts and among drawn tokens, for a
            model with `memory_reset=document`. Without it all that is drawn belongs to the last
            document of the prompt.
        closed_documents: whether `document_start` also ends a document (`<S>` at both ends of a
            sentence). Then it begins one only directly after the one that ends the document before.

    Raises:
        OptionError: an option is not allowed, a prompt is empty, or the model has no memory
            (`mem_len=0`), or cannot generate.
        RuntimeError: the model is in training mode.
    """
    lengths = [len(prompt) for prompt in prompt_BT]
    require(min(lengths, default=0) > 0, "prompt", lengths, "must have at least one token")
    require(n_tokens >= 0, "n_tokens", n_tokens, "must be an integer >= 0")
    require(segment_len >= 1, "segment_len", segment_len, "must be an integer >= 1")
    check_sampling(top_k, top_p, temperature)
    if can_cache(model):
        model = CachedTransformerXL(model)
    why = getattr(model, "cannot", {}).get("generation")
    require(why is None, "model", type(model).__name__, f"cannot generate: {why}")
    if isinstance(model, CachedTransformerXL | TransformerXL):
        no_memory = (
            "must be >= 1 to generate: a drawn token reads the ones before it from the memory"
        )
        require(model.config.mem_len >= 1, "mem_len", model.config.mem_len, no_memory)
    if getattr(model, "training", False):
        raise RuntimeError("the model is in training mode, with dropout on; call eval() on it")
    seeds = seed if isinstance(seed, Sequence) else [seed]
    allowed = f"must be one, or one for each of the {len(prompt_BT)} prompts"
    require(not isinstance(seed, Sequence) or len(seeds) == len(prompt_BT), "seed", seed, allowed)
    generators = [
        s if isinstance(s, torch.Generator) else torch.Generator().manual_seed(s) for s in seeds
    ]
    order = sorted(range(len(lengths)), key=lambda row: -lengths[row])
    together, groups = getattr(model, "takes_lengths", False), []
    for length in [None] if together else dict.fromkeys(lengths):
        rows = [row for row in order if length in (None, lengths[row])]
        groups.append(_Group(model, rows, document_start, closed_documents))
        groups[-1].begin([prompt_BT[row] for row in rows], segment_len)
    return _draw(groups, n_tokens, (top_k, top_p, temperature), generators)


def generate_all(
    model: GenerativeModel,
    prompt_BT: Int[Tensor, "B T"] | Sequence[Int[Tensor, " _T"]],
    n_tokens: int,
    **options: Any,
) -> Int[Tensor, "B n_tokens"]:
    """Return all drawn tokens at once; arguments and errors are those of `generate`."""
    tokens = [token_B[:, None] for token_B in generate(model, prompt_BT, n_tokens, **options)]
    return torch.cat([prompt_BT[0].new_empty(len(prompt_BT), 0), *tokens], dim=1)


@dataclass
class _Group:
    """Prompts that the model reads as a batch, and their memory.

    Args:
        model: model; it takes lengths, or all prompts have one length.
        rows: their places among all prompts.
        document_start, closed_documents: as for `generate`.
    """

    model: GenerativeModel
    rows: list[int]
    document_start: int | None = None
    closed_documents: bool = False
    memory: Any = None
    segments: list[tuple[Tensor, Tensor | None]] = field(
        default_factory=list
    )  # to read; how many tokens of each row
    last_G1: Tensor | None = None  # last tokens, with their marks

    def begin(self, prompts: Sequence[Tensor], segment_len: int) -> None:
        """Cut prompts, the longest first, into segments. All end in the last one: the shorter begin later."""
        prompts = [self._with_starts(prompt[None], None)[0] for prompt in prompts]
        self.last_G1 = torch.stack([prompt[-1:] for prompt in prompts])
        counts = [math.ceil(len(prompt) / segment_len) for prompt in prompts]
        for left in range(counts[0], 0, -1):
            begun = [
                (prompt, n - left) for prompt, n in zip(prompts, counts, strict=True) if n >= left
            ]
            parts = [prompt[n * segment_len :][:segment_len] for prompt, n in begun]
            lengths_G = torch.tensor([len(part) for part in parts], device=parts[0].device)
            is_ragged = len({*map(len, parts)}) > 1
            self.segments.append(
                (pad_sequence(parts, batch_first=True), lengths_G if is_ragged else None)
            )

    def add(self, token_G1: Tensor) -> None:
        """Add a drawn token of every row to what is to be read."""
        self.last_G1 = self._with_starts(token_G1, self.last_G1)
        self.segments = [(self.last_G1, None)]

    def read(self) -> Float[Tensor, "G V"]:
        """Read the segments that are left and return the log-probabilities of the next tokens."""
        n_begun = len(self.segments[0][0])
        for tokens_GT, lengths_G in self.segments:
            if len(tokens_GT) > n_begun:  # others begin: any stream's memory, reset
                rows_G = torch.arange(len(tokens_GT), device=tokens_GT.device)
                self.memory = self.memory.select(rows_G.clamp(max=n_begun - 1)).reset(
                    rows_G >= n_begun
                )
                n_begun = len(tokens_GT)
            options = {} if lengths_G is None else {"lengths_B": lengths_G}
            hidden_GTD, self.memory = self.model(tokens_GT, self.memory, **options)
        if lengths_G is not None:
            hidden_GTD = hidden_GTD.take_along_dim(lengths_G[:, None, None] - 1, dim=1)
        return self.model.log_probabilities(hidden_GTD[:, -1:])[:, 0]

    def _with_starts(self, tokens_GT: Tensor, last_G1: Tensor | None) -> Tensor:
        """Return the tokens with the first one of every document marked.

        Args:
            tokens_GT: tokens.
            last_G1: those before them; None for none.
        """
        if self.document_start is None:
            return tokens_GT
        begins_GT = tokens_GT == self.document_start
        if self.closed_documents:
            last_G1 = tokens_GT.new_full((len(tokens_GT), 1), -1) if last_G1 is None else last_G1
            begins_GT &= torch.cat([last_G1, tokens_GT[:, :-1]], dim=1) == self.document_start
        return torch.where(begins_GT, ~tokens_GT, tokens_GT)


def _draw(
    groups: list[_Group],
    n_tokens: int,
    sampling: tuple[int | None, float, float],
    generators: list[torch.Generator],
) -> Iterator[Tensor]:
    rows = [row for group in groups for row in group.rows]
    places_B = torch.tensor(rows).argsort() if rows != sorted(rows) else slice(None)
    for _ in range(n_tokens):
        with torch.no_grad():  # ends before the yield, or the caller would have no gradients either
            found = [group.read() for group in groups]
            log_probabilities_BV = (found[0] if len(found) == 1 else torch.cat(found))[places_B]
            token_B = _sample(log_probabilities_BV, *sampling, generators=generators)
        yield token_B
        for group in groups:
            group.add(token_B[group.rows if len(rows) > 1 else slice(None), None])


def check_sampling(top_k: int | None, top_p: float, temperature: float) -> None:
    """Validate the options of sampling.

    Raises:
        OptionError: one is not allowed; the message names it.
    """
    require(
        top_k is None or top_k >= 1,
        "top_k",
        top_k,
        "must be an integer >= 1, or null for all tokens",
    )
    require(0.0 < top_p <= 1.0, "top_p", top_p, "must be in (0, 1]; 1 keeps all tokens")
    allowed = f"must be a number >= {MIN_TEMPERATURE:g}; top_k=1 takes the likeliest token"
    require(MIN_TEMPERATURE <= temperature < math.inf, "temperature", temperature, allowed)


def candidates(
    log_probabilities_BV: Float[Tensor, "B V"], top_k: int | None, top_p: float, temperature: float
) -> tuple[Float[Tensor, "B k"], Int[Tensor, "B k"]]:
    """Return the tokens that may be drawn, likeliest first, and their normalised probabilities.

    In this order: p^(1/temperature); the `top_k` likeliest, normalised; of these, every token whose
    likelier tokens add up to less than `top_p`. The likeliest token is always kept; tokens cut off
    by `top_p` have 0.
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
    top_k: int | None,
    top_p: float,
    temperature: float,
    generators: list[torch.Generator],
) -> Int[Tensor, " B"]:
    """Draw one of the candidates for every stream, with one generator for all or one for each."""
    probabilities_Bk, tokens_Bk = candidates(log_probabilities_BV, top_k, top_p, temperature)
    parts = probabilities_Bk.cpu().chunk(len(generators))
    drawn = [
        torch.multinomial(part, 1, generator=own)
        for part, own in zip(parts, generators, strict=True)
    ]
    return tokens_Bk.gather(1, torch.cat(drawn).to(tokens_Bk.device))[:, 0]
