"""Generated text whose dependencies are known: tokens that repeat the one a known distance before (`data=recall`)."""

from __future__ import annotations

import string
from dataclasses import dataclass
from math import log

import numpy as np

from txl_lightning.config.schemas import RecallData
from txl_lightning.data.sources import Source, cut_file, generated, open_vocabulary, register_corpus
from txl_lightning.errors import require, require_memory

CHARACTERS = string.digits + string.ascii_letters + string.punctuation


@dataclass(frozen=True)
class Recall:
    """Text of random symbols, a share of which repeats the symbol d tokens before.

        x_t = x_{t-d}    with probability p
        x_t is drawn uniformly from V symbols    otherwise

    One distance gives one such chain. K distances have an alphabet of V symbols each, and

    - without `block_len`, K chains take turns: token t belongs to chain t mod K and repeats the one d_k before. A
      distance that is listed n times has a share n / K of the tokens. Every d_k is a multiple of K, so that the token
      d_k before belongs to the same chain.
    - with `block_len`, a block of one distance follows another: at every token a block ends with probability
      λ = 1 / block_len. The next block draws another distance, and its alphabet says which. Tokens repeat those of
      their own block alone; its first d_k tokens are drawn.

    Args:
        distances: d_1, …, d_K, in tokens.
        repeats: p, the share of tokens that repeat, in (0, 1).
        symbols: V, at least 2.
        block_len: mean length of a block, above 1; None for chains that take turns (λ = 0).
    """

    distances: tuple[int, ...]
    repeats: float
    symbols: int
    block_len: float | None = None

    @property
    def match(self) -> float:
        """Probability q = p + (1 - p) / V that a token equals the one d before, if that is known."""
        return self.repeats + (1 - self.repeats) / self.symbols

    @property
    def hazard(self) -> float:
        """Probability λ that a block ends before a token; 0 without blocks."""
        return 1 / self.block_len if self.block_len else 0.0

    def entropy(self, context: int) -> float:
        """Return the entropy H(c) of a token after exactly c >= 1 tokens of context, in nats, without error.

            h    = -q ln q - (1 - q) ln((1 - q) / (V - 1))
            H(c) = H_λ + λ ln((K - 1) V) + (1 - λ) 1/K Σ_k [ln V - S_k(c) (ln V - h)]
            S_k  = (1 - λ)^(d_k - 1) if c >= d_k, else 0

        h is the entropy of a token whose source, the token d before, is seen. Without the source a token is uniform:
        it depends only on tokens that are a multiple of d away, and given the source on none beyond it. S_k(c) is the
        probability that the source is seen and of the same block. H_λ = -λ ln λ - (1 - λ) ln(1 - λ) is the entropy of
        whether a new block begins, which the alphabets tell. Without blocks, with p = 0.9, V = 8 and one distance, H
        is ln 8 = 2.08 below c = d and 0.47 from there on.

        Args:
            context: c, in tokens.
        """
        q = self.match
        end = self.hazard
        drawn = log(self.symbols)
        wrong = log((1 - q) / (self.symbols - 1))
        repeated = -q * log(q) - (1 - q) * wrong
        seen = 0.0
        for distance in self.distances:
            if context >= distance:
                seen += (1 - end) ** (distance - 1) / len(self.distances)
        within = drawn - seen * (drawn - repeated)
        if not end:
            return within
        new = -log(end) + log((len(self.distances) - 1) * self.symbols)
        return end * new + (1 - end) * (within - log(1 - end))

    def text(self, n_tokens: int, seed: int) -> str:
        """Return a text of ASCII characters, one a token; alphabet k has the characters kV to kV + V - 1.

        Args:
            n_tokens: length.
            seed: seed; the text is the same with every version of NumPy.
        """
        random = np.random.RandomState(seed)
        K = len(self.distances)
        if self.block_len is None:
            tokens = self._lanes(random, n_tokens)
        else:
            parts = []
            n_left = n_tokens
            k = random.randint(K)
            while n_left > 0:
                length = random.geometric(self.hazard)
                parts.append(k * self.symbols + self._chain(random, length, self.distances[k]))
                k = (k + 1 + random.randint(K - 1)) % K
                n_left -= length
            tokens = np.concatenate(parts)
        letters = np.array(list(CHARACTERS))[tokens[:n_tokens]]
        return letters.astype("S").tobytes().decode()

    def _lanes(self, random: np.random.RandomState, n_tokens: int) -> np.ndarray:
        """Return the numbers of chains that take turns."""
        K = len(self.distances)
        rows = -(-n_tokens // K)
        chains = []
        for k, distance in enumerate(self.distances):
            chains.append(k * self.symbols + self._chain(random, rows, distance // K))
        return np.stack(chains, axis=1).ravel()

    def _chain(self, random: np.random.RandomState, n_tokens: int, distance: int) -> np.ndarray:
        """Return the numbers of one chain: row by row, each column repeats its last drawn number."""
        rows = -(-n_tokens // distance)
        drawn = random.randint(self.symbols, size=(rows, distance))
        repeats = random.random_sample((rows, distance)) < self.repeats
        row_if_drawn = np.where(repeats, 0, np.arange(rows)[:, None])
        last_drawn = np.maximum.accumulate(row_if_drawn, axis=0)
        return np.take_along_axis(drawn, last_drawn, axis=0).ravel()[:n_tokens]


@register_corpus("recall", "byte", "char", options=RecallData)
def recall(config: RecallData) -> Source:
    """Text of `Recall`, written once into `data.cache_dir` and cut like a file: 90 %, 5 % and 5 %.

    Raises:
        OptionError: an option is not possible.
        UserError: the text cannot be stored.
    """
    distances = config.distance if isinstance(config.distance, list) else [config.distance]
    block_len = config.block_len
    K = len(distances)
    is_good = K > 0 and all(isinstance(distance, int) and distance >= 1 for distance in distances)
    require(is_good, "data.distance", config.distance, "must be an integer >= 1, or a list of such")
    if block_len is None:
        is_multiple = all(distance % K == 0 for distance in distances)
        allowed = f"must be multiples of {K}, their number, or need data.block_len"
        require(is_multiple, "data.distance", config.distance, allowed)
    else:
        allowed = "must be null, or above 1 with at least two distances"
        require(block_len > 1 and K > 1, "data.block_len", block_len, allowed)
    require(0 < config.repeats < 1, "data.repeats", config.repeats, "must be above 0 and below 1")
    most = len(CHARACTERS) // K
    allowed = f"must be in 2 … {most} with {K} of data.distance"
    require(2 <= config.symbols <= most, "data.symbols", config.symbols, allowed)
    require(config.n_tokens >= 1, "data.n_tokens", config.n_tokens, "must be an integer >= 1")
    require_memory(16 * config.n_tokens, "data.n_tokens", config.n_tokens)
    text = Recall(tuple(distances), config.repeats, config.symbols, block_len)
    path = generated(config, Recall.text, text, config.n_tokens, config.text_seed)
    return Source("recall", cut_file(path), open_vocabulary(config))
