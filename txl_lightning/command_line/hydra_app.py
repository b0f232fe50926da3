"""Run a command as a Hydra application: one run, a multirun, or a further process of a launcher; compose configs."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import warnings
from argparse import Namespace
from collections.abc import Sequence
from contextlib import nullcontext, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import hydra
from hydra._internal.utils import get_args_parser
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.experimental.callback import Callback
from hydra.types import RunMode
from omegaconf import II, DictConfig, OmegaConf, read_write

from txl_lightning.command_line import (
    CALL,
    COMMANDS,
    Call,
    Command,
    JobError,
    current,
    ended_by_ctrl_c,
    show,
    usable_caches,
)
from txl_lightning.command_line.messages import EXPECTED, choices_of, is_expected, one_line, suggestion
from txl_lightning.command_line.multirun import multirun_name, report_failed_jobs, write_results
from txl_lightning.config.renamed import why_refused
from txl_lightning.config.schemas import (
    CONF,
    OWN_OPTIONS,
    Config,
    DataConfig,
    EncodingConfig,
    LoggerConfig,
    MemoryConfig,
    OptimizerConfig,
    RecurrentModelConfig,
    TableEncodingConfig,
    TrainerConfig,
    TransformerXLModelConfig,
    typed,
)
from txl_lightning.errors import Stopped, UserError, notice
from txl_lightning.files import locked, new_directory, write_text
from txl_lightning.jobs import JobFolder, identity, refuse_another_text
from txl_lightning.registry import CHOICES, load_guests

# Variables that options are made of, before Hydra sets those of `hydra.job.env_set`.
EARLY = {"TXL_GUESTS", "WANDB_DISABLED", "WANDB_MODE", "WANDB_PROJECT", "WANDB_RUN_GROUP", "WANDB_TAGS"}
COMPLETION = re.compile("(install|uninstall|query)=(bash|fish|zsh)")
NONE = re.compile(r"(?<![^\s,:(\[{])None(?![^\s,)\]}])")  # a whole value or element
# Hydra always makes a run directory. The current one exists already, and without a subdir Hydra writes no `.hydra/`.
NO_RUN_DIRECTORY = ("hydra.run.dir=.", "hydra.output_subdir=null")

# `${new_directory:PATH}` in `conf/common.yaml`; cached, so that a run has one directory.
OmegaConf.register_new_resolver("new_directory", new_directory, use_cache=True, replace=True)


def register(*commands: Command) -> None:
    """Register with Hydra the user's guests, and the schemas of groups and commands under the names that `conf/` uses.

    Args:
        commands: those to register; without any all of them.

    Raises:
        OptionError: a file of guests cannot be imported.
    """
    load_guests()
    nodes: dict[str, Any] = {
        "train_schema": Config,
        "model/schema": TransformerXLModelConfig,
        "model/recurrent_schema": RecurrentModelConfig,
        "encoding/schema": EncodingConfig,
        "encoding/table_schema": TableEncodingConfig,
        "memory/schema": MemoryConfig,
        "optimizer/schema": OptimizerConfig,
        "trainer/schema": TrainerConfig,
        "logger/schema": LoggerConfig,
        "data/schema": DataConfig(seed=II("seed")),
        **{f"data/{corpus}_schema": options(seed=II("seed")) for corpus, options in OWN_OPTIONS.items()},
        **{f"{group}/{name}": choice for (group, name), choice in CHOICES.items()},
    }
    for command in commands or COMMANDS.values():
        nodes |= {f"{command.name}_schema": command.schema}
        nodes |= {command.config_name: {"defaults": [f"{command.name}_schema", "_self_", "common"]}}
    for path, node in nodes.items():
        if not (CONF / f"{path}.yaml").is_file():
            group, _, name = path.rpartition("/")
            ConfigStore.instance().store(name, node, group or None)


def compose(*overrides: str) -> Any:
    """Return the config that `txl train OVERRIDES` trains, for notebooks: `training.run.train(config, directory)`.

    Raises:
        HydraException: an override is not usable.
    """
    register()
    kept = GlobalHydra.instance().hydra  # of a program with a Hydra of its own
    GlobalHydra.instance().clear()
    try:
        return typed(composition("config", overrides))
    finally:
        GlobalHydra.instance().hydra = kept


def composition(name: str, overrides: Sequence[str]) -> DictConfig:
    """Return Hydra's composition of a file in `conf/`; its schemas must be registered."""
    with hydra.initialize_config_dir(str(CONF), version_base="1.3"):
        return hydra.compose(name, list(overrides))


