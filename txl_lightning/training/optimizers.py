"""Optimizers and learning-rate schedule: the paper's Adam, AdamW, Muon."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR

from txl_lightning.config.schemas import OptimizerConfig
from txl_lightning.training import Values
from txl_lightning.training.objects import make

ADAM: dict[str, type[torch.optim.Optimizer]] = {
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
}
NS_PRECISIONS = {"bf16-true": torch.bfloat16, "32-true": torch.float32}  # in Muon's iteration

# Of Muon, as in `torch.optim.Muon`.
MOMENTUM = 0.95
STEPS = 5
COEFFICIENTS = (3.4445, -4.7750, 2.0315)
EPS = 1e-7


def learning_rate(config: OptimizerConfig, step: int, max_steps: float) -> float:
    """Return the learning rate after `step` updates.

        step < warmup:  lr · step / warmup, so the first step changes nothing
        else (cosine):  min_lr + (lr - min_lr) · (1 + cos(π · (step - start) / (max_steps - start))) / 2

    start = 0 as in the paper's PyTorch code, or the warm-up's end with `decay_after_warmup`, as in its TensorFlow code.
    The TensorFlow code also has min_lr > 0: 0.4 % of lr on GPUs, 1 % on TPUs.
    """
    if step < config.warmup_steps:
        return config.lr * step / config.warmup_steps
    if config.schedule == "constant" or max_steps == math.inf:
        return config.lr
    start = config.warmup_steps if config.decay_after_warmup else 0
    progress = min(
        1.0,
        (step - start) / max(1, max_steps - start),
    )
    share = 0.5 * (1.0 + math.cos(math.pi * progress))
    return config.min_lr + (config.lr - config.min_lr) * share


def make_optimizer(
    model: nn.Module, config: OptimizerConfig, max_steps: float, fused: bool
) -> tuple[torch.optim.Optimizer, LambdaLR]:
    """Return the optimizer and its per-step schedule; `fused` must be off with a gradient scaler (16-mixed).

    The schedule follows a learning rate that is changed in the config.

    Raises:
        OptionError: the class `optimizer._target_` cannot be made.
    """
    lr = config.lr
    optimizer: torch.optim.Optimizer
    if config._target_ is not None:
        given = {"_target_": config._target_, "lr": lr, **config.arguments}
        if config.weight_decay > 0:
            given["weight_decay"] = config.weight_decay
        groups = parameter_groups(model, config)
        betas = tuple(config.betas)
        optimizer = make(given, "optimizer._target_", torch.optim.Optimizer, groups, betas=betas)
    elif config.name == "muon":
        optimizer = MuonWithAdam(model, config, fused)
    else:
        groups = parameter_groups(model, config)
        optimizer = ADAM[config.name](
            groups,
            **_adam_options(config, fused),
        )
    return optimizer, LambdaLR(optimizer, lambda step: learning_rate(config, step, max_steps) / lr)


def follow_schedule(schedule: Any) -> None:
    """Set the learning rate to a resumed run's schedule; its number of steps may have changed."""
    if isinstance(schedule, LambdaLR):
        for group, share in zip(schedule.optimizer.param_groups, schedule.lr_lambdas, strict=True):
            group["lr"] = group["initial_lr"] * share(schedule.last_epoch)


def check_moments(optimizer: torch.optim.Optimizer) -> None:
    """Compare the shapes of restored moments: an optimizer's fused step would write beyond their end."""
    for weight, moments in optimizer.state.items():
        for moment in moments.values():
            if isinstance(moment, Tensor) and moment.shape not in (weight.shape, ()):
                raise ValueError(
                    f"moments of a weight of shape {list(weight.shape)} have another shape"
                )


def parameter_groups(model: nn.Module, config: OptimizerConfig) -> list[Values]:
    """Return the parameters as groups of an optimizer, so that weight decay is of matrices of the layers alone."""
    parameters = list(model.parameters())
    if config.weight_decay == 0 or config.weight_decay_on == "all":
        return [{"params": parameters}]
    matrices = dict(matrices_of_layers(model))
    others = [parameter for parameter in parameters if parameter not in matrices]
    return [{"params": list(matrices)}, {"params": others, "weight_decay": 0.0}]


def _adam_options(config: OptimizerConfig, fused: bool) -> Values:
    return {
        "lr": config.lr,
        "betas": tuple(config.betas),
        "weight_decay": config.weight_decay,
        "fused": fused,
    }


