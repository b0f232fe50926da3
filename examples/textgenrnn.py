"""A trained network in `txl recl`: textgenrnn 2.0.0, two LSTMs over 40 characters, with its weights from PyPI.

The second line writes WikiText-2 as plain text and fetches the weights:

    pip install h5py
    python examples/textgenrnn.py wiki.test.tokens text.txt
    txl recl models=[py:examples.textgenrnn.textgenrnn] data_path=text.txt first_context=4 step=4 max_context=40
"""

import io
import json
import re
import subprocess
import sys
import tarfile
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

SPACES = [(r" @(\W)@ ", r"\1"), (r" ([.,;:!?)%]|'s\b|n't\b)", r"\1"), (r"\( ", "("), (r'" ([^"]*) "', r'"\1"')]


class TextGenRNN(nn.Module):
    """Network of textgenrnn: an average over the 40 places of embedding and both LSTMs, weighted by attention.

    A window has zeros before its first character, as in training, and every target a run of its own. LSTMs are given as
    CuDNN stores them: the rows of each gate's matrix one after another, gates in the order of torch.
    """

    limit, one_pass = 40, False

    def __init__(self, weights: dict[str, np.ndarray], vocabulary: dict[str, int]) -> None:
        super().__init__()
        given, self.vocabulary = {name: torch.as_tensor(array) for name, array in weights.items()}, vocabulary
        self.embedding = nn.Embedding.from_pretrained(given["embedding/embeddings"])
        self.attention, self.output = given["attention/attention_W"], (given["output/kernel"], given["output/bias"])
        self.layers = nn.ModuleList()
        for name in ("rnn_1", "rnn_2"):
            kernel, recurrent = given[f"{name}/kernel"], given[f"{name}/recurrent_kernel"]
            (n_in, _), n = kernel.shape, len(recurrent)
            lstm = nn.LSTM(n_in, n, batch_first=True)
            gates = torch.cat([gate.reshape(n, n_in) for gate in kernel.split(n, dim=1)])
            given_L = [gates, torch.cat(recurrent.split(n, dim=1)), *given[f"{name}/bias"].chunk(2)]
            lstm.load_state_dict(dict(zip(lstm.state_dict(), given_L, strict=True)))
            self.layers.append(lstm)

    def score(self, tokens_BT: Tensor, targets_BT: Tensor, state: None = None) -> tuple[Tensor, None]:
        """Return the loss of each target in nats; the first tokens are context if targets are fewer."""
        windows_BTL = nn.functional.pad(tokens_BT, (self.limit - 1, 0)).unfold(1, self.limit, 1)
        seen = [self.embedding(windows_BTL[:, -targets_BT.shape[1] :].flatten(0, 1))]
        for layer in self.layers:
            seen.append(layer(seen[-1])[0])
        features_NLD = torch.cat(seen, dim=-1)
        average_ND = ((features_NLD @ self.attention).softmax(1) * features_NLD).sum(1)
        kernel, bias = self.output
        losses = nn.functional.cross_entropy(average_ND @ kernel + bias, targets_BT.flatten(), reduction="none")
        return losses.view_as(targets_BT), None

    def encode(self, text: bytes) -> tuple[np.ndarray, np.ndarray]:
        """Return the numbers of known characters, and their bytes with those of unknown ones after them."""
        characters = text.decode()
        starts = np.cumsum([0, *(len(character.encode()) for character in characters)])
        known = np.flatnonzero([character in self.vocabulary for character in characters])
        sizes = np.diff(np.concatenate([[0], starts[known[1:]], [len(text)]]))
        return np.array([self.vocabulary[characters[at]] for at in known]), sizes


def textgenrnn() -> TextGenRNN:
    """Return the trained network from the archive in the working directory, which is fetched if it is not there."""
    import h5py

    name = "textgenrnn-2.0.0"
    if not Path(f"{name}.tar.gz").exists():
        command = f"-m pip download --no-deps --no-binary :all: {name.replace('-', '==')}"
        subprocess.run([sys.executable, *command.split()], check=True)
    with tarfile.open(f"{name}.tar.gz") as archive:
        names = (f"{name}/textgenrnn/textgenrnn_{end}" for end in ("weights.hdf5", "vocab.json"))
        file, vocabulary = (archive.extractfile(one).read() for one in names)
    weights: dict[str, np.ndarray] = {}
    with h5py.File(io.BytesIO(file)) as groups:
        for layer in ("embedding", "rnn_1", "rnn_2", "attention", "output"):
            weights |= {f"{layer}/{name[:-2]}": array[:] for name, array in groups[layer][layer].items()}
    return TextGenRNN(weights, json.loads(vocabulary))


if __name__ == "__main__":
    textgenrnn()
    sentences = Path(sys.argv[1]).read_text("utf-8").split(" . ")
    prose = ". ".join(" ".join(one.split()) for one in sentences if not {"<unk>", "="} & {*one.split()})
    for pattern, plain in SPACES:
        prose = re.sub(pattern, plain, prose)
    Path(sys.argv[2]).write_text(prose, "utf-8")
