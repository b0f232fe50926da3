"""examples/textgenrnn.py: its network beside the formulas of Keras, and the bytes of its characters."""

import numpy as np
import torch

from examples.textgenrnn import TextGenRNN

SIZES, N, VOCABULARY = (5, 3, 3), 3, {"a": 1, "b": 2, "é": 3}
DRAWN = np.random.default_rng(0)


def drawn(*shape: int) -> np.ndarray:
    return DRAWN.normal(size=shape).astype(np.float32)


def weights() -> dict[str, np.ndarray]:
    given = {
        "embedding/embeddings": drawn(4, SIZES[0]),
        "attention/attention_W": drawn(sum(SIZES), 1),
    }
    for name, n_in in zip(("rnn_1", "rnn_2"), SIZES, strict=False):
        given |= {f"{name}/kernel": drawn(n_in, 4 * N), f"{name}/recurrent_kernel": drawn(N, 4 * N)}
        given[f"{name}/bias"] = drawn(8 * N)
    return given | {"output/kernel": drawn(sum(SIZES), 4), "output/bias": drawn(4)}


def lstm(
    x_TD: np.ndarray, kernel: np.ndarray, recurrent: np.ndarray, bias: np.ndarray
) -> np.ndarray:
    """Keras reads CuDNN's matrices so: kernels of gates transposed and reshaped by columns, both biases summed."""
    gates = [k.T.reshape(k.shape, order="F") for k in np.hsplit(kernel, 4)]
    recurrent_gates = [k.T for k in np.hsplit(recurrent, 4)]
    h, c, outputs = np.zeros(N), np.zeros(N), []
    for x_D in x_TD:
        biases = np.split(bias[: 4 * N] + bias[4 * N :], 4)
        i, f, g, o = (x_D @ gates[k] + h @ recurrent_gates[k] + biases[k] for k in range(4))
        i, f, o = (1 / (1 + np.exp(-z)) for z in (i, f, o))
        c = f * c + i * np.tanh(g)
        h = o * np.tanh(c)
        outputs.append(h)
    return np.array(outputs)


def test_losses_are_those_of_the_keras_network() -> None:
    given, text = weights(), DRAWN.integers(1, 4, size=13)
    with torch.no_grad():
        tokens, targets = torch.from_numpy(text[None, :-1]), torch.from_numpy(text[None, -3:])
        nll, _ = TextGenRNN(given, VOCABULARY).score(tokens, targets)
    for n, found in zip((10, 11, 12), nll[0].tolist(), strict=True):
        window = np.concatenate([np.zeros(40 - n, int), text[:n]])
        seen = [given["embedding/embeddings"][window]]
        for name in ("rnn_1", "rnn_2"):
            seen.append(
                lstm(
                    seen[-1],
                    *(given[f"{name}/{part}"] for part in ("kernel", "recurrent_kernel", "bias")),
                )
            )
        features = np.concatenate(seen, axis=1)
        weight = np.exp(features @ given["attention/attention_W"])
        logits = (weight / weight.sum() * features).sum(axis=0) @ given["output/kernel"] + given[
            "output/bias"
        ]
        assert np.isclose(found, np.log(np.exp(logits).sum()) - logits[text[n]], rtol=0, atol=1e-5)


def test_unknown_characters_are_left_out_with_their_bytes() -> None:
    tokens, sizes = TextGenRNN(weights(), VOCABULARY).encode("?aé??b!".encode())
    assert tokens.tolist() == [1, 3, 2]
    assert sizes.tolist() == [2, 4, 2]
