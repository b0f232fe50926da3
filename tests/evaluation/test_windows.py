"""Losses of windows against brute force: every token alone, in float64."""

import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch

from tests.model.tiny_model import VOCABULARY, tiny_model
from txl_lightning import TransformerXL
from txl_lightning.errors import OptionError
from txl_lightning.evaluation import windows as module
from txl_lightning.evaluation.windows import WindowReader, window_losses, window_reader
from txl_lightning.recl.loss_by_context import context_curve

TOKENS = np.random.default_rng(3).integers(0, VOCABULARY, 200).astype(np.uint8)
STREAM = torch.from_numpy(TOKENS.astype(np.int64))
POSITIONS = np.linspace(40, len(TOKENS) - 1, 6).astype(int)
TRAINED = 6
TABLE = {"shaw": 9, "al_rfou": TRAINED}
ADAPTIVE = {"cutoffs": (3, 7), "div_val": 2}
ZEROS = {"memory_start": "zeros", "ext_len": 2}


def attention(encoding: str, **options: object) -> TransformerXL:
    pairs = {"d_head": 4} if encoding == "rope" else {}
    return tiny_model(encoding=encoding, table_len=TABLE.get(encoding), **pairs, **options)


def reader_of(model: Any, batch_tokens: int) -> WindowReader:
    return replace(window_reader(model, TRAINED), batch_tokens=batch_tokens)


def token_by_token(model: TransformerXL, window: torch.Tensor) -> float:
    """The loss of a window's last token, the others fed one at a time into a memory that drops nothing."""
    model = model.with_lengths(mem_len=1000, same_length=False, ext_len=0)
    return in_segments(model, window, range(len(window)))


def in_segments(model: TransformerXL, window: torch.Tensor, cuts: Sequence[int] = ()) -> float:
    """The loss of a window's last token, read in segments: by default of the trained length, the last one whole."""
    memory, alone = None, model.with_lengths(memory_start="empty")
    for start, stop in pairwise(
        cuts or [0, *range((len(window) - 2) % TRAINED + 1, len(window), TRAINED)]
    ):
        nll, memory = alone.score(window[None, start:stop], window[None, stop : stop + 1], memory)
    return nll.item()


def at_once(model: Any, window: torch.Tensor) -> float:
    return float(model.score(window[None, :-1], window[None, -1:], None)[0])


ALONE: dict[str, tuple[Callable[[], Any], Callable[[Any, torch.Tensor], float]]] = {
    "relative": (lambda: attention("relative", mem_len=0), token_by_token),
    "relative memory": (lambda: attention("relative", mem_len=4, same_length=True), token_by_token),
    "relative zeros": (
        lambda: attention("relative", mem_len=5, **ZEROS, **ADAPTIVE),
        token_by_token,
    ),
    "relative clamp": (lambda: attention("relative", mem_len=4, clamp_len=3), token_by_token),
    "shaw memory": (lambda: attention("shaw", mem_len=4), token_by_token),
    "alibi": (lambda: attention("alibi", mem_len=4, clamp_len=7), token_by_token),
    "none": (lambda: attention("none", mem_len=4), token_by_token),
    "rope": (lambda: attention("rope", mem_len=4), token_by_token),
    "lstm": (lambda: tiny_model(cell="lstm", dropout=0.3), at_once),
    "qrnn": (lambda: tiny_model(cell="qrnn", dropout=0.3, **ADAPTIVE), at_once),
    "absolute": (
        lambda: attention("absolute", mem_len=0),
        lambda model, w: at_once(model, w[-TRAINED - 1 :]),
    ),
    "al_rfou": (
        lambda: attention("al_rfou", mem_len=0),
        lambda model, w: at_once(model, w[-TRAINED - 1 :]),
    ),
    "absolute memory": (
        lambda: attention("absolute", mem_len=8, memory_start="zeros"),
        in_segments,
    ),
}
GRID = [1, 2, TRAINED, 8, 13, 40]
DOCUMENTS = attention("relative", mem_len=4, memory_reset="document")


