"""examples/pocketsphinx_words.py and examples/iglm.py: what of a window reaches their models."""

import numpy as np
import pytest
import torch

from examples.iglm import OTHERS, RESIDUES, TAGS, Chains
from examples.pocketsphinx_words import Trigrams


def test_trigrams_get_two_words_and_leave_out_unknown_ones_with_their_bytes() -> None:
    model = Trigrams(lambda *words: -100.0 if "x" in words else -float(len("".join(words))))
    tokens, sizes = model.encode(b"A x, dog's bone: a x!")
    assert (tokens.tolist(), sizes.tolist()) == ([0, 1, 2, 0], [5, 6, 6, 4])
    windows = torch.from_numpy(tokens)[None]
    losses, _ = model.score(windows[:, :-1], windows[:, 1:])
    assert losses.tolist() == [[len("dog'sa"), len("bonedog'sa"), len("abonedog's")]]
    assert model.score(windows[:, :-1], windows[:, -1:])[0].tolist() == [[len("abonedog's")]]


@pytest.mark.filterwarnings("default")
def test_a_chain_has_its_tags_and_nothing_of_the_chain_before() -> None:
    transformers = pytest.importorskip("transformers", reason="needs the extra hf")
    config = transformers.GPT2Config(
        vocab_size=33, n_positions=64, n_embd=32, n_layer=2, n_head=2, bos_token_id=0
    )
    network = transformers.GPT2LMHeadModel(config).eval()
    tokens, sizes = Chains(network).encode(f"{RESIDUES}\nACD\n".encode())
    assert sizes.tolist() == [1] * 25
    windows = torch.from_numpy(np.stack([tokens[3:11], tokens[14:22], tokens[16:24]]))
    with torch.no_grad():
        found, _ = Chains(network).score(windows, torch.full((3, 1), 7))
        for loss, own in zip(
            found[:, 0], (tokens[3:11], tokens[21:22], tokens[21:24]), strict=True
        ):
            logits = network(torch.tensor([[*TAGS, *own]])).logits[0, -1]
            logits[OTHERS] = -torch.inf
            torch.testing.assert_close(loss, -logits.log_softmax(0)[7], rtol=0, atol=1e-5)
