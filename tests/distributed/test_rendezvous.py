"""Ranks that torchrun or SLURM starts meet at a port."""

import socket

import pytest

from txl_lightning.config.schemas import TrainerConfig
from txl_lightning.distributed.ranks import connect, process_group
from txl_lightning.errors import UserError


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
