"""The command `txl`."""

from __future__ import annotations

import dataclasses
import difflib
import importlib
import os
import re
import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any, NoReturn, get_type_hints

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from txl_lightning.config.composition import register_command, register_schemas
from txl_lightning.config.schemas import CONF, Config, typed
from txl_lightning.distributed.multirun import JobError, failed_jobs, multirun_name, report_failed_jobs
from txl_lightning.errors import Stopped, UserError
from txl_lightning.evaluation.attention.options import AttentionOptions
from txl_lightning.evaluation.evaluate.options import EvaluateOptions
from txl_lightning.evaluation.generate.options import GenerateOptions
from txl_lightning.evaluation.recl.options import ReclOptions
from txl_lightning.evaluation.speed.options import SpeedOptions
from txl_lightning.runs.convert.options import ConvertOptions

USAGE = """usage: txl COMMAND [overrides]

  txl train [overrides]              train one model; -m for a multirun (txl train -m memory=on,off)
  txl evaluate checkpoint=PATH       nll and ppl or bpc of a checkpoint, at any lengths; a sweep of attention lengths
  txl recl checkpoints=[A,B,…]       relative effective context length of a group, gain curves, loss by context
  txl attention checkpoint=PATH      where each head looks, on average and on a piece of text
  txl speed                          time of a token: vanilla sliding window against state reuse (Table 9)
  txl generate checkpoint=PATH prompt=TEXT
                                     text drawn from a model, shown as it is drawn; context=N continues test tokens
  txl convert source=PATH source_format=FORMAT target=PATH target_format=FORMAT
                                     original, huggingface and txl checkpoints into one another

txl COMMAND --help lists the options of a command."""


def run_directory() -> Path:
    """Where Hydra lets this job write; nowhere for a further rank, which has its first one's directory."""
    return Path(HydraConfig.get().runtime.output_dir if HydraConfig.initialized() else os.devnull)


def train(config: DictConfig) -> float:
    """One training run; returns the validation loss for sweepers."""
    from txl_lightning.distributed.ranks import leaving
    from txl_lightning.training.run import train as train_run

    with leaving():
        metrics = train_run(typed(config), run_directory())
    shown = [f"{key} {metrics[key]:.4f}" for key in metrics if key.endswith(("/nll", "/bpc", "/ppl"))]
    print(f"{', '.join(shown)} after {metrics['steps']} steps")
    print(run_directory())
    return metrics["val/nll"]


def measurement(package: str) -> Callable[[DictConfig], None]:
    """The task of a command whose `run` returns lines to print."""

    def task(config: DictConfig) -> None:
        directory = run_directory()
        if HydraConfig.initialized() and "convert" not in package:
            directory.mkdir(parents=True, exist_ok=True)
            (directory / "config.yaml").write_text(OmegaConf.to_yaml(config, resolve=True), "utf-8")
        lines = importlib.import_module(f"txl_lightning.{package}.command").run(OmegaConf.to_object(config), directory)
        shown = [] if "convert" in package or ("recl" in package and not lines) else [directory]
        for line in [*lines, *shown]:
            print(line)

    return task


evaluate, recl = measurement("evaluation.evaluate"), measurement("evaluation.recl")
attention, speed = measurement("evaluation.attention"), measurement("evaluation.speed")
generate, convert = measurement("evaluation.generate"), measurement("runs.convert")


COMMANDS: dict[str, tuple[Callable[[DictConfig], Any], str, type]] = {
    "train": (train, "config", Config),
    "evaluate": (evaluate, "evaluate", EvaluateOptions),
    "recl": (recl, "recl", ReclOptions),
    "attention": (attention, "attention", AttentionOptions),
    "speed": (speed, "speed", SpeedOptions),
    "generate": (generate, "generate", GenerateOptions),
    "convert": (convert, "convert", ConvertOptions),
}
SHARED = ("train", "recl")  # among the processes that torchrun or SLURM starts
EXTRAS = {"optuna": "sweep", "submitit_slurm": "slurm"}  # choices that come with an extra of pyproject.toml
NO_SLURM = 'Could not detect "srun"'  # submitit's, a RuntimeError
EXPECTED = (UserError, HydraException, OmegaConfBaseException, OSError)


