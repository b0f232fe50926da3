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
    """Text with random symbols: a share of them repeats the symbol d tokens before.

        x_t = x_{t-d}    with probability p
        x_t is drawn uniformly from V symbols    otherwise

    One distance gives one such chain. K distances give K chains that take turns, each with a separate alphabet of V
    symbols: token t belongs to chain t mod K and repeats the one d_k before. Every d_k is a multiple of K, so the token
    d_k before belongs to the same chain. A distance listed n times covers n / K of the tokens.

    Args:
        distances: d_1, …, d_K, in tokens.
        repeats: p, the share of tokens that repeat, in (0, 1).
        symbols: V, at least 2.
    """

    distances: tuple[int, ...]
    repeats: float
    symbols: int

    @property
    def match(self) -> float:
        """Probability q = p + (1 - p) / V that a token equals the one d before, if that is known."""
        return self.repeats + (1 - self.repeats) / self.symbols

    def entropy(self, context: int) -> float:
        """Return a token's entropy H(c) after exactly c >= 1 context tokens, in nats, without error.

            h    = -q ln q - (1 - q) ln((1 - q) / (V - 1))
            H(c) = 1/K Σ_k (h if c >= d_k else ln V)

        h is a token's entropy when its source, the token d before, is seen. Without the source a token is uniform: it
        depends only on tokens at multiples of d, and given the source on none beyond it. With p = 0.9, V = 8 and one
        distance, H is ln 8 = 2.08 below c = d and 0.47 from there on.

        Args:
            context: c, in tokens.
        """
        q = self.match
        wrong = log((1 - q) / (self.symbols - 1))
        total = 0.0
        for distance in self.distances:
            if context >= distance:
                total += -q * log(q) - (1 - q) * wrong
            else:
                total += log(self.symbols)
        return total / len(self.distances)

    def text(self, n_tokens: int, seed: int) -> str:
        """Return a text in ASCII characters, one per token; alphabet k has the characters kV to kV + V - 1.

        Args:
            n_tokens: length.
            seed: seed; the text is the same with every NumPy version.
        """
        random = np.random.RandomState(seed)
        K = len(self.distances)
        n_of_chain = -(-n_tokens // K)
        chains = []
        for k, distance in enumerate(self.distances):
            chain = self._chain(random, n_of_chain, distance // K)
            chains.append(k * self.symbols + chain)
        tokens = np.stack(chains, axis=1).ravel()[:n_tokens]
        letters = np.array(list(CHARACTERS))[tokens]
        return letters.astype("S").tobytes().decode()

    def _chain(self, random: np.random.RandomState, n_tokens: int, distance: int) -> np.ndarray:
        """Return one chain's numbers: row by row, each column repeats its last drawn number."""
        rows = -(-n_tokens // distance)
        drawn = random.randint(self.symbols, size=(rows, distance))
        repeats = random.random_sample((rows, distance)) < self.repeats
        row_if_drawn = np.where(
            repeats,
            0,
            np.arange(rows)[:, None],
        )
        last_drawn = np.maximum.accumulate(row_if_drawn, axis=0)
        return np.take_along_axis(drawn, last_drawn, axis=0).ravel()[:n_tokens]


@register_corpus("recall", "byte", "char", options=RecallData)
def recall(config: RecallData) -> Source:
    """Text from `Recall`, written once into `data.cache_dir` and cut like a file: 90 %, 5 % and 5 %.

    Raises:
        OptionError: an option is not possible.
        UserError: the text cannot be stored.
    """
    distances = config.distance if isinstance(config.distance, list) else [config.distance]
    K = len(distances)
    require(
        K > 0
        and all(
            isinstance(
                distance,
                int,
            )
            and distance >= 1
            for distance in distances
        ),
        "data.distance",
        config.distance,
        "must be an integer >= 1, or a list of such",
    )
    require(
        all(distance % K == 0 for distance in distances),
        "data.distance",
        config.distance,
        f"must be multiples of {K}, their number",
    )
    require(0 < config.repeats < 1, "data.repeats", config.repeats, "must be above 0 and below 1")
    most = len(CHARACTERS) // K
    require(
        2 <= config.symbols <= most,
        "data.symbols",
        config.symbols,
        f"must be in 2 … {most} with {K} of data.distance",
    )
    require_memory(16 * config.n_tokens, "data.n_tokens", config.n_tokens)
    text = Recall(tuple(distances), config.repeats, config.symbols)
    path = generated(config, Recall.text, text, config.n_tokens, config.text_seed)
    return Source("recall", cut_file(path), open_vocabulary(config))