class Folders(Callback):
    """Notes of Hydra's folders for the call of `txl` that runs."""

    def on_run_start(self, config: DictConfig, **kwargs: Any) -> None:
        """Keep Hydra, which writes before the command does, from a folder that another command holds."""
        current().run_directory = directory = Path(str(config.hydra.run.dir))
        try:
            with locked(directory) if config.hydra.output_subdir else nullcontext():
                pass
        except (UserError, OSError):  # the command will say it
            with read_write(config.hydra):
                config.hydra.output_subdir = None

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        current().directory = Path(str(config.hydra.sweep.dir))


def run_command(command: Command, words: list[str]) -> None:
    """Run one command with the words typed after its name.

    Raises:
        SystemExit: after `--help`, on bad input, after a signal, or if jobs of a multirun failed.
    """
    with ended_by_ctrl_c():
        register(command)
    call, wants_traceback = Call(), os.environ.get("HYDRA_FULL_ERROR") == "1"
    token = CALL.set(call)
    try:
        _start(command, [literal(word, command.text_options) for word in words], wants_traceback, call)
    except KeyboardInterrupt as stopped:  # its argument is the signal, which `Jobs.run` names
        folder = call.directory if command.resumable else None
        again = f"; to continue, repeat the command with hydra.sweep.dir={folder}" if folder else ""
        print(f"txl {command.name}: interrupted{again}", file=sys.stderr)
        sys.exit(128 + (stopped.args[0] if stopped.args else signal.SIGINT))
    except Exception as error:
        if not any(call.outcomes):
            if wants_traceback or not is_expected(error):
                raise
            _fail(command, error)
        if not isinstance(error, JobError):  # of the sweeper itself
            print(f"txl {command.name}: {one_line(error, command.schema)}", file=sys.stderr)
    finally:
        CALL.reset(token)
    if failed := report_failed_jobs(command.name, call.outcomes):
        sys.exit(failed)


def _start(command: Command, words: list[str], wants_traceback: bool, call: Call) -> None:
    given = read_flags(words)
    composed = [*given.overrides]  # `compose` knows no flags
    composed += [f"hydra.searchpath=[{quoted(os.path.abspath(given.config_dir))}]"] if given.config_dir else []
    refuse_unusable(composed, command)
    if given.help:
        show(options_help(command, composed))
        return
    if command.shared_by_ranks and _is_further_rank():  # as the first one, without a directory, a log or output
        config = composition(command.config_name, composed)
        with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere):
            command.run(OmegaConf.to_object(config), Path(os.devnull))
        return
    flags = [word for word in words if word not in given.overrides]
    words = [*flags, *(NO_RUN_DIRECTORY if command.directory == "none" else ()), *given.overrides]
    application = hydra.main(version_base="1.3", config_path=str(CONF), config_name=command.config_name)
    arguments = sys.argv
    with usable_caches(), call.lock, warnings.catch_warnings():  # the first restores the environment
        warnings.filterwarnings("error", message="provider=hydra.searchpath")  # of a folder that does not exist
        # Hydra raises its errors instead of printing them on several lines.
        sys.argv, os.environ["HYDRA_FULL_ERROR"] = [sys.argv[0], *words], "1"
        try:
            application(HydraTask(command, wants_traceback))()
        finally:  # the results of a multirun also if it failed or was interrupted
            sys.argv = arguments
            if call.directory is not None and (table := write_results(call.directory)):
                show(f"{table.read_text()}{table}")


def read_flags(words: Sequence[str]) -> Namespace:
    """Parse words as Hydra does, overrides on both sides of a flag too, and refuse two flags.

    Raises:
        UserError: a flag is not known, or it is `--experimental-rerun`.
    """
    parser = get_args_parser()  # private

    def refuse(message: str) -> NoReturn:  # in place of the end of the process
        _, is_unknown, unknown = message.partition("unrecognized arguments: ")
        if not is_unknown:
            raise UserError(f"{message} (--hydra-help lists the flags)")
        flag = unknown.split(" ")[0]
        name, _, value = flag.partition("=")
        option = f"{name.lstrip('-')}={value or '…'}"
        raise UserError(f"{flag}: no such flag; options have no dashes: {option} (--help lists them)")

    parser.error = refuse  # type: ignore[method-assign]
    given = parser.parse_intermixed_args(words)
    if (rerun := given.experimental_rerun) is not None:
        raise UserError(f"--experimental-rerun={rerun}: is not supported, its file can run code; repeat the overrides")
    if given.shell_completion and not any(map(COMPLETION.fullmatch, given.overrides)):
        raise UserError("--shell-completion: needs install=SHELL, uninstall=SHELL or query=SHELL: bash, fish or zsh")
    return given


