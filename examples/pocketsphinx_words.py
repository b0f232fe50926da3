"""A model in `txl recl` that sees two words: the English trigrams in pocketsphinx 5.1.1.

Its RECL is 2:

    pip install pocketsphinx==5.1.1
    txl recl models=[py:examples.pocketsphinx_words.trigrams] data_path=text.txt first_context=1 step=1 max_context=6
"""

import math
import re
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

LEAST = -50.0  # ln P; an unknown word's is lower


class Trigrams:
    """P(word | the two words before it). Tokens are a text's known words in lower case; other words are left out.

    Args:
        log_probability: returns ln P for a word; the words before it follow, the nearest first.
    """

    def __init__(self, log_probability: Callable[..., float]) -> None:
        self.log_probability = log_probability
        self.numbers: dict[str, int] = {}

    def encode(self, text: bytes) -> tuple[np.ndarray, list[str]]:
        """Return the numbers of the known words, and the words."""
        tokens = []
        words = []
        for word in re.findall(r"[a-z']+", text.decode(errors="replace").lower()):
            if self.log_probability(word) > LEAST:
                tokens.append(self.numbers.setdefault(word, len(self.numbers)))
                words.append(f"{word} ")
        return np.array(tokens), words

    def score(
        self, tokens_BT: Tensor, targets_BT: Tensor, state: None = None
    ) -> tuple[Tensor, None]:
        """Return each target's loss in nats; with fewer targets than tokens, the first tokens are only context."""
        words = list(self.numbers)
        first = tokens_BT.shape[1] - targets_BT.shape[1]
        losses = torch.zeros(targets_BT.shape, dtype=torch.float64)
        for b, i in np.ndindex(losses.shape):
            before = tokens_BT[b, : first + i + 1].tolist()
            numbers = [
                int(targets_BT[b, i]),
                *before[:-3:-1],
            ]
            losses[b, i] = -self.log_probability(*(words[number] for number in numbers))
        return losses, None


def trigrams() -> Trigrams:
    """Return the model that the installed package has."""
    import pocketsphinx

    path = pocketsphinx.get_model_path("en-us/en-us.lm.bin")
    model = pocketsphinx.NGramModel(pocketsphinx.Config(), pocketsphinx.LogMath(), path)
    return Trigrams(
        lambda *words: model.prob(list(words)) * math.log(1.0001)
    )  # logarithms to this base
