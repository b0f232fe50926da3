"""Long windows read in chunks, the state carried: the losses of windows read at once, in memory that is bounded."""

import subprocess
import sys

import numpy as np
import pytest
import torch

from tests.measure.scoring.test_carried_cache import TEXT as FAKE_TEXT
from tests.measure.scoring.test_carried_cache import TOKENS as FAKE_TOKENS
from tests.measure.scoring.test_carried_cache import Fake, WithoutCache, member
from tests.measure.scoring.test_loss_grid import EXACT
from tests.measure.scoring.test_windows import TOKENS, attention, reader_of, recurrent
from tests.model.tiny_model import VOCABULARY
from txl_lightning.data.vocabulary import mark
from txl_lightning.measure.scoring import windows
from txl_lightning.measure.elsewhere import checked
from txl_lightning.measure.losses import context_losses, loss_grid, position_blocks

GRID = [2, 3, 8, 13, 40]
LONG = [16, 64, 1024, 1025, 3000, 4096]
KINDS = {
    "relative": lambda: attention("relative", mem_len=4),
    "alibi": lambda: attention("alibi", mem_len=4),
    "rope": lambda: attention("rope", mem_len=4),
    "lstm": lambda: recurrent("lstm"),
    "qrnn": lambda: recurrent("qrnn"),
}


