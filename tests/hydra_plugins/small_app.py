"""A Hydra application that starts in a second: its jobs return, raise, die or wait, as they are told."""

import json
import os
import signal
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import hydra
from hydra.core.config_store import ConfigStore
from hydra.core.hydra_config import HydraConfig

from txl_lightning.command_line.multirun import OUTCOMES


@dataclass
class AppConfig:
    defaults: list[Any] = field(default_factory=lambda: ["_self_", {"override hydra/launcher": "process"}])
    do: str = "return"
    value: float = 0.0
    seconds: float = 0.0


def job(config: Any) -> float:
    """Do what `do` says, and write the process ids of the job to `job.json` in its directory."""
    pids = [os.getpid()]
    if config.do in ("wait", "ignore"):  # with a process in the job's group and one outside
        pids += [subprocess.Popen(["sleep", "600"], start_new_session=alone).pid for alone in (False, True)]
    if config.do == "ignore":
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
    record = {"pids": pids, "group": os.getpgrp(), "threads": os.environ.get("OMP_NUM_THREADS"), "start": time.time()}
    directory = Path(HydraConfig.get().runtime.output_dir)
    (directory / "part.json").write_text(json.dumps(record))
    (directory / "part.json").rename(directory / "job.json")
    print(f"job {HydraConfig.get().job.num} is here")
    if config.do in ("wait", "ignore"):
        try:
            time.sleep(600)
        except KeyboardInterrupt:
            (directory / "saved.txt").write_text("a checkpoint, say")
            os.kill(pids[2], signal.SIGKILL)  # outside its group: the job must end it
            raise
    if config.do == "raise":
        raise ValueError("as told")
    if config.do == "raise what cannot be pickled":
        raise type("LocalError", (Exception,), {})("as told")
    if config.do == "be killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if config.do == "exit":
        os._exit(7)
    time.sleep(config.seconds)
    (directory / "job.json").write_text(json.dumps({**record, "end": time.time()}))
    return config.value**2


def main() -> None:
    """Run the application; write the outcomes that the launcher recorded to `outcomes.json`."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # ignored if nohup started the tests
    ConfigStore.instance().store(name="app", node=AppConfig)
    try:
        hydra.main(version_base="1.3", config_path=None, config_name="app")(job)()
    finally:
        Path("outcomes.json").write_text(json.dumps(OUTCOMES))


if __name__ == "__main__":
    from tests.hydra_plugins.small_app import main as main_by_name  # jobs look for `job` under the module's name

    main_by_name()
