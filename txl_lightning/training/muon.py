"""Muon for the matrices of the layers, Adam for everything else, as one optimizer."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from txl_lightning.errors import OptionError

STACKED = {".gates.weight": 3, ".weight_ih_l0": 4, ".weight_hh_l0": 4}  # matrices in the rows of a recurrent weight


class MuonWithAdam(torch.optim.Optimizer):
    """Muon (`torch.optim.Muon`) for every matrix inside the layers, AdamW for all other parameters.

    Muon replaces the momentum B of a matrix by the nearest orthogonal matrix O:

        B ← 0.95 B + G        W ← W - lr · 0.2 · sqrt(max(rows, columns)) · O        O ≈ U Vᵀ of G + 0.95 B = U S Vᵀ

    The factor gives updates the root mean square that Adam's have, so that both share one learning rate. Queries,
    keys and values (and the gates of a recurrent layer) are separate matrices, although one parameter holds them;
    `split_qkv=False` takes queries, keys and values as one matrix.
    Embeddings, softmax, biases, norms, u, v and trained position tables have no matrix in this sense: AdamW.

    The two share `param_groups` and `state` with this optimizer, so that a schedule, a checkpoint and a resumed run
    see one optimizer. `torch.optim.Muon` holds the options and the layout of the state; its step takes one matrix
    after the other, `update_matrices` all of one shape at once, with the same result.

    Args:
        model: whose parameters to train.
        lr: peak learning rate of both.
        betas: of AdamW.
        eps: of AdamW.
        weight_decay: decoupled, of both.
        fused: AdamW's fused step.
        split_qkv: take queries, keys and values as separate matrices, else as one matrix of 3·H·E rows.
        ns_dtype: number type of the iteration that finds O; bfloat16 as in `torch.optim.Muon`.

    Raises:
        OptionError: this torch has no Muon (it came with 2.9).
    """

    def __init__(
        self,
        model: nn.Module,
        lr: float,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        fused: bool = False,
        split_qkv: bool = True,
        ns_dtype: torch.dtype = torch.bfloat16,
    ) -> None:
        if not hasattr(torch.optim, "Muon"):
            raise OptionError("optimizer", "muon", f"needs torch >= 2.9, this is {torch.__version__}")
        self._ns_dtype = ns_dtype
        matrices = matrices_of_layers(model, split_qkv)
        self._blocks = {parameter: parameter.detach().chunk(n) for parameter, n in matrices}
        others = [parameter for parameter in model.parameters() if parameter not in self._blocks]
        self._muon = torch.optim.Muon(
            [block for blocks in self._blocks.values() for block in blocks],
            lr=lr,
            weight_decay=weight_decay,
            adjust_lr_fn="match_rms_adamw",
        )
        self._adam = torch.optim.AdamW(others, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, fused=fused)
        groups = [*self._muon.param_groups, *self._adam.param_groups]
        super().__init__([{"params": group["params"]} for group in groups], {})
        self.param_groups = groups
        self._share()

    def _share(self) -> None:
        """Let both optimizers work on this one's groups and state."""
        self._muon.param_groups, self._adam.param_groups = self.param_groups[:1], self.param_groups[1:]
        self._muon.state = self._adam.state = self.state

    def __setstate__(self, state: dict[str, Any]) -> None:  # torch calls it with the groups and state of a checkpoint
        super().__setstate__(state)
        self._share()

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update all parameters that have a gradient; none if `found_inf`, where a caller set it, is 1."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for parameter, blocks in self._blocks.items():
            grads: tuple[Tensor | None, ...] = (None,) * len(blocks)
            if parameter.grad is not None:
                grads = parameter.grad.chunk(len(blocks))
            for block, grad in zip(blocks, grads, strict=True):
                block.grad = grad
        found_inf = getattr(self, "found_inf", None)
        update_matrices(self.param_groups[0], self.state, self._ns_dtype, found_inf)
        self._adam.found_inf = found_inf  # type: ignore[attr-defined]
        self._adam.step()
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the gradients of all parameters."""
        for parameter in self._blocks:
            if set_to_none:
                parameter.grad = None
            elif parameter.grad is not None:
                parameter.grad.zero_()
        super().zero_grad(set_to_none)


def update_matrices(
    group: dict[str, Any],
    state: dict[Tensor, dict[str, Any]],
    ns_dtype: torch.dtype = torch.bfloat16,
    found_inf: Tensor | None = None,
) -> None:
    """Do the step of `torch.optim.Muon` for all matrices of a group.

    Small matrices cost more in calls than in arithmetic, so those of one shape (or its transpose) are stacked.

    Args:
        group: parameters and options of `torch.optim.Muon`.
        state: of each parameter; its `momentum_buffer` is made at the first step and updated.
        ns_dtype: of the iteration.
        found_inf: 1 leaves parameters and state as they are; it is not read on the host.
    """
    matrices = [matrix for matrix in group["params"] if matrix.grad is not None]
    if not matrices:
        return
    for matrix in matrices:
        if "momentum_buffer" not in state[matrix]:
            state[matrix]["momentum_buffer"] = torch.zeros_like(matrix.grad)
    grads = [matrix.grad for matrix in matrices]
    momenta = [state[matrix]["momentum_buffer"] for matrix in matrices]
    decay, kept = 1 - group["lr"] * group["weight_decay"], None
    if found_inf is not None:
        kept = (1 - found_inf).to(matrices[0].dtype)
        decay = torch.where(kept > 0, decay, torch.ones_like(kept))
        # A gradient equal to the momentum leaves the momentum as it is.
        grads = [torch.where(kept > 0, grad, momentum) for grad, momentum in zip(grads, momenta, strict=True)]
    torch._foreach_lerp_(momenta, grads, 1 - group["momentum"])
    updates = torch._foreach_lerp(grads, momenta, group["momentum"]) if group["nesterov"] else momenta
    by_shape: defaultdict[tuple[int, ...], list[tuple[Tensor, Tensor]]] = defaultdict(list)
    for matrix, update in zip(matrices, updates, strict=True):
        tall = matrix.shape[0] > matrix.shape[1]
        by_shape[tuple(sorted(matrix.shape))].append((matrix.T, update.T) if tall else (matrix, update))
    for (_, longest), members in by_shape.items():
        stack_NAB = torch.stack([update.to(ns_dtype) for _, update in members])
        orthogonal_NAB = orthogonalize(stack_NAB, group["ns_coefficients"], group["ns_steps"], group["eps"])
        views = [matrix for matrix, _ in members]
        if kept is not None:
            orthogonal_NAB = orthogonal_NAB * kept
        torch._foreach_mul_(views, decay)
        # match_rms_adamw
        torch._foreach_add_(views, list(orthogonal_NAB.unbind()), alpha=-group["lr"] * 0.2 * math.sqrt(longest))


def orthogonalize(
    matrices_NAB: Tensor, coefficients: tuple[float, float, float], steps: int, eps: float
) -> Float[Tensor, "N A B"]:
    """Return about U Vᵀ of each matrix U S Vᵀ, by Newton and Schulz's iteration of fifth degree.

        X ← X / |X|        X ← a X + (b X Xᵀ + c (X Xᵀ)²) X = P X,    P = a I + b G + c G²,    G = X Xᵀ

    In bfloat16 the products are those of `torch.optim.Muon`. In float32 matrices of at least twice as many columns as
    rows are multiplied by all P at once: G ← P G P gives the next P without X. The result is the same up to rounding,
    which this form enlarges, so it is not used with TensorFloat-32.

    Args:
        matrices_NAB: N matrices with no more rows than columns.
        coefficients: a, b and c.
        steps: number of iterations.
        eps: smallest Frobenius norm |X|.
    """
    a, b, c = coefficients
    norms = torch.stack([matrix.norm() for matrix in matrices_NAB])
    X = matrices_NAB / norms.clamp(min=eps)[:, None, None]
    exact = X.dtype == torch.float32 and torch.get_float32_matmul_precision() == "highest"
    if exact and X.shape[2] >= 2 * X.shape[1]:
        return _product_of_polynomials(X @ X.mT, coefficients, steps) @ X
    for _ in range(steps):
        gram = X @ X.mT
        X = torch.baddbmm(X, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), X, beta=a)
    return X


def _product_of_polynomials(
    gram_NAA: Tensor, coefficients: tuple[float, float, float], steps: int
) -> Float[Tensor, "N A A"]:
    """Return the product of the P of all steps; they are symmetric and commute."""
    a, b, c = coefficients

    def polynomial(gram_NAA: Tensor) -> Tensor:
        P = torch.baddbmm(gram_NAA, gram_NAA, gram_NAA, beta=b, alpha=c)
        P.diagonal(dim1=1, dim2=2).add_(a)
        return P

    product = P = polynomial(gram_NAA)
    for _ in range(steps - 1):
        gram_NAA = P @ gram_NAA @ P
        P = polynomial(gram_NAA)
        product = P @ product
    return product


def matrices_of_layers(model: nn.Module, split_qkv: bool = True) -> Iterator[tuple[nn.Parameter, int]]:
    """Yield the two-dimensional parameters of `model.layers`, each with the number of matrices stacked in its rows.

    Queries, keys and values of attention are rows of one parameter, as are the gates of a recurrent layer.

    Args:
        model: a Transformer-XL or a recurrent baseline.
        split_qkv: count queries, keys and values as separate matrices, else as one.
    """
    for name, parameter in model.named_parameters():
        if not name.startswith("layers.") or parameter.ndim != 2:
            continue
        owner = name.rpartition(".")[0]
        if owner.endswith(".qkv"):
            attention: Any = model.get_submodule(owner.removesuffix(".qkv"))
            yield parameter, attention.n_query + attention.n_key + 1 if split_qkv else 1
        else:
            yield parameter, next((n for ending, n in STACKED.items() if name.endswith(ending)), 1)
