"""txl evaluate models=[…]: bits per byte of models of any origin, with a state carried and in windows, in pairs."""

import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.measure.perplexity.scored import result
from tests.measure.recl.pair_models import PAIR_BYTES, PAIRS, pair_text
from tests.measure.small_runs import ELSEWHERE, SmallRuns
from txl_lightning.config.schemas import LoggerConfig
from txl_lightning.errors import UserError
from txl_lightning.measure.group import piece_losses
from txl_lightning.measure.losses import TokenLosses
from txl_lightning.measure.models import TokenizedText
from txl_lightning.measure.options import DynamicOptions, EvaluateOptions
from txl_lightning.measure.perplexity import run

SYMBOLS = 256


class Counts:
    """P(x) = (occurrences of x so far + 1) / (tokens so far + 256); the state has the occurrences."""

    def score(self, tokens_BT: Tensor, targets_BT: Tensor, state: Any = None) -> tuple[Tensor, Tensor]:
        one_hot_BTV = torch.nn.functional.one_hot(tokens_BT.long(), SYMBOLS)
        before_BTV = one_hot_BTV.cumsum(1) + (0 if state is None else state[:, None])
        p_BTV = (before_BTV + 1) / (before_BTV.sum(2, keepdim=True) + SYMBOLS).double()
        nll_BT = -p_BTV[:, -targets_BT.shape[1] :].gather(2, targets_BT[..., None].long())[..., 0].log()
        return nll_BT, before_BTV[:, -1]


def make_counts() -> Counts:
    """For `py:`."""
    return Counts()


COUNTS = f"py:{__name__}.make_counts"


def compared(directory: Path, models: list[str], **options: Any) -> dict[str, Any]:
    lines = run(EvaluateOptions(models=models, **{"splits": ["test"], **options}), directory)
    content = json.loads((directory / "evaluation.json").read_text())
    split = content["test"]
    assert len(lines) == len(split["scores"]) + len(split["differences"]) + 1
    return content


