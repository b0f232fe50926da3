"""Losses of windows against brute force: every token alone, in float64."""

import subprocess
import sys
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch

from tests.model.tiny_model import VOCABULARY, tiny_model
from txl_lightning.errors import OptionError
from txl_lightning.recl import windows as module
from txl_lightning.recl.windows import WindowReader, window_losses, window_reader

TOKENS = np.random.default_rng(3).integers(0, VOCABULARY, 200).astype(np.uint8)
STREAM = torch.from_numpy(TOKENS.astype(np.int64))
POSITIONS = np.linspace(40, len(TOKENS) - 1, 6).astype(int)
TRAINED = 6
GRID = [1, 2, TRAINED, 8, 13, 40]
MODELS = {
    "relative": {"encoding": "relative", "mem_len": 4, "same_length": True},
    "zeros": {
        "encoding": "relative",
        "mem_len": 5,
        "memory_start": "zeros",
        "cutoffs": (3, 7),
    },
    "clamped": {"encoding": "relative", "mem_len": 4, "clamp_len": 3},
    "shaw": {"encoding": "shaw", "mem_len": 4, "table_len": 9},
    "alibi": {"encoding": "alibi", "mem_len": 4, "clamp_len": 7},
    "rope": {"encoding": "rope", "mem_len": 4, "d_head": 4},
    "lstm": {"cell": "lstm", "dropout": 0.3},
    "qrnn": {"cell": "qrnn", "dropout": 0.3, "cutoffs": (3, 7)},
    "absolute": {"encoding": "absolute", "mem_len": 0},
    "al_rfou": {"encoding": "al_rfou", "mem_len": 0, "table_len": TRAINED},
    "absolute memory": {"encoding": "absolute", "mem_len": 8, "memory_start": "zeros"},
    "documents": {"encoding": "relative", "mem_len": 4, "memory_reset": "document"},
}
LIMITED = ("absolute", "al_rfou")
IN_SEGMENTS = ("absolute memory",)


def model_of(kind: str) -> Any:
    return tiny_model(**MODELS[kind])


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("BATCH_TOKENS", "TRANSFORMER_XL_TOKENS"):
        monkeypatch.setattr(module, name, 90)


def alone(kind: str, model: Any, window: torch.Tensor) -> float:
    """The loss of a window's last token: every token fed alone into a memory that drops nothing."""
    if kind in LIMITED:
        window = window[-TRAINED - 1 :]
    n_tokens = len(window) - 1
    cuts = [n_tokens]
    if kind in IN_SEGMENTS:
        model = model.with_lengths(memory_start="empty")
        cuts = range(
            (n_tokens - 1) % TRAINED + 1,
            n_tokens + 1,
            TRAINED,
        )
    elif kind not in LIMITED and "cell" not in MODELS[kind]:
        model = model.with_lengths(mem_len=1000, same_length=False, memory_start="empty")
        cuts = range(1, n_tokens + 1)
    memory = None
    for start, stop in pairwise([0, *cuts]):
        target = window[None, stop : stop + 1]
        nll, memory = model.score(
            window[None, start:stop],
            target,
            memory,
        )
    return nll.item()


@pytest.mark.parametrize("kind", MODELS)
@torch.no_grad()
def test_windows_hold_exactly_c_tokens(kind):
    """In batches of windows, in one pass or not, with the model's modes as before."""
    model = model_of(kind).train()
    reader = window_reader(model, TRAINED)
    losses_CP = window_losses(reader, TOKENS, POSITIONS, GRID)
    assert all(part.training for part in model.modules())
    model.eval()
    for c, context in enumerate(GRID):
        expected = [alone(kind, model, STREAM[t - context : t + 1]) for t in POSITIONS]
        assert losses_CP[c].tolist() == pytest.approx(expected, abs=1e-10)
    assert reader.one_pass == (kind not in LIMITED + IN_SEGMENTS)


@pytest.mark.parametrize("kind", ["relative", "rope", "lstm", "qrnn", "documents"])
def test_long_windows_are_read_in_chunks(kind, monkeypatch):
    tokens = TOKENS.astype(np.int64)
    if kind == "documents":
        tokens[[0, 60, 64, 120, 185]] ^= -1  # marks
    reader = window_reader(model_of(kind), TRAINED)
    whole = window_losses(reader, tokens, POSITIONS, GRID)
    monkeypatch.setattr(module, "LONG_WINDOW", 10)
    monkeypatch.setattr(module, "CHUNK", 7)
    chunked = window_losses(reader, tokens, POSITIONS, GRID)
    np.testing.assert_allclose(chunked, whole, rtol=0, atol=1e-10)


@pytest.mark.parametrize("kind", ["relative", "lstm", "absolute", "absolute memory"])
def test_a_window_begins_no_earlier_than_its_document(kind):
    reader = window_reader(model_of(kind), TRAINED)
    positions = np.array([40, 41, 50, 51, 60, 120])
    lengths = np.array([1, 1, 10, 11, 2, 30])  # tokens of the document before each
    losses_CP = window_losses(
        reader,
        TOKENS,
        positions,
        [3, 20],
        positions - lengths,
    )
    for p, length in enumerate(lengths.tolist()):
        place = positions[p : p + 1]
        for c, context in enumerate([3, 20]):
            shorter = window_losses(
                reader,
                TOKENS,
                place,
                [min(context, length)],
            )
            assert losses_CP[c, p] == pytest.approx(shorter.item(), abs=1e-10)


def test_a_limit_off_the_grid_is_read_with_exactly_so_many_tokens():
    model = tiny_model(encoding="relative", mem_len=0)
    limited = WindowReader(model, limit=10, one_pass=True)
    losses = window_losses(
        limited,
        TOKENS,
        POSITIONS,
        [4, 8, 12, 16],
    )
    expected = window_losses(
        WindowReader(model),
        TOKENS,
        POSITIONS,
        [4, 8, 10, 10],
    )
    np.testing.assert_allclose(losses, expected, rtol=0, atol=1e-12)


def test_impossible_windows_are_refused():
    with pytest.raises(OptionError, match="trained_len=None"):
        window_reader(model_of("absolute"))


MEASURED = """
import re
from pathlib import Path
import numpy as np
from tests.test_conf import composed
from txl_lightning.recl.windows import window_losses, window_reader
from txl_lightning.evaluation.models import make_model

model = make_model(composed("profile=laptop"), 256)
window_losses(window_reader(model, 64), np.arange({n} + 1) % 251, np.array([{n}]), [16, {n}])
print(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])
"""


@pytest.mark.full
@pytest.mark.skipif(sys.platform != "linux", reason="the peak of a process alone is in /proc")
def test_the_memory_of_a_long_window_is_bounded():
    """A window of 8,192 tokens whose scores were held at once would need 1 GiB for one matrix of the four heads."""
    command = [sys.executable, "-c", MEASURED.format(n=8192)]
    peak = subprocess.check_output(command, timeout=300, text=True)
    assert int(peak.split()[-1]) < 1 << 20  # KiB
