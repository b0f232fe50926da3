"""Two trained networks in `txl recl`: GPT-2s for antibodies, IgLM and IgLM-S from iglm 0.1.0 (Shuai et al. 2023).

The second line fetches their weights from PyPI, for non-commercial use by their licence, and writes 200 chains that
IgLM draws:

    pip install '.[hf]'
    python examples/iglm.py chains.txt
    txl recl models=[py:examples.iglm.iglm,py:examples.iglm.iglm_s] data_path=chains.txt max_context=128 n_positions=300
"""

import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

WHEEL = "iglm-0.1.0-py3-none-any.whl"
FOLDER = "iglm/trained_models"
RESIDUES = "ACDEFGHIKLMNPQRSTVWY"  # numbers 5 … 24
SEPARATOR, FIRST, TAGS = 3, 5, (31, 26)  # [HEAVY] [HUMAN]
OTHERS = [
    0,
    1,
    2,
    4,
    *range(FIRST + len(RESIDUES), 33),
]  # infilling mask, tags, and what no chain has


class Chains(nn.Module):
    """IgLM's network. Tokens are residues, and a separator after each line, that is, each chain.

    A window has the tags for a human heavy chain before its first residue. It reads nothing from an earlier chain, so
    every target has a separate run. The distribution covers only residues and the end, as chains are drawn.
    """

    limit = 510
    one_pass = False

    def __init__(self, network: Any) -> None:
        super().__init__()
        self.network = network

    def score(
        self, tokens_BT: Tensor, targets_BT: Tensor, state: None = None
    ) -> tuple[Tensor, None]:
        """Return each target's loss in nats; with fewer targets than tokens, the first tokens are only context."""
        rows_BT = nn.functional.pad(tokens_BT, (2, 0))
        places_T = torch.arange(rows_BT.shape[1])
        separators_BT = torch.where(rows_BT == SEPARATOR, places_T, 1)
        before_B1 = separators_BT.amax(1, keepdim=True)
        tags_B2 = torch.tensor(TAGS).expand(len(rows_BT), 2)
        tag_places_B2 = torch.cat([before_B1 - 1, before_B1], dim=1)
        rows_BT = rows_BT.scatter(1, tag_places_B2, tags_B2)
        own_BT = places_T - before_B1 + 1
        logits_BCV = self.network(
            input_ids=rows_BT,
            attention_mask=(own_BT >= 0).long(),
            position_ids=own_BT.clamp(min=0),
            logits_to_keep=targets_BT.shape[1],
        ).logits
        logits_BCV[..., OTHERS] = float("-inf")
        return nn.functional.cross_entropy(logits_BCV.mT, targets_BT, reduction="none"), None

    def encode(self, text: bytes) -> tuple[np.ndarray, str]:
        """Return the numbers of residues and ends of lines, and these letters."""
        letters = text.decode()
        numbers = []
        for letter in letters:
            if letter == "\n":
                numbers.append(SEPARATOR)
            else:
                numbers.append(FIRST + RESIDUES.index(letter))
        return np.array(numbers), letters


def loaded(name: str) -> Chains:
    """Return a network from the wheel in the working directory; a missing wheel is fetched."""
    import transformers

    if not Path(WHEEL).exists():
        subprocess.run(
            [sys.executable, "-m", "pip", "download", "--no-deps", "iglm==0.1.0"], check=True
        )
    with zipfile.ZipFile(WHEEL) as wheel:
        for file in ("config.json", "pytorch_model.bin"):
            wheel.extract(f"{FOLDER}/{name}/{file}")
    return Chains(transformers.GPT2LMHeadModel.from_pretrained(f"{FOLDER}/{name}").eval())


def iglm() -> Chains:
    """Return IgLM: 4 layers, 13 million parameters."""
    return loaded("IgLM")


def iglm_s() -> Chains:
    """Return IgLM-S: 3 layers, 1.4 million parameters."""
    return loaded("IgLM-S")


if __name__ == "__main__":
    torch.manual_seed(0)
    start = torch.tensor([TAGS])
    drawn = iglm().network.generate(
        start,
        attention_mask=torch.ones_like(start),
        do_sample=True,
        top_k=0,
        max_length=160,
        num_return_sequences=200,
        suppress_tokens=OTHERS,
        eos_token_id=SEPARATOR,
        pad_token_id=SEPARATOR,
    )
    with Path(sys.argv[1]).open("w", encoding="utf-8") as file:
        for row in drawn[:, 2:].tolist():
            residues = [RESIDUES[n - FIRST] for n in row if n != SEPARATOR]
            print("".join(residues), file=file)
