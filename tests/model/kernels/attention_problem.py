"""One attention with random weights and inputs, and its output and gradients by any kernel."""

from dataclasses import dataclass

import torch
from torch import Tensor

from txl_lightning import TransformerXLConfig
from txl_lightning.model.attention import Attention
from txl_lightning.model.encodings import ENCODINGS, LayerPositions
from txl_lightning.model.positions import VisibleKeys, attention_mask, sinusoids_of_distances

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@dataclass(frozen=True)
class Problem:
    """Sizes and options; neither T nor K is a multiple of a block of 16."""

    T: int = 21
    M: int = 13
    filled: int = 7
    attention_len: int | None = None
    terms: str = "abcd"
    encoding: str = "relative"
    clamp_len: int = -1
    E: int = 5
    B: int = 2
    H: int = 2
    D: int = 6
    qk_norm: bool = False

    def visible(self, like: Tensor) -> VisibleKeys:
        mask_TK = attention_mask(self.T, self.M, self.filled, self.attention_len, like)
        return VisibleKeys(mask_TK, self.M - self.filled, self.attention_len)

    @property
    def config(self) -> TransformerXLConfig:
        sizes = {"d_model": self.D, "n_head": self.H, "d_head": self.E, "table_len": 64, "qk_norm": self.qk_norm}
        return TransformerXLConfig(1, encoding=self.encoding, terms=self.terms, **sizes)

    def run(
        self, kernel: str, dtype: torch.dtype, gradients: bool = True, rounded: torch.dtype | None = None
    ) -> dict[str, Tensor]:
        """The output and, by name, the gradient of everything that has one; inputs may be rounded to another type."""
        generator = torch.Generator().manual_seed(0)

        def random(*shape: int) -> Tensor:
            x = torch.randn(shape, generator=generator).to(rounded or dtype).to(DEVICE, dtype)
            return x.requires_grad_(gradients)

        attention = Attention(self.config).to(DEVICE, dtype).eval()
        attention.kernel = kernel
        weights = {name: random(*weight.shape) for name, weight in attention.named_parameters()}
        hidden, memory = random(self.B, self.T, self.D), random(self.B, self.M, self.D)
        u, v, S, shaw = random(self.H, self.E), random(self.H, self.E), self.M + self.T + 1, self.encoding == "shaw"
        table, bias, cotangent = random(self.H, S, self.E), random(S, self.H), random(self.B, self.T, self.D)
        positions = LayerPositions(
            u_HE=u,
            v_HE=None if shaw else v,
            sinusoids_SD=None if shaw else sinusoids_of_distances(S - 1, self.D, self.clamp_len, hidden),
            table_HSE=table if shaw else None,
            bias_HS=bias.T if shaw else None,
        ).of_terms(self.terms)
        if self.encoding in ("rope", "alibi"):  # without parameters
            positions = ENCODINGS[self.encoding](self.config).positions(S - 1, self.clamp_len, hidden)[0]
        inputs = (hidden, memory, positions, self.visible(hidden))
        output = torch.func.functional_call(attention, weights, inputs)
        if not gradients:
            return {"output": output}
        named = {**weights, "hidden": hidden, "memory": memory, "u": u, "v": v, "table": table, "bias": bias}
        found = torch.autograd.grad(output, list(named.values()), cotangent.detach(), allow_unused=True)
        return {"output": output, **{name: g for name, g in zip(named, found, strict=True) if g is not None}}


def assert_equals_eager(problem: Problem, kernel: str, gradients: bool = True) -> None:
    """In float32, beside eager attention in float64."""
    ours, eager = problem.run(kernel, torch.float32, gradients), problem.run("eager", torch.float64, gradients)
    assert ours.keys() == eager.keys()
    for name, expected in eager.items():
        atol = 3e-5 * max(1.0, expected.abs().max().item())  # gradients of weights are sums over all tokens
        torch.testing.assert_close(
            ours[name].double(), expected, rtol=1e-4, atol=atol, msg=lambda text, n=name: f"{n}: {text}"
        )


def assert_close_to_eager(problem: Problem, kernel: str, dtype: torch.dtype, largest_error: float) -> None:
    """In 16 bits, beside eager attention in float64 on the same numbers; relative to the largest number."""
    ours, eager = problem.run(kernel, dtype), problem.run("eager", torch.float64, rounded=dtype)
    assert ours.keys() == eager.keys()
    for name, expected in eager.items():
        assert ours[name].dtype == dtype
        error = (ours[name].double() - expected).abs().max() / expected.abs().max()
        assert error <= largest_error, f"{name}: {error:.3g}"