def refuse_unusable(overrides: Sequence[str], command: Command) -> None:
    """Refuse what Hydra would misread: two choices as one, no choice, `+option=value`, a choice of another command,
    a custom file with the name of one of ours, a variable that is not set.

    Raises:
        UserError: an override cannot be used.
    """
    for word in overrides:
        name, _, value = word.partition("=")
        listed = _list_of(word) if name.lstrip("+") in ("hydra.searchpath", "hydra.job.env_copy") else []
        if name.endswith("hydra.searchpath"):
            _refuse_names_of_ours(listed)
        elif unset := [variable for variable in listed if variable not in os.environ]:
            raise UserError(f"{word}: the variable {unset[0]} is not set")
        old_name = name.lstrip("+~")
        if (why := why_refused(old_name)) is not None:
            raise UserError(f"{old_name}: {why}")
        if not word.isascii() and word.encode(errors="replace").decode() != word:
            raise UserError(f"{ascii(word)[1:-1]}: must be UTF-8")
        if word.startswith("+") and not name.lstrip("+").startswith("hydra."):
            raise UserError(f"{word}: options cannot be added{suggestion(name.lstrip('+'), command.schema)}")
        if not name or not (CONF / name).is_dir():
            continue
        if value.startswith("[") and name not in ("experiment", "logger"):  # Hydra would merge the choices
            raise UserError(f"{word}: takes one choice; several need -m (a multirun): {name}={value.strip('[]')}")
        of_another = value.startswith("published/") != (command.name == "evaluate")
        if (of_another and value not in ("", "null")) if name == "experiment" else value == "null":
            raise UserError(f"{word}: must be one of {', '.join(choices_of(name, command))}")


def _list_of(word: str) -> list[str]:
    """Return the values of `option=[…]`; none of another one, which Hydra refuses."""
    (override,) = OverridesParser.create().parse_overrides([word])
    return list(map(str, value)) if isinstance(value := override.value(), list) else []


def _refuse_names_of_ours(searchpath: list[str]) -> None:
    """Refuse folders of `hydra.searchpath` with a file that Hydra would ignore, since one of ours has its name."""
    for folder in (Path(name.removeprefix("file://")) for name in searchpath):
        for ours in sorted(CONF.rglob("*.yaml")) if folder.resolve() != CONF.resolve() else ():
            own = folder / ours.relative_to(CONF)
            if own.is_file():
                raise UserError(f"{own}: has the name of a file of txl_lightning, which Hydra reads instead: rename it")


def options_help(command: Command, overrides: list[str]) -> str:
    """Return the help text of a command: usage, groups with their choices, options with the values of overrides.

    Hydra's own help composes its configuration again for every group, which takes seconds.

    Raises:
        HydraException: an override is not usable.
    """
    with hydra.initialize_config_dir(str(CONF), version_base="1.3"):
        config = hydra.compose(command.config_name, overrides=overrides, return_hydra_config=True)
        loader, groups, own = GlobalHydra.instance().config_loader(), list[str](), list[str]()
        for group in sorted(config.hydra.runtime.choices):
            if (CONF / group).is_dir() and "hydra" not in group:
                if any(word.startswith("hydra.searchpath=") for word in overrides):
                    own = loader.get_group_options(group, config_name=command.config_name, overrides=overrides)
                groups.append(f"  {group}: {', '.join(choices_of(group, command, own))}")
    config = OmegaConf.masked_copy(config, [str(name) for name in config if name != "hydra"])
    lines = [f"usage: txl {command.usage} [group=choice …] [key=value …]", "", command.summary, ""]
    lines += ["groups, as group=choice:", *groups, ""] if groups else []
    options = "options, as group.key=value or key=value; ??? must be given:"
    return "\n".join([*lines, options, "", OmegaConf.to_yaml(config)])


def literal(word: str, options: tuple[str, ...]) -> str:
    """Quote the value of `option=text`, so that Hydra and OmegaConf read the text as it was typed.

    Args:
        word: from the command line.
        options: names whose values are text; in any other value None, as W&B's sweeps write it, becomes null.
    """
    name, equals, text = word.partition("=")
    if equals and name in options:
        return f"{name}={quoted(text)}"
    return name + equals + (text if {"'", '"'} & set(text) else NONE.sub("null", text))


def quoted(text: str) -> str:
    """Return a text in the quotes and escapes of Hydra's grammar."""
    text = re.sub(r"(\\*)\$\{", lambda found: f"{found[1] * 2}\\${{", text)
    text = re.sub(r"(\\+)(?='|\Z)", lambda found: found[1] * 2, text).replace("'", "\\'")
    return f"'{text}'"


