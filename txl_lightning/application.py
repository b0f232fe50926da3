"""A command as a Hydra application: its config, its run folder with a lock, its errors in one line."""

from __future__ import annotations

import contextlib
import difflib
import io
import os
import re
import signal
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import hydra
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import CompactHydraException, HydraException
from hydra.experimental.callback import Callback
from hydra.types import RunMode
from omegaconf import II, DictConfig, OmegaConf
from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException
from yaml import YAMLError

from txl_lightning.commands import COMMANDS, Command
from txl_lightning.config.schemas import (
    CONF,
    OWN_OPTIONS,
    Config,
    DataConfig,
    EncodingConfig,
    ExtrasConfig,
    LoggerConfig,
    MemoryConfig,
    OptimizerConfig,
    RecurrentModelConfig,
    TableEncodingConfig,
    TrainerConfig,
    TransformerXLModelConfig,
    open_schema,
    typed,
    why_refused,
)
from txl_lightning.errors import Stopped, UserError, is_first_rank, require
from txl_lightning.files import locked, write_text
from txl_lightning.help import explained, option_meanings
from txl_lightning.launcher import CALL, prepare_wandb, run_in_process
from txl_lightning.multirun import JobFolder, check_search, write_results
from txl_lightning.registry import CHOICES, load_guests

EXPECTED = (UserError, HydraException, OmegaConfBaseException, YAMLError, OSError)
FULL_ERROR = "HYDRA_FULL_ERROR"
LISTS = ("callbacks", "experiment", "logger")  # groups that take several choices
OPTIONAL = (*LISTS, "debug", "hparams_search", "variant")  # groups that may be null
# A further rank writes nothing: Hydra makes no folder and no log for it.
OF_FURTHER_RANKS = (
    "hydra.run.dir=.",
    "hydra.output_subdir=null",
    "hydra/job_logging=none",
    "hydra/hydra_logging=none",
)


class Refused(SystemExit):
    """End a command after bad input. Hydra's callbacks and jobs pass it on, unlike other exceptions."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(2)
        self.error = error


def schemas() -> dict[str, Any]:
    """Return what Hydra composes for `GROUP/NAME` or `NAME` beside the files in `conf/`."""
    nodes: dict[str, Any] = {
        "train_schema": Config,
        "callbacks/schema": open_schema(dict),
        "model/schema": TransformerXLModelConfig,
        "model/recurrent_schema": RecurrentModelConfig,
        "encoding/schema": EncodingConfig,
        "encoding/table_schema": TableEncodingConfig,
        "memory/schema": MemoryConfig,
        "optimizer/schema": open_schema(OptimizerConfig),
        "trainer/schema": open_schema(TrainerConfig),
        "logger/schema": open_schema(LoggerConfig),
        "data/schema": DataConfig(seed=II("seed")),
    }
    for corpus, options in OWN_OPTIONS.items():
        nodes[f"data/{corpus}_schema"] = options(seed=II("seed"))
    for (group, name), choice in CHOICES.items():
        if not (CONF / group / f"{name}.yaml").is_file():
            nodes[f"{group}/{name}"] = choice
    return nodes


def register(*commands: Command) -> None:
    """Register the user's choices, and the schemas for groups and commands, with Hydra.

    Args:
        commands: commands to register; without any, all.

    Raises:
        OptionError: a user's file cannot be imported.
    """
    load_guests()
    nodes = schemas()
    for command in commands or COMMANDS.values():
        name = command.config_name
        nodes[f"{command.name}_schema"] = command.schema
        if not (CONF / f"{name}.yaml").is_file():
            nodes[name] = {"defaults": [f"{name}_schema", "_self_", "common"]}
    for path, node in nodes.items():
        group, _, name = path.rpartition("/")
        ConfigStore.instance().store(name, node, group or None)


def compose(*overrides: str) -> Any:
    """Return the config that `txl train OVERRIDES` trains, for notebooks: `training.run.train(config, directory)`.

    Raises:
        HydraException: an override is not usable.
    """
    register()
    other = GlobalHydra.instance().hydra  # a program that uses Hydra itself
    GlobalHydra.instance().clear()
    try:
        return typed(composition("config", overrides))
    finally:
        GlobalHydra.instance().hydra = other


def composition(name: str, overrides: Sequence[str]) -> DictConfig:
    """Return the config that Hydra composes from a file in `conf/`; its schemas must be registered."""
    with hydra.initialize_config_dir(str(CONF), version_base="1.3"):
        return hydra.compose(name, list(overrides))


class RunFolder(Callback):
    """Hydra callback in `conf/common.yaml`: locks the folder before Hydra writes into it."""

    def on_run_start(self, config: DictConfig, **kwargs: Any) -> None:
        """Lock a run's folder."""
        with _refusing():
            _refuse_hidden_files(config)
            if config.hydra.output_subdir is not None:
                CALL.folder = Path(str(config.hydra.run.dir))
                CALL.locks.enter_context(locked(CALL.folder))

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        """Lock a multirun's folder, and refuse a search whose jobs would all fail."""
        with _refusing():
            _refuse_hidden_files(config)
            check_search(config)
            folder = Path(str(config.hydra.sweep.dir))
            prepare_wandb(folder)
            CALL.locks.enter_context(locked(folder))
            CALL.sweep_dir = folder


