"""The launcher that started the processes of a run (torchrun or SLURM), and the connection between them."""

from __future__ import annotations

import os
from typing import Any

import torch.distributed as dist
from lightning.fabric.plugins.environments import ClusterEnvironment, SLURMEnvironment, TorchElasticEnvironment

from txl_lightning.config.schemas import TrainerConfig
from txl_lightning.distributed.processes import MEETING
from txl_lightning.distributed.ranks import Ranks, meeting, n_processes, own_gpu
from txl_lightning.errors import require


def environment() -> ClusterEnvironment | None:
    """Return the launcher that started this run's processes (torchrun or SLURM); None without one."""
    if TorchElasticEnvironment.detect():
        return TorchElasticEnvironment()
    # SLURM_STEP_NUM_TASKS is set by srun only; a batch script that runs txl directly is one process.
    if SLURMEnvironment.detect() and int(os.environ.get("SLURM_STEP_NUM_TASKS", "1")) > 1:
        return SLURMEnvironment(auto_requeue=False)  # Lightning's requeue saves from inside a signal handler
    return None


def connect(options: TrainerConfig) -> Ranks:
    """Join the other processes of this run, if torchrun or SLURM started several.

    Raises:
        OptionError: the number of started processes differs from the configured one.
        UserError: the port of torchrun or SLURM cannot be used.
    """
    started = environment()
    world_size = 1 if started is None else started.world_size()
    require(
        n_processes(options) == world_size,
        "trainer.devices",
        options.devices,
        f"with trainer.num_nodes={options.num_nodes} the product must be {world_size}, the number of started processes",
    )
    if started is None or world_size == 1:
        return Ranks()
    if not dist.is_initialized():
        file, backend, device = os.environ.get(MEETING), "gloo", None
        if options.accelerator == "gpu":
            backend, device = "nccl", own_gpu(started.local_rank())
        with meeting():
            if file is None:
                os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = started.main_address, str(started.main_port)
            address = file or "env://"
            place: dict[str, Any] = {"rank": started.global_rank(), "world_size": world_size, "device_id": device}
            dist.init_process_group(backend, address, **place)
    return Ranks(started.global_rank(), world_size, dist.new_group(backend="gloo"), started.local_rank())
