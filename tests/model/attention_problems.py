"""Small attentions with a judge: the sum of the four terms by their formulas, in float64."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from txl_lightning.model.attention import AttentionInputs
from txl_lightning.model.positions import VisibleKeys, attention_mask

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


PARAMETERS = {
    "b": {"r_HSE"},
    "c": {"u_HE"},
    "d": {"r_HSE", "v_HE"},
}  # of each term


@dataclass(frozen=True)
class Problem:
    """Sizes and terms of one attention; with `table` (d) is a bias of the distances."""

    terms: str = "abcd"
    T: int = 21
    M: int = 13
    filled: int = 7
    attention_len: int | None = None
    table: bool = False
    documents: bool = False
    B: int = 2
    H: int = 3
    E: int = 5

    def tensors(self, dtype: torch.dtype) -> dict[str, Tensor]:
        """Queries, keys and values, and the parameters of the terms, by their names."""
        generator = torch.Generator().manual_seed(0)
        K = self.M + self.T
        shapes = {
            "q_HBTE": (self.H, self.B, self.T, self.E),
            "k_HBKE": (self.H, self.B, K, self.E),
            "values_HBKE": (self.H, self.B, K, self.E),
            "r_HSE": (self.H, K + 1, self.E),
            "u_HE": (self.H, self.E),
            "v_HE": (self.H, self.E),
            "bias_HS": (self.H, K + 1),
        }
        tensors = {}
        for name, shape in shapes.items():
            tensors[name] = torch.randn(shape, generator=generator).to(DEVICE, dtype)
        return tensors

    def visible(self, like: Tensor) -> VisibleKeys:
        mask_TK = attention_mask(
            self.T,
            self.M,
            self.filled,
            self.attention_len,
            like,
        )
        if self.documents:  # the second stream begins one at its fourth token
            hidden = torch.zeros_like(mask_TK)
            hidden[3:, : self.M + 3] = float("-inf")
            mask_TK = torch.stack([mask_TK, mask_TK + hidden])
        is_full = self.filled == self.M
        return VisibleKeys(mask_TK, sees_memory=is_full and self.attention_len is None)

    def inputs(self, tensors: dict[str, Tensor]) -> AttentionInputs:
        """The attention with the parameters that its terms need."""
        needed = {"q_HBTE", "k_HBKE", "values_HBKE"}
        for term in self.terms:
            needed |= {"bias_HS"} if self.table and term == "d" else PARAMETERS.get(term, set())
        given = {name: tensor if name in needed else None for name, tensor in tensors.items()}
        visible = self.visible(tensors["q_HBTE"])
        return AttentionInputs(**given, terms=self.terms, visible=visible)


Attend = Callable[[AttentionInputs], Tensor]


def heads(problem: Problem, attend: Attend, dtype: torch.dtype) -> dict[str, Tensor]:
    """The heads that a function returns, computed without gradients."""
    with torch.no_grad():
        return {"output": attend(problem.inputs(problem.tensors(dtype)))}


def heads_and_gradients(problem: Problem, attend: Attend, dtype: torch.dtype) -> dict[str, Tensor]:
    """The heads that a function returns, and the gradients of all its inputs by name."""
    tensors = problem.tensors(dtype)
    for tensor in tensors.values():
        tensor.requires_grad_()
    output = attend(problem.inputs(tensors))
    gradients = torch.autograd.grad(
        output, list(tensors.values()), output.detach().cos(), materialize_grads=True
    )
    results = {"output": output}
    results.update(zip(tensors, gradients, strict=True))
    return results


def judge(inputs: AttentionInputs) -> Tensor:
    """Softmax of the sum of the four terms, each by its formula; r by the distance of each pair."""
    x = inputs
    T, E = x.q_HBTE.shape[2:]
    K = x.k_HBKE.shape[2]
    distance_TK = K - T + torch.arange(T)[:, None] - torch.arange(K)
    row_TK = (K - distance_TK.clamp(min=0)).to(x.q_HBTE.device)
    A = torch.zeros_like(x.visible.mask_TK)
    if "a" in x.terms:
        A = A + torch.einsum("hbte,hbke->hbtk", x.q_HBTE, x.k_HBKE)
    if "b" in x.terms:
        A = A + torch.einsum("hbte,htke->hbtk", x.q_HBTE, x.r_HSE[:, row_TK])
    if "c" in x.terms:
        A = A + torch.einsum("he,hbke->hbk", x.u_HE, x.k_HBKE)[:, :, None]
    if x.bias_HS is not None:
        A = A + x.bias_HS[:, None, row_TK]
    elif "d" in x.terms:
        A = A + torch.einsum("he,htke->htk", x.v_HE, x.r_HSE[:, row_TK])[:, None]
    probabilities = (A / math.sqrt(E) + x.visible.mask_TK).softmax(-1)
    return probabilities.expand(*x.q_HBTE.shape[:3], K) @ x.values_HBKE