@contextlib.contextmanager
def _refusing() -> Iterator[None]:
    """Turn an expected error into the command's end: Hydra reports other exceptions as warnings."""
    try:
        yield
    except EXPECTED as error:
        raise Refused(error) from error


def _refuse_hidden_files(config: DictConfig) -> None:
    """Refuse a user's folder with a file that has the name of one of ours: Hydra would read ours."""
    names = [path.relative_to(CONF) for path in CONF.rglob("*.yaml")]
    for source in config.hydra.runtime.config_sources:
        folder = Path(str(source.path)).resolve()
        if source.schema == "file" and folder != CONF.resolve():
            for name in names:
                hidden = "has the name of a file of txl_lightning, which Hydra reads instead"
                if (folder / name).is_file():
                    raise UserError(f"{folder / name}: {hidden}: rename it")


@dataclass(frozen=True)
class Task:
    """Function that Hydra calls with the composed config."""

    command: Command

    def __call__(self, config: DictConfig) -> float | None:
        """Run the command; in a multirun return the loss that a search minimizes."""
        settings: Any = HydraConfig.get()
        if settings.mode == RunMode.MULTIRUN:
            try:
                return run_in_process(self.command, config, settings, self._run)
            except (UserError, OmegaConfBaseException, OSError) as error:
                raise CompactHydraException(one_line(error)) from None
        with _refusing():
            self._run(config, Path(settings.runtime.output_dir))
        return None

    def _run(self, config: DictConfig, directory: Path) -> None:
        """Run the command; print its lines and the directory."""
        text = OmegaConf.to_yaml(config, resolve=True)
        if self.command.directory == "prepared" and is_first_rank():
            directory.mkdir(parents=True, exist_ok=True)
            write_text(directory / "config.yaml", text)
        options = typed(config)
        if isinstance(options, Config):
            apply_extras(options.extras, options.tags)
            if options.extras.print_config and is_first_rank():
                print(text, end="", flush=True)
        # imports torch, as all commands do
        from txl_lightning.ranks import keep_freed_memory

        keep_freed_memory()
        lines = self.command.run(options, directory)
        if self.command.directory != "none":
            lines.append(str(directory))
        if is_first_rank():
            print("\n".join(lines), flush=True)


def apply_extras(extras: ExtrasConfig, tags: list[str]) -> None:
    """Do what the node `extras` asks for before a run.

    Raises:
        OptionError: there are no tags, and they are demanded.
    """
    required = "must not be empty with extras.enforce_tags=true"
    require(bool(tags) or not extras.enforce_tags, "tags", tags, required)
    if extras.ignore_warnings:
        warnings.filterwarnings("ignore")


def run_command(command: Command, words: list[str]) -> None:
    """Run one command with the words typed after its name.

    Raises:
        SystemExit: after `--help`, on bad input, after a signal, or if jobs in a multirun failed.
    """
    wants_traceback = os.environ.get(FULL_ERROR) == "1"
    os.environ[FULL_ERROR] = "1"  # Hydra then raises its errors, and does not print them
    CALL.folder = CALL.sweep_dir = None
    CALL.failures.clear()
    arguments = sys.argv
    try:
        try:
            start(command, words)
        finally:
            sys.argv = arguments
            CALL.locks.close()
            show_results()
    except KeyboardInterrupt as stopped:  # its argument is the signal, which `Jobs.run` names
        again = ""
        if CALL.sweep_dir is not None and command.resume:
            again = f"; to continue, repeat the command with hydra.sweep.dir={CALL.sweep_dir}"
        print(f"txl {command.name}: interrupted{again}", file=sys.stderr)
        sys.exit(128 + (stopped.args or (signal.SIGINT,))[0])
    except (Refused, *EXPECTED, RuntimeError) as error:
        # Optuna's sweeper raises a RuntimeError in place of the error of a grid's last job.
        if isinstance(error, RuntimeError) and "Study.stop" not in str(error):
            raise
        cause = getattr(error, "error", error)
        if wants_traceback:
            raise cause from None
        if not CALL.failures:  # else the sweeper repeats the job's error
            fail(command, cause)
    for line in CALL.failures:
        print(f"txl {command.name}: {line}", file=sys.stderr)
    if CALL.failures:
        sys.exit(f"txl {command.name}: failed jobs: {len(CALL.failures)}")


