"""examples/pocketsphinx_words.py and examples/iglm.py: what of a window reaches their models."""

import pytest
import torch

from examples.iglm import OTHERS, RESIDUES, TAGS, Chains
from examples.pocketsphinx_words import Trigrams


def letters(*words: str) -> float:
    """The number of letters, as the log of a probability."""
    if "x" in words:
        return -100.0
    return -float(sum(map(len, words)))


def test_trigrams_get_two_words_and_leave_out_unknown_ones_with_their_bytes():
    model = Trigrams(letters)
    tokens, texts = model.encode(b"A x, dog's bone: a x!")
    assert tokens.tolist() == [0, 1, 2, 0]
    assert texts == ["a ", "dog's ", "bone ", "a "]
    window = torch.from_numpy(tokens)[None]
    losses, _ = model.score(
        window[:, :-1],
        window[:, 1:],
    )
    assert losses.tolist() == [
        [
            len("dog'sa"),
            len("bonedog'sa"),
            len("abonedog's"),
        ]
    ]


@pytest.mark.filterwarnings("default")
def test_a_chain_has_its_tags_and_nothing_of_the_chain_before():
    transformers = pytest.importorskip("transformers", reason="needs the extra hf")
    sizes = {
        "vocab_size": 33,
        "n_positions": 64,
        "n_embd": 32,
        "n_layer": 2,
        "n_head": 2,
    }
    network = transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes, bos_token_id=0)).eval()
    chains = Chains(network)
    numbers, _ = chains.encode(f"{RESIDUES}\nACD\n".encode())
    tokens = torch.from_numpy(numbers)
    for start, stop, first in ((3, 11, 3), (14, 22, 21), (16, 24, 21)):
        with torch.no_grad():
            loss, _ = chains.score(
                tokens[None, start:stop],
                torch.tensor([[7]]),
            )
            chain = torch.tensor(
                [
                    [
                        *TAGS,
                        *tokens[first:stop],
                    ]
                ]
            )
            logits = network(chain).logits[0, -1]
        logits[OTHERS] = -torch.inf
        assert loss.item() == pytest.approx(
            -float(logits.log_softmax(0)[7]),
            abs=1e-5,
        )
