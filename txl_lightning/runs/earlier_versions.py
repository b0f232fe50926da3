"""Checkpoints of versions 0.1 to 0.4, brought into the form of this one."""

from __future__ import annotations

import math
from dataclasses import fields
from typing import Any

import torch

from txl_lightning.config.schemas import OWN_OPTIONS, data_class
from txl_lightning.errors import UserError

GONE: dict[str, tuple[Any, ...] | None] = {  # options of earlier versions: their values without effect, None for all
    "trainer.max_nonfinite_steps": None,
    "checkpoint.memory": None,
    "trainer.progress_file": None,
    "trainer.attention": None,
    **dict.fromkeys(f"context_curve.{name}" for name in ("first_context", "step", "n_positions", "fractions")),
    "model.sink": (False,),
    "model.final_norm": (False,),
    "model.qk_norm": (False,),
    "model.norm": ("layer",),
    "model.feed_forward": ("relu",),
    "model.residual": ("sum",),
    "model.forget_gate": (False,),
    "model.forget_len": None,
    "model.attention_gate": ("none",),
    "memory.compression": (None,),
    **dict.fromkeys(("memory.rate", "memory.compression_loss", "memory.compressed_len")),
    "memory.n_tokens": (0,),
    **dict.fromkeys(("memory.write_tokens", "memory.tokens_see_states", "evaluation.compressed_len")),
    "memory.first": (0,),
    "data.bytes": None,
    "data.prefix": (False,),
    "evaluation.first": (None, 0),
    **dict.fromkeys(("logger.artifacts", "logger.run_name", "new_vocabulary")),
    "encoding.interpolation": (1.0,),
    "optimizer.eps": (1e-8,),
    "optimizer.split_qkv": (True,),
}
LOGGERS = {  # of Lightning, which were named without their classes up to 0.4.0
    "csv": {"_target_": "lightning.pytorch.loggers.CSVLogger", "name": None},
    "tensorboard": {"_target_": "lightning.pytorch.loggers.TensorBoardLogger"},
}
STEPS = "epoch_loop.manual_optimization.optim_step_progress"  # where Lightning's loop counts them


def upgraded(contents: dict[str, Any]) -> dict[str, Any]:
    """Return the contents of a checkpoint, changed in place to what this version would have written.

    Raises:
        UserError: it is no checkpoint of `txl train`, or an option that is gone had an effect; the message names the
            version that has it.
    """
    if not isinstance(contents, dict) or not {"txl_lightning", "state_dict", "global_step"} <= contents.keys():
        raise UserError("is not a checkpoint of txl train")
    _upgrade_config(contents["txl_lightning"]["config"])
    if "pytorch-lightning_version" in contents:  # else weights only
        _upgrade_training(contents)
    return contents


def _upgrade_config(config: dict[str, Any]) -> None:
    for option, without_effect in GONE.items():
        group, _, name = option.rpartition(".")
        inside = config.get(group, {}) if group else config
        if name in inside:
            value = inside.pop(name)
            if without_effect is not None and value not in without_effect:
                raise UserError(f"its config has {option}={value}, which version 0.3.0 has and this one has not")
    trainer, data, logger = config["trainer"], config["data"], config["logger"]
    if logger["name"] in LOGGERS:
        logger.setdefault("each", {logger["name"]: LOGGERS[logger["name"]]})
    if "column_chunks" in trainer:  # the name up to 0.3.0
        trainer["stream_groups"] = trainer.pop("column_chunks")
    if data["level"] == "word":
        data.setdefault("min_count", 1)  # before 0.4.0 every word of the training text had an entry
    own = {f.name for f in fields(data_class(data["name"]))}
    for name in {f.name for options in OWN_OPTIONS.values() for f in fields(options)} - own:
        data.pop(name, None)


def _upgrade_training(contents: dict[str, Any]) -> None:
    loops, best = contents["loops"]["fit_loop"], contents["callbacks"]["Checkpoints"]
    if not loops[STEPS]["total"]["completed"]:  # up to 0.2.0 Lightning did the steps
        loops[STEPS] = loops["epoch_loop.automatic_optimization.optim_progress"]["optimizer"]["step"]
    best.setdefault("kept", {})
    if not best.pop("best_counts", True):  # up to 0.3.0
        best["best"] = {"nll": math.inf, "step": -1}
    if len(contents["optimizer_states"][0]["param_groups"]) > 1:
        _join_momenta(contents["optimizer_states"][0], contents["state_dict"])


def _join_momenta(optimizer: dict[str, Any], weights: dict[str, torch.Tensor]) -> None:
    """Give every weight in the layers one momentum; up to 0.3.0 Muon had one for each matrix in its rows."""
    muon, adam = optimizer["param_groups"]
    in_layers = [x for name, x in weights.items() if name.startswith("model.layers.") and x.ndim == 2]
    if len(in_layers) == len(muon["params"]):
        return
    state, matrices, joined = optimizer["state"], iter(muon["params"]), list[Any]()
    for weight in in_layers:
        parts: list[torch.Tensor] = []
        while sum(map(len, parts)) < len(weight):
            parts.append(state[next(matrices)]["momentum_buffer"])
        joined.append({"momentum_buffer": torch.cat(parts)})
    n = len(joined)
    moved = {number: state[old] for number, old in enumerate(adam["params"], n) if old in state}
    optimizer["state"] = {**dict(enumerate(joined)), **moved}
    muon["params"], adam["params"] = list(range(n)), list(range(n, n + len(adam["params"])))