def register_all() -> None:
    """Register the schemas of every command with Hydra."""
    register_schemas()
    for name, (_, _, schema) in COMMANDS.items():
        if name != "train":
            register_command(name, schema)


@dataclasses.dataclass(frozen=True)
class Task:
    """What Hydra calls for a job; every job of a multirun finds it again, by name, in a process of its own."""

    command: str
    wants_traceback: bool

    def __call__(self, config: DictConfig) -> Any:
        """Run the command; bad input of a single run ends the program."""
        if not self.wants_traceback:
            os.environ.pop("HYDRA_FULL_ERROR", None)
        task, _, schema = COMMANDS[self.command]
        try:
            for override in HydraConfig.get().overrides.task:
                if override.startswith("+"):
                    key = override.lstrip("+").split("=")[0]
                    raise UserError(f"{override}: options cannot be added{suggestion(key, schema)}")
            multirun = HydraConfig.get().mode == RunMode.MULTIRUN
            if multirun and OmegaConf.select(config, "logger.group", default="") is None:
                config.logger.group = multirun_name(HydraConfig.get().sweep.dir)
            return task(config)
        except EXPECTED as error:
            if self.wants_traceback or HydraConfig.get().mode == RunMode.MULTIRUN:
                raise
            fail(f"{self.command}: {one_line(error, schema)}", exit_status(error))


def main() -> None:
    """Entry point: `txl COMMAND …`, exit status 2 and one line on bad input, 143 or 130 after a clean stop.

    A multirun's exit status is the number of its jobs that failed, 100 for more, and 130 after Ctrl-C.
    """
    if len(sys.argv) < 2 or sys.argv[1] in ("-h", "--help", "help"):
        print(USAGE)
        sys.exit(0 if len(sys.argv) > 1 else 2)
    command = sys.argv.pop(1)
    if command not in COMMANDS:
        fail(f"unknown command {command!r}: must be one of {', '.join(COMMANDS)}")
    _, config_name, schema = COMMANDS[command]
    if command == "generate":
        sys.argv[1:] = [literal(word, "prompt") for word in sys.argv[1:]]
    register_all()
    # Hydra prints several lines and exits on its own unless it is told to raise; the user's wish is kept.
    wants_traceback = os.environ.get("HYDRA_FULL_ERROR") == "1"
    os.environ["HYDRA_FULL_ERROR"] = "1"
    task = Task(command, wants_traceback)
    if command in SHARED and is_further_rank():
        return run_as_told(command)
    try:
        hydra.main(version_base="1.3", config_path=str(CONF), config_name=config_name)(task)()
    except KeyboardInterrupt:
        print(f"txl {command}: interrupted", file=sys.stderr)
        sys.exit(130)
    except Exception as error:
        expected = isinstance(error, EXPECTED) or NO_SLURM in str(error)
        if not failed_jobs() and (wants_traceback or not expected):
            raise
        if not failed_jobs():
            fail(f"{command}: {one_line(error, schema)}")
        if all(error is not job.error for job in failed_jobs()):
            print(f"txl {command}: {describe(error, schema)}", file=sys.stderr)
    if failed := report_failed_jobs(command, lambda error: describe(error, schema)):
        sys.exit(failed)


def literal(word: str, option: str) -> str:
    """`option=text` quoted for Hydra's grammar and OmegaConf's, so that a text is what was typed."""
    name, equals, text = word.partition("=")
    if name != option or not equals:
        return word
    text = re.sub(r"(\\*)\$\{", lambda found: f"{found[1] * 2}\\${{", text)
    text = re.sub(r"(\\+)(?='|\Z)", lambda found: found[1] * 2, text).replace("'", "\\'")
    return f"{option}='{text}'"


def is_further_rank() -> bool:
    """Whether torchrun or SLURM started this process beside the first one of its run."""
    if not {"RANK", "SLURM_PROCID"} & os.environ.keys():
        return False
    from txl_lightning.distributed.ranks import environment

    started = environment()
    return started is not None and started.global_rank() > 0