@pytest.mark.parametrize("kind", EXACT)
def test_chunks_have_the_losses_of_a_window_that_is_read_at_once(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    reader, positions = reader_of(EXACT[kind](), 90), np.array([44, 90, 150, 199])
    whole = loss_grid(reader, TOKENS, positions, GRID)
    last = context_losses(reader, TOKENS, positions, 30)
    monkeypatch.setattr(windows, "LONG_WINDOW", 10)
    monkeypatch.setattr(windows, "CHUNK", 7)
    np.testing.assert_allclose(loss_grid(reader, TOKENS, positions, GRID), whole, rtol=0, atol=1e-10)
    np.testing.assert_allclose(context_losses(reader, TOKENS, positions, 30), last, rtol=0, atol=1e-10)
    assert reader._in_chunks(40) is not None


def test_chunks_hide_other_documents_too(monkeypatch: pytest.MonkeyPatch) -> None:
    reader = reader_of(attention("relative", mem_len=4, memory_reset="document"), 90)
    tokens, positions = mark(TOKENS, [0, 60, 64, 120, 185]), np.array([90, 150, 199])
    whole = loss_grid(reader, tokens, positions, GRID)
    monkeypatch.setattr(windows, "LONG_WINDOW", 10)
    monkeypatch.setattr(windows, "CHUNK", 7)
    np.testing.assert_allclose(loss_grid(reader, tokens, positions, GRID), whole, rtol=0, atol=1e-10)
    cut = positions - [64, 120, 185] < 40
    from_documents = loss_grid(reader, tokens, positions, GRID, np.array([64, 120, 185]))
    np.testing.assert_allclose(from_documents[-1, cut], whole[-1, cut], rtol=0, atol=1e-10)


@pytest.mark.parametrize("begin", [None, 3])
def test_a_cache_of_transformers_is_carried_from_chunk_to_chunk(
    begin: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake, positions = member(Fake(), 40, begin), np.array([45, 50, 59])
    reader = tried(fake, FAKE_TEXT, 45, 7).reader
    assert reader.carrier is not None
    whole = loss_grid(fake.reader, FAKE_TOKENS, positions, [*GRID, 45])
    monkeypatch.setattr(windows, "LONG_WINDOW", 10)
    monkeypatch.setattr(windows, "CHUNK", 7)
    np.testing.assert_allclose(loss_grid(reader, FAKE_TOKENS, positions, [*GRID, 45]), whole, rtol=0, atol=1e-5)
    monkeypatch.setattr(Fake, "forward", WithoutCache.forward)  # chunks need no whole window
    with pytest.raises(TypeError, match="past_key_values"):
        loss_grid(reader, FAKE_TOKENS, positions, GRID)


def test_a_model_without_a_cache_is_read_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    reader = tried(member(WithoutCache(), None), FAKE_TEXT, 45, 7).reader
    assert reader.carrier is None
    positions = np.array([45, 59])
    whole = loss_grid(reader, FAKE_TOKENS, positions, GRID)
    monkeypatch.setattr(windows, "LONG_WINDOW", 10)
    np.testing.assert_array_equal(loss_grid(reader, FAKE_TOKENS, positions, GRID), whole)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_window_of_4096_tokens_has_the_losses_of_direct_scoring(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tokens, positions = np.random.default_rng(5).integers(0, VOCABULARY, 4200), np.array([4096, 4150])
    reader = reader_of(KINDS[kind](), 4096)
    ours = loss_grid(reader, tokens, positions, LONG)
    monkeypatch.setattr(windows, "LONG_WINDOW", 5000)
    direct = [context_losses(reader, tokens, positions, c) for c in LONG]
    np.testing.assert_allclose(ours, direct, rtol=0, atol=1e-5)


MEASURED = """
import re
from pathlib import Path
import numpy as np
from tests.test_conf import composed
from txl_lightning.measure.losses import loss_grid, window_reader
from txl_lightning.runs.models import make_model

model = make_model(composed("profile=laptop"), 256)
loss_grid(window_reader(model, 64), np.arange({n} + 1) % 251, np.array([{n}]), [16, {n}])
print(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the peak of a process alone is in /proc")
def test_the_memory_of_a_long_window_is_bounded() -> None:
    """A window of 8,192 tokens whose scores were held at once would need 1 GiB for one matrix of the four heads."""
    words = [sys.executable, "-c", MEASURED.format(n=8192)]
    done = subprocess.run(words, check=True, timeout=300, capture_output=True, text=True)
    assert int(done.stdout.split()[-1]) < 1 << 20  # KiB


def test_a_doubling_grid_is_read_with_positions_where_windows_are_shared() -> None:
    contexts = [16 << i for i in range(8)]
    positions, blocks = position_blocks(1_000_000, 600, contexts)
    (step,) = set(np.diff(positions)[np.diff(blocks) == 0])
    assert step in np.diff(contexts)

    def n_tokens(at: np.ndarray) -> int:
        begins, ends = (at - np.array(contexts)[:, None]).ravel(), np.tile(at, len(contexts))
        return int(windows.shared_windows(begins, ends)[1].sum())

    apart = sum(contexts) * len(positions)
    assert n_tokens(positions) < 0.75 * apart
    for other in np.diff(contexts):
        assert n_tokens(positions[blocks == 0]) <= n_tokens(other * np.arange((blocks == 0).sum()) + 5000)


@pytest.mark.parametrize("kind", ["relative", "lstm", "absolute"])
def test_a_window_begins_no_earlier_than_its_document(kind: str) -> None:
    others = {"absolute": lambda: attention("absolute", mem_len=0)}
    reader, contexts = reader_of({**KINDS, **others}[kind](), 60), [3, 6, 20]
    positions = np.array([40, 41, 50, 51, 60, 120])
    begins = np.array([39, 40, 40, 40, 58, 90])  # 1, 1, 10, 11, 2 and 30 tokens of their documents
    ours = loss_grid(reader, TOKENS, positions, contexts, begins)
    for c, losses in zip(contexts, ours, strict=True):
        for t, begin, loss in zip(positions, begins, losses, strict=True):
            alone = context_losses(reader, TOKENS, np.array([t]), int(min(c, t - begin)))
            assert abs(loss - alone[0]) < 1e-10
    assert np.array_equal(
        loss_grid(reader, TOKENS, positions, contexts),
        loss_grid(reader, TOKENS, positions, contexts, np.zeros_like(positions)),
    )


def test_the_cost_of_long_windows_grows_with_their_length(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a clock that counts the token pairs of attention, and an equal cost of each token."""
    clock = [0.0]

    class Timed:
        def score(self, tokens: torch.Tensor, targets: torch.Tensor, state: None) -> tuple[torch.Tensor, None]:
            B, T = tokens.shape
            clock[0] += B * T * (1e-5 + 1e-8 * T)
            return torch.zeros(targets.shape), None

    monkeypatch.setattr(windows.time, "perf_counter", lambda: clock[0])
    reader, lengths = windows.WindowReader(Timed(), one_pass=True), np.repeat([100, 4000], [50, 200])
    expected = (lengths * (1e-5 + 1e-8 * lengths)).sum()
    found = windows.expected_seconds(reader, np.zeros(5000, dtype=np.int64), lengths)
    assert abs(found / expected - 1) < 0.02
    assert clock[0] < 0.1 * expected
