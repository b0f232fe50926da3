"""Dynamic evaluation: the update rule, scored before learned from, the results."""

import json
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.evaluation.scored import by_blocks, losses, result
from tests.evaluation.small_runs import SmallRuns
from txl_lightning.config.lengths import evaluation_lengths
from txl_lightning.data.corpus import Corpus, load_corpus
from txl_lightning.errors import OptionError
from txl_lightning.evaluation.dynamic_evaluation import LearningProtocol, gradient_rms, learning_protocol
from txl_lightning.evaluation.options import DynamicOptions, EvaluateOptions
from txl_lightning.evaluation.perplexity import run
from txl_lightning.evaluation.protocol import Protocol
from txl_lightning.evaluation.trained import TrainedModel, load_trained

T = 8  # segment of the small runs, and their memory
RATES = {"lr": 3e-3, "decay": 0.02, "epsilon": 1e-4}
KINDS = ["characters", "documents", "sentences", "extended", "compressive", "tokens", "lstm"]


def opened(runs: SmallRuns, kind: str = "characters", double: bool = False) -> tuple[TrainedModel, Corpus]:
    trained = load_trained(runs.checkpoint(kind))
    if double:
        trained.model.double()
    vocabulary, marked = trained.vocabulary if kind == "sentences" else None, trained.config.memory.reset == "document"
    return trained, load_corpus(trained.config.data, vocabulary, marked)


def protocol_of(trained: TrainedModel, **given: Any) -> Protocol:
    evaluation = replace(trained.config.evaluation, **{"batch_size": 1, "max_segments": 30, **given})
    return Protocol(trained, evaluation, cached=False)


def learning(static: Protocol, corpus: Corpus, segments: int = 16, **rates: float) -> LearningProtocol:
    return learning_protocol(static, corpus, DynamicOptions(segments=segments, **{**RATES, **rates}))


def segments_of(tokens: np.ndarray, n: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    for first in range(0, min(n * T, len(tokens) - 1), T):
        window = torch.from_numpy(tokens[first : first + T + 1].astype(np.int64))[None]
        yield window[:, :-1], window[:, 1:]


def naive(model: Any, tokens: np.ndarray, n: int, rms: dict[str, torch.Tensor], bfloat16: bool = False) -> list[float]:
    """Score n segments by the rule as the paper writes it, weight by weight."""
    origin = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    entries = sum(one.numel() for one in rms.values())
    mean = sum(one.sum() for one in rms.values()) / entries
    losses, memory = [], None
    for inputs, targets in segments_of(tokens, n):
        model.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=bfloat16):
            nll, memory = model.score(inputs, targets, memory)
        losses += nll[0].tolist()
        nll.mean().backward()
        for name, weight in model.named_parameters():
            norm = torch.minimum(rms[name] / mean, torch.tensor(1 / RATES["decay"], dtype=mean.dtype))
            gradient = torch.zeros_like(weight) if weight.grad is None else weight.grad
            step = RATES["lr"] * gradient / (rms[name] + RATES["epsilon"])
            weight.data = weight.data - step + RATES["decay"] * norm * (origin[name] - weight.data)
    return losses


def test_losses_are_those_of_the_papers_rule_in_a_loop(runs: SmallRuns) -> None:
    trained, corpus = opened(runs, double=True)
    static = protocol_of(trained)
    dynamic = learning(static, corpus)
    rms = dict(zip(dict(trained.model.named_parameters()), dynamic.rms, strict=True))
    before = {name: value.clone() for name, value in trained.model.state_dict().items()}
    ours = dynamic.losses(corpus, "test").nll
    assert all(value.equal(before[name]) for name, value in trained.model.state_dict().items())
    assert dynamic.losses(corpus, "test").nll.tolist() == ours.tolist()  # from the trained weights again
    model = trained.model.with_lengths(**evaluation_lengths(trained.config).keywords())
    np.testing.assert_allclose(ours, naive(model, corpus.splits["test"], 30, rms), rtol=1e-12)


def test_statistics_are_root_mean_squares_of_gradients_of_training_text(runs: SmallRuns) -> None:
    trained, corpus = opened(runs, double=True)
    found = gradient_rms(protocol_of(trained), corpus, 16)
    model: Any = trained.model.with_lengths(**evaluation_lengths(trained.config).keywords())
    weights, tokens = list(model.parameters()), corpus.splits["train"]
    squares = [torch.zeros_like(weight) for weight in weights]
    last = math.ceil((len(tokens) - 1) / T) - 8
    for first in (0, last):  # two runs of eight segments, the second after a memory's length of text
        memory = None
        for index in range(max(0, first - 1), first + 8):
            inputs, targets = next(segments_of(tokens[index * T :], 1))
            nll, memory = model.score(inputs, targets, memory)
            if index >= first:
                for square, gradient in zip(squares, torch.autograd.grad(nll.mean(), weights), strict=True):
                    square += gradient**2
    for one, square in zip(found, squares, strict=True):
        torch.testing.assert_close(one, (square / 16).sqrt(), rtol=1e-12, atol=0)