@dataclass(frozen=True)
class HydraTask:
    """Function that Hydra calls for every job; a multirun pickles it and sends it to the processes of its jobs.

    Attributes:
        command: row of the command in `txl_lightning.cli`.
        wants_traceback: whether the user set HYDRA_FULL_ERROR=1.
    """

    command: Command
    wants_traceback: bool

    def __call__(self, config: DictConfig) -> Any:
        """Run the command, or resume it if it is a job of a multirun that was stopped.

        Bad input ends the program, in a multirun only the job. A job that has finished returns its value again.

        Returns:
            The value of the command's objective; None without one.
        """
        if not self.wants_traceback:
            os.environ.pop("HYDRA_FULL_ERROR", None)
        command, settings = self.command, HydraConfig.get()
        multirun, directory = settings.mode == RunMode.MULTIRUN, Path(settings.runtime.output_dir)
        self._drop_what_has_no_effect(settings, multirun)
        if multirun and OmegaConf.select(config, "logger.group", default="") is None:
            config.logger.group = multirun_name(settings.sweep.dir)
        # SLURM starts the task of a job once for each rank; convert writes elsewhere.
        writes = os.environ.get("SLURM_PROCID", "0") == "0" and command.directory != "none"
        try:
            with locked(directory, wait=multirun) if writes else nullcontext():
                if multirun and command.resumable:
                    self._resume(config, settings, directory)
                else:
                    self._run(config, directory)
        except EXPECTED as error:
            if multirun and isinstance(error, Stopped):
                alone, whole = f"hydra.run.dir={directory} resume=auto", f"hydra.sweep.dir={settings.sweep.dir}"
                raise Stopped(str(error).replace(alone, whole), error.signum) from None
            if self.wants_traceback or multirun:
                raise
            _fail(command, error)
        return json.loads((directory / "metrics.json").read_text())[command.objective] if command.objective else None

    def _drop_what_has_no_effect(self, settings: Any, multirun: bool) -> None:
        """Say which settings of Hydra and variables have no effect here."""
        if multirun and (given := os.environ.pop("WANDB_RUN_ID", None)):
            notice(f"WANDB_RUN_ID={given} is one id, and a multirun has several runs: each gets its own")
        if not multirun and settings.sweeper.get("params"):
            notice("hydra.sweeper.params has no effect without -m: this is one run")
        for name in sorted(EARLY.intersection(settings.job.env_set)):
            notice(f"hydra.job.env_set.{name} has no effect: options are read before; export the variable")
        if settings.job.chdir:
            notice("hydra.job.chdir=true has no effect: paths are relative to the folder where the command started")
            os.chdir(settings.runtime.cwd)

    def _resume(self, config: DictConfig, settings: Any, directory: Path) -> None:
        """Run a job of a multirun, from where it was stopped; one that has finished before does not run again."""
        job = JobFolder(directory)
        refuse_another_text(Path(settings.sweep.dir), config)
        words = list(settings.overrides.task)
        job.begin({"objective": self.command.objective, "overrides": words, "options": identity(config)})
        if job.value is not None:
            print(f"{directory} has finished before")
            return
        if job.started:
            config.resume = "auto"
        try:
            self._run(config, directory)
        except Exception as error:
            if not isinstance(error, Stopped):
                job.add_error(one_line(error, self.command.schema))
            raise

    def _run(self, config: DictConfig, directory: Path) -> None:
        """Run the command; print its lines and the directory."""
        if self.command.directory == "prepared":
            directory.mkdir(parents=True, exist_ok=True)
            write_text(directory / "config.yaml", OmegaConf.to_yaml(config, resolve=True))
        with ended_by_ctrl_c():
            run = self.command.run
        for line in run(OmegaConf.to_object(config), directory):
            show(line)
        if self.command.directory != "none":
            show(str(directory))


def _is_further_rank() -> bool:
    if not {"RANK", "SLURM_PROCID"} & os.environ.keys():
        return False
    from txl_lightning.distributed.ranks import environment  # imports torch and Lightning

    started = environment()
    return started is not None and started.global_rank() > 0


def _fail(command: Command, error: BaseException) -> NoReturn:
    """End with one line and status 2, for a run that a signal stopped 128 + signal as a shell does."""
    rank = os.environ.get("RANK", os.environ.get("SLURM_PROCID", "0"))
    where = command.name if rank == "0" else f"{command.name}, rank {rank}"
    print(f"txl {where}: {one_line(error, command.schema)}", file=sys.stderr)
    sys.exit(128 + error.signum if isinstance(error, Stopped) else 2)