class MuonWithAdam(torch.optim.Optimizer):
    """Muon for every matrix inside the layers, AdamW for all other parameters.

    Muon replaces a matrix's momentum B by the nearest orthogonal matrix O:

        B ← 0.95 B + 0.05 G    W ← (1 - lr · decay) W - lr · 0.2 · sqrt(max(rows, columns)) · O
        O ≈ U Vᵀ of 0.05 G + 0.95 B = U S Vᵀ

    The factor gives updates the same root mean square as Adam's, so both share one learning rate. Queries, keys and
    values (and a recurrent layer's gates) are separate matrices, although one parameter holds them. Embeddings,
    softmax, biases, norms, u, v and trained position tables have no matrix in this sense: AdamW.

    Results equal `torch.optim.Muon` (`match_rms_adamw`), which iterates in bfloat16 only and takes one matrix after the
    other. AdamW shares `param_groups` and `state` with this optimizer, so a schedule, a checkpoint and a resumed run
    see one optimizer.

    Args:
        model: whose parameters to train.
        config: both have its `lr` and `weight_decay`, AdamW its `betas`; `ns_precision` is the number type in the
            iteration that finds O, `auto` means bfloat16 as in `torch.optim.Muon`.
        fused: AdamW's fused step.
    """

    def __init__(self, model: nn.Module, config: OptimizerConfig, fused: bool = False) -> None:
        self._ns_dtype = NS_PRECISIONS.get(config.ns_precision, torch.bfloat16)
        self.n_matrices: dict[Tensor, int] = dict(matrices_of_layers(model))
        others = [parameter for parameter in model.parameters() if parameter not in self.n_matrices]
        options = _adam_options(config, fused)
        if config.weight_decay_on == "matrices":
            options["weight_decay"] = 0.0
        self._adam = torch.optim.AdamW(others, **options)
        muon = {
            "params": list(self.n_matrices),
            "lr": config.lr,
            "weight_decay": config.weight_decay,
        }
        super().__init__([muon, *self._adam.param_groups], {})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update all parameters that have a gradient."""
        with torch.enable_grad():
            loss = closure() if closure is not None else None
        group = self.param_groups[0]
        parameters = [parameter for parameter in group["params"] if parameter.grad is not None]
        if parameters:
            decay = 1 - group["lr"] * group["weight_decay"]
            self._step_of_matrices(parameters, group["lr"], decay)
        # Both are other objects once a checkpoint is loaded.
        self._adam.param_groups = self.param_groups[1:]
        self._adam.state = self.state
        self._adam.step()
        return loss

    def _step_of_matrices(self, parameters: list[Tensor], lr: float, decay: float) -> None:
        gradients: list[Any] = [parameter.grad for parameter in parameters]
        momenta = []
        for parameter in parameters:
            state = self.state[parameter]
            if "momentum_buffer" not in state:
                state["momentum_buffer"] = torch.zeros_like(parameter)
            momenta.append(state["momentum_buffer"])
        torch._foreach_lerp_(momenta, gradients, 1 - MOMENTUM)
        updates = torch._foreach_lerp(gradients, momenta, MOMENTUM)
        torch._foreach_mul_(parameters, decay)
        # Small matrices cost more in calls than in arithmetic: equally shaped or transposed matrices are stacked.
        pairs_by_shape = defaultdict(list)
        for parameter, update in zip(parameters, updates, strict=True):
            n = self.n_matrices[parameter]
            matrices = parameter.chunk(n)
            parts = update.chunk(n)
            for matrix, part in zip(matrices, parts, strict=True):
                if part.shape[0] > part.shape[1]:
                    matrix = matrix.T
                    part = part.T
                pairs_by_shape[tuple(part.shape)].append((matrix, part))
        for shape, pairs in pairs_by_shape.items():
            stacked_NAB = torch.stack([part for _, part in pairs]).to(self._ns_dtype)
            orthogonal_NAB = orthogonalize(stacked_NAB).to(pairs[0][0].dtype)
            step = lr * 0.2 * math.sqrt(shape[1])
            torch._foreach_add_(
                [matrix for matrix, _ in pairs],
                list(orthogonal_NAB.unbind()),
                alpha=-step,
            )


def orthogonalize(matrices_NAB: Tensor) -> Float[Tensor, "N A B"]:
    """Return about U Vᵀ for each matrix U S Vᵀ, by five steps of Newton and Schulz's fifth-degree iteration.

        X ← X / |X|        X ← a X + (b G + c G²) X,    G = X Xᵀ

    In bfloat16 the products equal `torch.optim.Muon`'s.

    Args:
        matrices_NAB: N matrices with no more rows than columns.
    """
    a, b, c = COEFFICIENTS
    norms = torch.stack(torch._foreach_norm(matrices_NAB.unbind()))
    X = matrices_NAB / norms.clamp(min=EPS)[:, None, None]
    for _ in range(STEPS):
        gram = X @ X.mT
        polynomial = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
        X = torch.baddbmm(X, polynomial, X, beta=a)
    return X


def matrices_of_layers(model: nn.Module) -> Iterator[tuple[nn.Parameter, int]]:
    """Yield the two-dimensional parameters in `model.layers`, each with the number of matrices stacked in its rows.

    A module's `stacked` gives the number by parameter name: attention's queries, keys and values are rows in one
    parameter, and so are a recurrent layer's gates.

    Args:
        model: a Transformer-XL or a recurrent baseline.
    """
    stacked = {}
    for module in model.modules():
        for name, n in getattr(module, "stacked", {}).items():
            stacked[module.get_parameter(name)] = n
    for name, parameter in model.named_parameters():
        if name.startswith("layers.") and parameter.ndim == 2:
            yield parameter, stacked.get(parameter, 1)
