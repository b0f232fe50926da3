"""Losses, memories and gradients are those of the paper's PyTorch code and of Hugging Face's class."""

import copy
import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from torch import Tensor

from tests.model.tiny_model import EXACT, assert_close
from txl_lightning import Memory, TransformerXL
from txl_lightning.model.checkpoints import (
    from_huggingface,
    from_original,
    to_huggingface,
    to_original,
)

FILES = sorted((Path(__file__).parent.parent / "reference").glob("*.safetensors"))
ORIGINAL = [path for path in FILES if not path.stem.startswith("hf_")]
COMPUTED = "pos_emb.inv_freq"  # stored in checkpoints, but not a weight


@dataclass(frozen=True)
class Reference:
    """One file: the model of another implementation and what it computed."""

    config: dict
    tensors: dict[str, Tensor]

    @classmethod
    def load(cls, path: Path) -> "Reference":
        with safe_open(path, "pt") as file:
            return cls(
                json.loads(file.metadata()["config"]),
                {key: file.get_tensor(key) for key in file.keys()},  # noqa: SIM118
            )

    @property
    def is_original(self) -> bool:
        return self.config["source"].startswith("kimiyoung")

    @cached_property
    def weights(self) -> dict[str, Tensor]:
        return self.under("weights/")

    def under(self, prefix: str) -> dict[str, Tensor]:
        return {
            key.removeprefix(prefix): tensor
            for key, tensor in self.tensors.items()
            if key.startswith(prefix)
        }

    def model(self) -> TransformerXL:
        return (from_original if self.is_original else from_huggingface)(self.weights, self.config)

    def converted_back(self, model: TransformerXL) -> dict[str, Tensor]:
        return (to_original if self.is_original else to_huggingface)(model)[0]

    def segments(self) -> list[tuple[Tensor, Tensor]]:
        """Tokens (extended context included) and targets of every segment."""
        extended = position = self.config.get("ext_len", 0)
        pairs = []
        for length in self.config["segments"]:
            end = position + length
            tokens = self.tensors["stream"][:, position - extended : end]
            targets = self.tensors["stream"][:, position + 1 : end + 1]
            pairs.append((tokens, targets))
            position = end
        return pairs

    def scored(self, model: TransformerXL) -> list[tuple[Tensor, Memory]]:
        """Losses of every segment and the memory after it."""
        results = []
        for tokens, targets in self.segments():
            memory = results[-1][1] if results else None
            results.append(model.score(tokens, targets, memory))
        return results

    def assert_states(self, segment: int, memory: Memory, close: dict[str, float]) -> None:
        """The memory after a segment holds the states that the other implementation kept."""
        expected = self.under(f"memory/{segment}/")
        assert len(expected) == (self.config["n_layer"] if self.config["mem_len"] else 0)
        assert expected or memory.length == 0
        for layer, states in expected.items():
            torch.testing.assert_close(
                memory.states[int(layer)],
                states,
                **close,
            )


def stem(path: Path) -> str:
    return path.stem


@pytest.fixture(params=FILES, ids=stem)
def reference(request: pytest.FixtureRequest) -> Reference:
    return Reference.load(request.param)


def test_losses_and_memory_of_every_segment(reference):
    for i, (nll, memory) in enumerate(reference.scored(reference.model())):
        assert_close(nll, reference.tensors[f"nll/{i}"])
        reference.assert_states(i, memory, EXACT)


@pytest.mark.parametrize("reference", ORIGINAL, indirect=True, ids=stem)
def test_gradients_of_every_parameter_in_the_last_segment(reference):
    model = reference.model()
    expected = reference.under("grad/")
    reference.scored(model)[-1][0].mean().backward()
    ours = reference.converted_back(with_gradients_as_weights(model))
    assert_gradients(ours, expected, learned_alone(reference.weights), EXACT)


def assert_gradients(
    ours: dict[str, Tensor], expected: dict[str, Tensor], learned: set[str], close: dict
) -> None:
    """Gradients by name are close, and of what was learned nothing else has one."""
    assert expected.keys() <= ours.keys()
    for name, gradient in expected.items():
        torch.testing.assert_close(
            ours[name], gradient, **close, msg=lambda text, name=name: f"{name}: {text}"
        )
    assert [name for name in learned - expected.keys() if ours[name].any()] == []


def test_weights_convert_back_to_the_same_bits(reference):
    converted = reference.converted_back(reference.model())
    assert converted.keys() == reference.weights.keys()
    for name, weight in reference.weights.items():
        tolerance = 1e-9 if name.endswith(COMPUTED) else 0
        assert_close(converted[name], weight, tolerance)


def with_gradients_as_weights(model: TransformerXL) -> TransformerXL:
    """A copy whose parameters are the gradients, so that the conversion of weights names them."""
    holder = copy.deepcopy(model)
    for copied, parameter in zip(holder.parameters(), model.parameters(), strict=True):
        copied.data.zero_()
        if parameter.grad is not None:
            copied.data = parameter.grad
    return holder


def learned_alone(weights: dict[str, Tensor]) -> set[str]:
    """Names of the parameters that share their tensor with no other name."""
    alone = set()
    for name, weight in weights.items():
        n_equal = sum(torch.equal(weight, other) for other in weights.values())
        if n_equal == 1 and not name.endswith(COMPUTED):
            alone.add(name)
    return alone