@pytest.mark.parametrize("kind", ALONE)
@torch.no_grad()
def test_windows_hold_exactly_c_tokens(kind: str) -> None:
    """In batches of windows, in one pass or not, with the model's modes as before."""
    make, alone = ALONE[kind]
    model = make().train()
    ours = window_losses(reader_of(model, 90), TOKENS, POSITIONS, GRID)
    assert all(module.training for module in model.modules())
    model.eval()
    expected = [[alone(model, STREAM[t - c : t + 1]) for t in POSITIONS] for c in GRID]
    np.testing.assert_allclose(ours, expected, rtol=0, atol=1e-10)
    assert window_reader(model, TRAINED).one_pass == ("absolute" not in kind and kind != "al_rfou")


@pytest.mark.parametrize("kind", ["relative memory", "alibi", "rope", "lstm", "qrnn", "documents"])
def test_long_windows_are_read_in_chunks(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tokens, model = TOKENS.astype(int), DOCUMENTS
    tokens[[0, 60, 64, 120]] ^= -1  # marks of documents
    if kind != "documents":
        tokens, model = TOKENS, ALONE[kind][0]()
    whole = window_losses(reader_of(model, 90), tokens, POSITIONS, GRID)
    monkeypatch.setattr(module, "LONG_WINDOW", 10)
    monkeypatch.setattr(module, "CHUNK", 7)
    np.testing.assert_allclose(
        window_losses(reader_of(model, 90), tokens, POSITIONS, GRID), whole, rtol=0, atol=1e-10
    )


@pytest.mark.parametrize("kind", ["relative", "lstm", "absolute", "absolute memory"])
def test_a_window_begins_no_earlier_than_its_document(kind: str) -> None:
    reader, contexts = reader_of(ALONE[kind][0](), 60), [3, 6, 20]
    positions = np.array([40, 41, 50, 51, 60, 120])
    begins = np.array([39, 40, 40, 40, 58, 90])  # 1, 1, 10, 11, 2 and 30 tokens of their documents
    ours = window_losses(reader, TOKENS, positions, contexts, begins)
    for c, of_context in zip(contexts, ours, strict=True):
        for t, begin, loss in zip(positions, begins, of_context, strict=True):
            alone = window_losses(reader, TOKENS, np.array([t]), [int(min(c, t - begin))])
            assert abs(loss - alone[0, 0]) < 1e-10


def test_a_limit_off_the_grid_is_read_with_exactly_so_many_tokens() -> None:
    model = attention("relative", mem_len=0)
    ours = window_losses(
        WindowReader(model, limit=10, one_pass=True), TOKENS, POSITIONS, [4, 8, 12, 16]
    )
    direct = window_losses(WindowReader(model), TOKENS, POSITIONS, [4, 8, 10, 10])
    np.testing.assert_allclose(ours, direct, rtol=0, atol=1e-12)


def test_impossible_windows_are_refused() -> None:
    with pytest.raises(OptionError, match="trained_len=None"):
        window_reader(attention("absolute"))


MEASURED = """
import re
from pathlib import Path
import numpy as np
from tests.test_conf import composed
from txl_lightning.evaluation.windows import window_losses, window_reader
from txl_lightning.evaluation.models import make_model

model = make_model(composed("profile=laptop"), 256)
window_losses(window_reader(model, 64), np.arange({n} + 1) % 251, np.array([{n}]), [16, {n}])
print(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])
"""


@pytest.mark.full
@pytest.mark.skipif(sys.platform != "linux", reason="the peak of a process alone is in /proc")
def test_the_memory_of_a_long_window_is_bounded() -> None:
    """A window of 8,192 tokens whose scores were held at once would need 1 GiB for one matrix of the four heads."""
    peak = subprocess.check_output(
        [sys.executable, "-c", MEASURED.format(n=8192)], timeout=300, text=True
    )
    assert int(peak.split()[-1]) < 1 << 20  # KiB


def test_a_context_curve_has_the_models_losses_errors_and_recl() -> None:
    model = attention("relative", dropout=0.5).train()
    curve = context_curve(model, TOKENS, POSITIONS, [2, 4, 6], bootstrap=10, fractions=[0.5])
    losses = window_losses(window_reader(model), TOKENS, POSITIONS, [4])[0]
    assert curve.nll[1] == pytest.approx(losses.mean())
    assert curve.standard_error[1] == pytest.approx(losses.std(ddof=1) / len(losses) ** 0.5)
    assert curve.recl[0.5].value in (2, 4, 6)