def start(command: Command, words: list[str]) -> None:
    """Call Hydra with a command's words."""
    register(command)
    words = usable(words)
    if "--help" in words or "-h" in words:
        help_text = hydra_output(command, words)
        print(explained(help_text, command.schema, schemas()), end="", flush=True)
        return
    if command.shared_by_ranks and not is_first_rank():
        words = [*OF_FURTHER_RANKS, *words]
    call_hydra(command, words, Task(command))


def call_hydra(command: Command, words: list[str], task: Callable[[DictConfig], Any]) -> None:
    """Let Hydra read the words of a command and call a function with the config."""
    sys.argv = [sys.argv[0], *words]
    main = hydra.main(
        version_base="1.3",
        config_path=str(CONF),
        config_name=command.config_name,
    )
    main(task)()


def hydra_output(command: Command, words: list[str]) -> str:
    """Return what Hydra prints for words that run no task."""
    output = io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.suppress(SystemExit):
        call_hydra(command, words, print)
    return output.getvalue()


def show_results() -> None:
    """Print a multirun's table, also after a failure or an interrupt."""
    if CALL.sweep_dir is not None:
        table = write_results(CALL.sweep_dir)
        if table is not None:
            print(f"{table.read_text()}{table}", flush=True)


def usable(words: Sequence[str]) -> list[str]:
    """Return words as Hydra takes them: `logger=null` is `logger=none`.

    Hydra would add an option that nothing reads, and merge two choices of a group that are in a list.

    Raises:
        UserError: a word cannot be used.
    """
    typed_words = []
    for word in words:
        name, _, value = word.partition("=")
        option = name.lstrip("+~")
        is_group = name != "" and (CONF / name).is_dir()
        reason = why_refused(option)
        if name.startswith("+") and not option.startswith("hydra."):
            reason = f"options cannot be added{nearest_names(option)}"
        elif is_group and value.startswith("[") and name not in LISTS:
            reason = f"takes one choice; several need -m (a multirun): {name}={value.strip('[]')}"
        elif is_group and value in ("", "null"):
            word = f"~{name}"
            if name not in OPTIONAL:
                reason = "takes one choice (--help lists them)"
        if reason is not None:
            raise UserError(f"{name}: {reason}")
        typed_words.append(word)
    return typed_words


def completions(command: Command, words: list[str], line: str) -> str:
    """Return Hydra's completions for a typed line, without the schemas that group choices build on.

    Args:
        command: command in the line.
        words: the arguments to Hydra's script.
        line: typed line without the command's name.
    """
    register(command)
    os.environ["COMP_LINE"] = line
    choices = hydra_output(command, words).split()
    return " ".join(choice for choice in choices if not choice.endswith("schema"))


def one_line(error: BaseException) -> str:
    """Return an error's message in one line, for an unknown option with the nearest name."""
    unknown = re.match(r"Could not override '([^']+)'", str(error))
    if unknown:
        return f"{unknown[1]}: no such option{nearest_names(unknown[1])}"
    if isinstance(error, MissingMandatoryValue):
        return f"{error.full_key}: must be given ({error.full_key}=…)"
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename or 'a file of the run or the output'}: {error.strerror}"
    text = str(error)
    if isinstance(error, HydraException) and error.__cause__ is not None:
        text += f": {error.__cause__}"
    return " ".join(text.split()) or type(error).__name__


def nearest_names(option: str) -> str:
    """Return `, did you mean …?` with the names of options like one that does not exist."""
    command = COMMANDS["train"]  # also of `make reproduce`
    if len(sys.argv) > 1:
        command = COMMANDS.get(sys.argv[1], command)
    variant = ""
    for word in sys.argv:
        if word.startswith("variant="):
            variant = word.removeprefix("variant=")
    names = option_meanings(command.schema, schemas(), variant)
    if option in names:
        return " of this choice (--help lists them)"
    last = option.split(".")[-1]
    near = [name for name in names if name.endswith(f".{last}")]
    near = near or difflib.get_close_matches(option, names, n=3)
    if not near:
        return " (--help lists them)"
    return f", did you mean {' or '.join(near)}?"


def fail(command: Command, error: BaseException) -> NoReturn:
    """End with one line and status 2; a run that a signal stopped ends with 128 + the signal, as a shell does."""
    line = one_line(error)
    status = 2
    if isinstance(error, Stopped):
        status = 128 + error.signum
    elif CALL.folder is not None:
        JobFolder(CALL.folder).fail(line)
    name = command.name
    if not is_first_rank():
        name += f", rank {os.environ.get('RANK') or os.environ.get('SLURM_PROCID')}"
    print(f"txl {name}: {line}", file=sys.stderr)
    sys.exit(status)