def run_as_told(command: str) -> None:
    """What a further rank does: the same configuration, but no directory, log or word of its own."""
    task, config_name, schema = COMMANDS[command]
    try:
        with hydra.initialize_config_dir(str(CONF), version_base="1.3"):
            overrides = [word for word in sys.argv[1:] if not word.startswith("-")]
            config = hydra.compose(config_name, overrides=overrides)
        with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere):
            task(config)
    except EXPECTED as error:
        rank = os.environ.get("RANK", os.environ.get("SLURM_PROCID"))
        fail(f"{command}, rank {rank}: {one_line(error, schema)}", exit_status(error))


def exit_status(error: BaseException) -> int:
    """2 for bad input, and the shell's convention for a run that a signal stopped."""
    return 128 + error.signum if isinstance(error, Stopped) else 2


def describe(error: BaseException, schema: type) -> str:
    """`one_line` for what is expected; anything else with its type."""
    if isinstance(error, (*EXPECTED, JobError)):
        return one_line(error, schema)
    return f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0]}"


def one_line(error: BaseException, schema: type) -> str:
    """The option, its value and what is allowed, out of what Hydra and OmegaConf say in many lines."""
    messages = [str(error)]
    while (error := error.__cause__) is not None:  # type: ignore[assignment]
        messages.append(str(error))
    text = "\n".join(messages)
    if NO_SLURM in text:
        return "hydra/launcher=slurm: needs srun and sbatch, which are not on this machine"
    if missing := re.search(r"missing mandatory value: (\S+)", text):
        return f"{missing[1]}: must be given ({missing[1]}=…)"
    if unknown := re.search(r"Could not override '([^']+)'", text):
        typed = next((word for word in sys.argv if word.startswith(f"{unknown[1]}=")), unknown[1])
        return f"{typed}: no such option{suggestion(unknown[1], schema)}"
    if choice := re.search(
        r"Could not find '([^']+)/([^'/]+)'\s+Available options in '[^']+':\s+(.*?)\s+Config search", text, re.S
    ):
        if extra := EXTRAS.get(choice[2]):
            return f"{choice[1]}={choice[2]}: needs pip install 'txl_lightning[{extra}]'"
        allowed = [option for option in choice[3].split() if not option.endswith("schema")]
        own = f" (one of your own: encoding.name={choice[2]})" if choice[1] == "encoding" else ""
        return f"{choice[1]}={choice[2]}: must be one of {', '.join(allowed)}{own}"
    if value := re.search(r"Error merging override (\S+)\s+(.*)", text):
        return f"{value[1]}: {value[2]}"
    return text.strip().splitlines()[0]


def suggestion(key: str, schema: type) -> str:
    """`, did you mean …` for the options whose names are nearest to `key`."""
    names = [
        name if not dataclasses.is_dataclass(field.type) else f"{name}.{inner.name}"
        for name, field in schema_fields(schema).items()
        for inner in (dataclasses.fields(field.type) if dataclasses.is_dataclass(field.type) else [field])
    ]
    same_end = [name for name in names if name.split(".")[-1] == key.split(".")[-1]]
    near = same_end or difflib.get_close_matches(key, names, n=3, cutoff=0.6)
    return f", did you mean {' or '.join(near)}?" if near else " (--help lists them)"


def schema_fields(schema: type) -> dict[str, dataclasses.Field]:
    """The fields of a schema with their types resolved."""
    types = get_type_hints(schema)
    fields = {field.name: field for field in dataclasses.fields(schema)}
    for name, field in fields.items():
        field.type = types[name]
    return fields


def fail(message: str, status: int = 2) -> NoReturn:
    """End with one line."""
    print(f"txl {message}" if not message.startswith("unknown") else f"txl: {message}", file=sys.stderr)
    sys.exit(status)


if __name__ == "__main__":
    # `python -m` calls this module `__main__`; a multirun's jobs look for `Task` under its name.
    from txl_lightning.cli import main as main_by_name

    main_by_name()