@pytest.mark.parametrize("kind", KINDS)
def test_the_first_segment_is_scored_before_anything_is_learned(runs: SmallRuns, kind: str) -> None:
    trained, corpus = opened(runs, kind)
    static = protocol_of(trained, max_segments=12)
    before, after = static.losses(corpus, "test"), learning(static, corpus, 4, epsilon=0.01).losses(corpus, "test")
    assert after.positions.tolist() == before.positions.tolist()
    np.testing.assert_allclose(after.nll[:T], before.nll[:T], rtol=1e-6)
    assert np.abs(after.nll[T:] - before.nll[T:]).max() > 1e-3
    np.testing.assert_allclose(learning(static, corpus, 4, lr=0.0).losses(corpus, "test").nll, before.nll, rtol=1e-5)


def test_weights_in_bfloat16_follow_the_updates(runs: SmallRuns) -> None:
    """Autocast keeps weights that it has converted: kept too long, they would be those before the update."""
    trained, corpus = opened(runs)
    static = replace(protocol_of(trained, max_segments=6), precision="bf16-mixed")
    dynamic = learning(static, corpus)
    trained, corpus = opened(runs)
    model: Any = trained.model.with_lengths(**evaluation_lengths(trained.config).keywords())
    rms = dict(zip(dict(model.named_parameters()), dynamic.rms, strict=True))
    found = dynamic.losses(corpus, "test").nll
    np.testing.assert_allclose(found, naive(model, corpus.splits["test"], 6, rms, bfloat16=True), rtol=2e-3)
    assert np.abs(found - static.losses(corpus, "test").nll)[T:].max() > 0.1


def test_results_have_both_losses_and_their_difference(runs: SmallRuns, tmp_path: Path) -> None:
    options = {"dynamic": DynamicOptions(**RATES, segments=16), "losses": True, "splits": ["valid", "test"]}
    lines = run(EvaluateOptions(runs.checkpoint("characters"), block_len=20, **options), tmp_path)
    found = json.loads((tmp_path / "evaluation.json").read_text())
    assert found["dynamic"] == {**RATES, "segments": 16}
    assert (found["evaluation"]["batch_size"], found["evaluation"]["cached"]) == (1, False)
    (tmp_path / "static").mkdir()
    static = result(runs, "characters", tmp_path / "static", batch_size=1, cached=False, splits=["valid", "test"])
    assert static["dynamic"] is None
    for split in ("valid", "test"):
        test, learned = found[split], found[split]["dynamic"]
        assert test["nll"] == static[split]["nll"]
        nll, positions = losses(tmp_path / learned["losses"])
        before, _ = losses(tmp_path / test["losses"])
        assert learned["nll"] == pytest.approx(nll.mean(dtype=float), rel=1e-9)
        assert learned["tokens"] == test["tokens"] == len(positions)
        below = learned["below_static"]
        assert below["nll"] == pytest.approx((before.astype(float) - nll).mean(), rel=1e-6)
        error, _ = by_blocks(before - nll, positions)
        assert below["standard_error"]["nll"] == pytest.approx(error, rel=1e-5)
    error = learned["standard_error"]["bpc"]
    assert f"test, dynamic: {learned['bpc']:.4f} ± {error:.4f} bits per character" in lines
    gain = f"{below['bpc']:.4f} ± {below['standard_error']['bpc']:.4f} bits per character"
    assert f"test, dynamic below static: {gain}, paired by token" in lines


def test_another_text_is_learned_with_statistics_of_the_runs_own_corpus(runs: SmallRuns, tmp_path: Path) -> None:
    other = tmp_path / "other.txt"
    other.write_text("short line: a square\n" * 60)
    given = {"dynamic": DynamicOptions(**RATES, segments=16), "max_segments": 20, "losses": True}
    result(runs, "characters", tmp_path, data_path=str(other), **given)
    trained, own = opened(runs)
    corpus = load_corpus(replace(trained.config.data, path=str(other)), trained.vocabulary)
    static = protocol_of(trained, max_segments=20)
    dynamic = learning_protocol(static, own, given["dynamic"])
    np.testing.assert_allclose(np.load(tmp_path / "losses_test_dynamic.npz")["nll"], dynamic.losses(corpus, "test").nll)
    assert not all(map(torch.equal, dynamic.rms, learning(static, corpus).rms))


def test_several_processes_are_refused(runs: SmallRuns, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"TORCHELASTIC_RUN_ID": "1", "WORLD_SIZE": "2", "RANK": "0", "LOCAL_RANK": "0"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(OptionError, match=r"^dynamic.lr=0.001: must run in one process"):
        run(EvaluateOptions(runs.checkpoint("characters"), dynamic=DynamicOptions(lr=1e-3)), tmp_path)
