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
        q, end, of_drawn = self.match, self.hazard, log(self.symbols)
        of_repeated = -q * log(q) - (1 - q) * log((1 - q) / (self.symbols - 1))
        seen = [(1 - end) ** (d - 1) if context >= d else 0.0 for d in self.distances]
        within = of_drawn - sum(seen) / len(seen) * (of_drawn - of_repeated)
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
        random, K, V = np.random.RandomState(seed), len(self.distances), self.symbols
        if self.block_len is None:
            rows = -(-n_tokens // K)
            chains = [k * V + self._chain(random, rows, d // K) for k, d in enumerate(self.distances)]
            tokens = np.stack(chains, axis=1).ravel()
        else:
            parts, n_left, k = [], n_tokens, random.randint(K)
            while n_left > 0:
                parts.append(k * V + self._chain(random, length := random.geometric(self.hazard), self.distances[k]))
                k, n_left = (k + 1 + random.randint(K - 1)) % K, n_left - length
            tokens = np.concatenate(parts)
        return np.array(list(CHARACTERS))[tokens[:n_tokens]].astype("S").tobytes().decode()

    def _chain(self, random: np.random.RandomState, n_tokens: int, distance: int) -> np.ndarray:
        """Return the numbers of one chain: row by row, each column repeats its last drawn number."""
        shape = rows, _ = -(-n_tokens // distance), distance
        drawn, repeats = random.randint(self.symbols, size=shape), random.random_sample(shape) < self.repeats
        last_drawn = np.maximum.accumulate(np.where(repeats, 0, np.arange(rows)[:, None]), axis=0)
        return np.take_along_axis(drawn, last_drawn, axis=0).ravel()[:n_tokens]


@register_corpus("recall", "byte", "char", options=RecallData)
def recall(config: RecallData) -> Source:
    """Text of `Recall`, written once into `data.cache_dir` and cut like a file: 90 %, 5 % and 5 %.

    Raises:
        OptionError: an option is not possible.
        UserError: the text cannot be stored.
    """
    given, block_len, p, V = config.distance, config.block_len, config.repeats, config.symbols
    distances = tuple(given if isinstance(given, list) else [given])
    K, whole = len(distances), all(isinstance(d, int) and d >= 1 for d in distances)
    require(K > 0 and whole, "data.distance", given, "must be an integer >= 1, or a list of such")
    valid = block_len is None or (block_len > 1 and K > 1)
    require(valid, "data.block_len", block_len, "must be null, or above 1 with at least two distances")
    multiples = block_len is not None or all(d % K == 0 for d in distances)
    require(multiples, "data.distance", given, f"must be multiples of {K}, their number, or need data.block_len")
    require(0 < p < 1, "data.repeats", p, "must be above 0 and below 1")
    most = len(CHARACTERS) // K
    require(2 <= V <= most, "data.symbols", V, f"must be in 2 … {most} with {K} of data.distance")
    require(config.n_tokens >= 1, "data.n_tokens", config.n_tokens, "must be an integer >= 1")
    require_memory(16 * config.n_tokens, "data.n_tokens", config.n_tokens)
    path = generated(config, Recall.text, Recall(distances, p, V, block_len), config.n_tokens, config.text_seed)
    return Source("recall", cut_file(path), open_vocabulary(config))