def occurrences_loss(text: bytes, window: int | None = None) -> np.ndarray:
    """Bits of every byte but the first, after all bytes before it or those of `window`, in windows of half the step."""
    bits = []
    for t in range(1, len(text)):
        if window is None:
            seen = text[:t]
        else:
            stop = min((t - 1) // (window // 2) * (window // 2) + window // 2, len(text) - 1)
            seen = text[max(0, stop - window) : t]
        bits.append(-math.log2((seen.count(text[t]) + 1) / (len(seen) + SYMBOLS)))
    return np.array(bits)


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("pairs") / "pairs.txt"
    path.write_bytes(pair_text(3000))
    return str(path)


def test_models_of_one_distribution_are_equal_at_equal_bytes(pairs: str, tmp_path: Path) -> None:
    found = compared(tmp_path, [PAIRS, PAIR_BYTES], data_path=pairs, protocol="window", window=64, block_len=20)
    (ours_name, ours), (name, theirs) = found["test"]["scores"].items()
    assert ours["tokens"] * 2 + 1 == theirs["tokens"]
    assert found["test"]["bytes"] == 2 * ours["tokens"]
    assert ours["bpb"] == pytest.approx(theirs["bpb"], rel=1e-9)
    (difference,) = found["test"]["differences"]
    assert (difference["score"], difference["minus"]) == (ours_name, name)
    assert name == f"{PAIR_BYTES[3:]}, window"
    assert abs(difference["bpb"]) < 1e-9 < ours["standard_error"]
    assert difference["standard_error"] < ours["standard_error"]
    assert found["corpus"]["level"] == "byte"


def test_a_carried_state_and_windows_have_the_losses_and_errors_of_their_definition(pairs: str, tmp_path: Path) -> None:
    sizes = {"batch_size": 1, "segment_len": 7, "window": 16, "block_len": 50}
    found = compared(tmp_path, [COUNTS], data_path=pairs, protocol="both", **sizes)["test"]
    text = Path(pairs).read_bytes()[-found["bytes"] - 1 :]
    carried, windows = occurrences_loss(text), occurrences_loss(text, 16)
    units = np.arange(1, len(text)) // 50
    for score, bits in zip(
        [*found["scores"].values(), *found["differences"]], [carried, windows, carried - windows], strict=True
    ):
        assert score["bpb"] == pytest.approx(bits.mean(), rel=1e-9)
        counts, sums = np.bincount(units), np.bincount(units, weights=bits)
        U = len(counts)
        error = math.sqrt(U / (U - 1) * ((sums - bits.mean() * counts) ** 2).sum()) / len(bits)
        assert score["standard_error"] == pytest.approx(error, rel=1e-9)
        assert score["interval"] == pytest.approx([bits.mean() - 1.96 * error, bits.mean() + 1.96 * error], rel=1e-9)
    assert list(found["scores"]) == [f"{COUNTS[3:]}, {protocol}" for protocol in ("carried", "window")]


def test_a_run_has_the_score_of_its_own_evaluation_beside_another_model(runs: SmallRuns, tmp_path: Path) -> None:
    for protocol, lengths in (("carried", {"mem_len": 12, "batch_size": 2}), ("window", {"window": 12, "stride": 3})):
        own = result(runs, "relative", tmp_path, protocol=protocol, **lengths)["test"]
        references = [f"txl:{runs.checkpoint('relative')}", COUNTS]
        found = compared(tmp_path, references, protocol=protocol, **lengths, block_len=20)
        ours, _ = found["test"]["scores"].values()
        assert ours["bpb"] == pytest.approx(own["bpc"], rel=1e-6)
        assert ours["standard_error"] == pytest.approx(own["standard_error"]["bpc"], rel=1e-5)
        assert found["test"]["bytes"] == own["tokens"]
        assert ours["evaluation"].items() >= lengths.items()
        assert [model["name"] for model in found["models"]] == ["relative", COUNTS[3:]]


def test_runs_on_bytes_and_on_characters_are_compared(runs: SmallRuns, tmp_path: Path) -> None:
    both = [f"txl:{runs.checkpoint(kind)}" for kind in ("relative", "characters")]
    found = compared(tmp_path, both, data_path=str(runs.folder / "text.txt"))
    (difference,), (ours, theirs) = found["test"]["differences"], found["test"]["scores"].values()
    assert difference["bpb"] == pytest.approx(ours["bpb"] - theirs["bpb"])


def test_the_loss_of_a_piece_is_that_of_its_tokens() -> None:
    text = TokenizedText(np.arange(6), np.array([0, 2, 2, 5, 6, 8]), 9)
    losses = TokenLosses(np.array([1.0, 2, 4, 8, 16]), np.arange(1, 6), {}, 0.0)
    np.testing.assert_equal(piece_losses(losses, text, np.array([0, 2, 6, 9])), [np.nan, 7, 24])


def test_what_cannot_be_compared_is_named(runs: SmallRuns, pairs: str, tmp_path: Path) -> None:
    checkpoint, txl = runs.checkpoint("relative"), f"txl:{runs.checkpoint('relative')}"
    short = str(tmp_path / "short.txt")
    Path(short).write_text("ten bytes.")
    cases: list[tuple[dict[str, Any], str]] = [
        ({"models": [PAIRS]}, r"protocol=carried: py:.*make_pairs has no state that can be carried: choose window"),
        ({"models": [COUNTS], "protocol": "window"}, "window=None: must be given: py:.* sees any number of tokens"),
        ({"models": [COUNTS], "data_path": None}, "data_path=None: must be a text file"),
        ({"models": [COUNTS], "checkpoint": checkpoint}, "checkpoint=.*: is for a checkpoint"),
        ({"models": [COUNTS], "attention_lengths": [4]}, r"attention_lengths=\[4\]: is for a checkpoint"),
        ({"models": [COUNTS], "losses": True}, "losses=True: is for a checkpoint"),
        ({"models": [COUNTS], "dynamic": DynamicOptions(lr=1e-3)}, r"models=.*: must be \[\] for dynamic"),
        ({"models": [COUNTS], "max_segments": 3}, "max_segments=3: is for a checkpoint"),
        ({"models": [COUNTS], "logger": LoggerConfig(name="wandb")}, "logger=wandb: must be none with models"),
        ({"models": [COUNTS], "dtype": "int8"}, "dtype=int8: must be one of float32"),
        ({"models": ["gpt2"]}, "models=gpt2: must begin with txl:, hf: or py:"),
        (
            {"models": [txl, f"txl:{runs.checkpoint('words')}"]},
            "models=.*words.*: cannot be compared in bytes: its tokens",
        ),
        ({"models": [f"txl:{runs.checkpoint('documents')}"]}, "models=.*: was trained with memory.reset=document: it"),
        (
            {"models": [txl, f"txl:{runs.checkpoint(ELSEWHERE)}"], "data_path": None},
            "models=.*: was trained on another",
        ),
        ({"models": ["txl:/nowhere"]}, "models=/nowhere: no such file"),
        (
            {"models": [COUNTS], "protocol": "window", "window": 4, "data_path": short},
            "splits=.* tokens: needs at least 2",
        ),
        ({"models": [txl], "data_path": "/nowhere"}, "data_path=/nowhere: cannot be read"),
        ({"checkpoint": checkpoint, "protocol": "both"}, "protocol=both: must be carried or window"),
        ({}, r"checkpoint: must be given \(checkpoint=…\), or models"),
    ]
    for options, words in cases:
        with pytest.raises(UserError, match=words) as caught:
            run(EvaluateOptions(**{"splits": ["test"], "data_path": pairs, **options}), tmp_path)
        message = re.sub("trained with [^:]*", "", str(caught.value))
        assert set(re.findall(r"\b([a-z_.]+)=", message)) <= set(vars(EvaluateOptions()))  # no other command's
    found = compared(tmp_path, [PAIRS, COUNTS], data_path=pairs, protocol="both", window=32)["test"]
    assert [name.split(", ")[1] for name in found["scores"]] == ["window", "carried", "window"]
