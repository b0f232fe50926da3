"""Ranks of one machine cannot be reached from another address."""

import os
import socket
import threading
import time
from pathlib import Path

import psutil
import pytest
import torch
import torch.distributed as dist

from txl_lightning.config.schemas import TrainerConfig
from txl_lightning.distributed.environment import connect
from txl_lightning.distributed.processes import run_on_all
from txl_lightning.distributed.ranks import process_group
from txl_lightning.errors import UserError


def meet(folder: str) -> float:
    """Add a number over the ranks, then wait until the test has looked at their sockets."""
    ranks = connect(TrainerConfig(accelerator="cpu", devices=2))
    total = torch.tensor(ranks.rank + 1.0)
    dist.all_reduce(total)
    Path(folder, f"ready{ranks.rank}").touch()
    deadline = time.monotonic() + 60
    while not Path(folder, "seen").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    dist.destroy_process_group()
    return total.item()


@pytest.mark.parametrize(
    ("port", "why"),
    [("taken", "address already in use"), ("abc", "invalid literal"), ("70000", "0 to 65535"), ("", "")],
)
def test_a_port_at_which_ranks_cannot_meet_is_named(monkeypatch: pytest.MonkeyPatch, port: str, why: str) -> None:
    """Of torchrun and SLURM, in a training and in `txl recl`."""
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = str(other.getsockname()[1]) if port == "taken" else port
        started = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        for name, value in {**started, "GROUP_RANK": "0", "LOCAL_WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "x"}.items():
            monkeypatch.setenv(name, value)
        line = f"^MASTER_ADDR=127.0.0.1 MASTER_PORT={port}: the ranks cannot meet there: .*{why}"
        with pytest.raises(UserError, match=line):
            connect(TrainerConfig(accelerator="cpu", devices=2))
        with pytest.raises(UserError, match=line), process_group():
            pass


def test_nothing_of_two_ranks_listens_beyond_the_loopback(tmp_path: Path) -> None:
    """The main thread runs the ranks, since it alone handles signals; another one looks at their sockets."""
    found: list[str] = []

    def look() -> None:
        deadline = time.monotonic() + 120
        while not all((tmp_path / f"ready{rank}").exists() for rank in (0, 1)) and time.monotonic() < deadline:
            time.sleep(0.05)
        ours = [psutil.Process(os.getpid()), *psutil.Process(os.getpid()).children(recursive=True)]
        for process in ours:
            found.extend(
                connection.laddr.ip
                for connection in process.net_connections("inet")
                if connection.status == psutil.CONN_LISTEN
            )
        (tmp_path / "seen").touch()

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    assert run_on_all(meet, str(tmp_path), processes=2) == 3
    thread.join(10)
    assert found, "gloo listens somewhere"
    assert all(address.startswith("127.") or address == "::1" for address in found), found
