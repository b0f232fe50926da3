"""A command as a Hydra application: its config, its run folder with a lock, its errors in one line, its help."""

from __future__ import annotations

import contextlib
import difflib
import inspect
import io
import os
import re
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any

import hydra
from hydra.core.config_store import ConfigStore
from hydra.core.hydra_config import HydraConfig
from hydra.errors import CompactHydraException, HydraException
from hydra.experimental.callback import Callback
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from txl_lightning.commands import COMMANDS, Command
from txl_lightning.config.schemas import (
    CONF,
    LIGHTNINGS_NAMES,
    Config,
    schemas,
    typed,
    why_refused,
)
from txl_lightning.errors import Stopped, UserError, is_first_rank, require
from txl_lightning.files import locked, write_text
from txl_lightning.launcher import CALL, prepare_wandb, run_job
from txl_lightning.multirun import JobFolder, check_search, write_results
from txl_lightning.registry import CHOICES, load_guests

EXPECTED = (UserError, HydraException, OmegaConfBaseException, YAMLError, OSError)
FULL_ERROR = "HYDRA_FULL_ERROR"
LISTS = ("callbacks", "experiment", "logger")  # groups that take several choices
# A further rank writes nothing: Hydra makes no folder and no log for it.
OF_FURTHER_RANKS = (
    "hydra.run.dir=.",
    "hydra.output_subdir=null",
    "hydra/job_logging=none",
    "hydra/hydra_logging=none",
)
ENTRY = re.compile(r"^    (\w+): (.+(?:\n {8}.+)*)", re.MULTILINE)  # in a docstring's list
OPTION = re.compile(r"( *)(\w+):")  # in a YAML config
VARIANT = re.compile(r"^variant:\n  name: (\w+)$", re.MULTILINE)
BEFORE_OPTIONS = "== Config =="  # Hydra's heading
COLUMN = 36
SCHEMAS = re.compile(r"\b[\w-]*schema\b, |, [\w-]*schema\b(?!,)")  # in a list of choices


def register(*commands: Command) -> None:
    """Register the user's choices, and the schemas for groups and commands, with Hydra.

    Args:
        commands: commands to register; without any, all.

    Raises:
        OptionError: a user's file cannot be imported.
    """
    load_guests()
    nodes = schemas()
    for (group, name), choice in CHOICES.items():
        nodes[f"{group}/{name}"] = choice
    for command in commands or COMMANDS.values():
        name = command.name
        nodes[f"{command.name}_schema"] = command.schema
        nodes[name] = {"defaults": [f"{name}_schema", "_self_", "common"]}
    for path, node in nodes.items():
        group, _, name = path.rpartition("/")
        if not (CONF / f"{path}.yaml").is_file():
            ConfigStore.instance().store(name, node, group or None)


def compose(*overrides: str) -> Any:
    """Return the config that `txl train OVERRIDES` trains, for notebooks: `training.run.train(config, directory)`.

    Raises:
        HydraException: an override is not usable.
    """
    register()
    return typed(composition("train", overrides))


def composition(name: str, overrides: Sequence[str]) -> DictConfig:
    """Return the config that Hydra composes from a file in `conf/`; its schemas must be registered."""
    with hydra.initialize_config_dir(str(CONF), version_base="1.3"):
        return hydra.compose(name, usable(overrides))


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
        raise SystemExit(2) from error


def _refuse_hidden_files(config: DictConfig) -> None:
    """Refuse a user's folder with a file that has the name of one of ours: Hydra would read ours."""
    for source in config.hydra.runtime.config_sources:
        if source.schema == "file" and source.provider != "main":
            for ours in CONF.rglob("*.yaml"):
                path = Path(source.path) / ours.relative_to(CONF)
                hidden = "has the name of a file of txl_lightning, which Hydra reads instead"
                if path.is_file():
                    raise UserError(f"{path}: {hidden}: rename it")


@dataclass(frozen=True)
class Task:
    """Function that Hydra calls with the composed config."""

    command: Command

    def __call__(self, config: DictConfig) -> float | None:
        """Run the command; in a multirun return the loss that a search minimizes."""
        settings: Any = HydraConfig.get()
        if settings.mode == RunMode.MULTIRUN:
            try:
                return run_job(self.command, config)
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
            required = "must not be empty with extras.enforce_tags=true"
            has_tags = bool(options.tags) or not options.extras.enforce_tags
            require(has_tags, "tags", options.tags, required)
            if options.extras.ignore_warnings:
                warnings.filterwarnings("ignore")
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
            if CALL.sweep_dir is not None:
                show_results(CALL.sweep_dir)
    except (SystemExit, *EXPECTED, RuntimeError) as error:
        cause = error
        if isinstance(error, SystemExit) and error.__cause__ is not None:
            cause = error.__cause__
        # Optuna's sweeper raises a RuntimeError in place of the error of a grid's last job.
        if not isinstance(cause, EXPECTED) and "Study.stop" not in str(cause):
            raise
        if wants_traceback:
            raise cause from None
        if not CALL.failures:  # else the sweeper repeats the job's error
            sys.exit(refused(command, cause))
    for line in CALL.failures:
        print(f"txl {command.name}: {line}", file=sys.stderr)
    if CALL.failures:
        sys.exit(f"txl {command.name}: failed jobs: {len(CALL.failures)}")


def start(command: Command, words: list[str]) -> None:
    """Call Hydra with a command's words."""
    register(command)
    words = usable(words)
    if "--help" in words or "-h" in words:
        print(explained(hydra_output(command, words), command), end="", flush=True)
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
        config_name=command.name,
    )
    main(task)()


def hydra_output(command: Command, words: list[str]) -> str:
    """Return what Hydra prints for words that run no task."""
    output = io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.suppress(SystemExit):
        call_hydra(command, words, print)
    return output.getvalue()


def show_results(sweep_dir: Path) -> None:
    """Print a multirun's table, also after a failure or an interrupt."""
    table = write_results(sweep_dir)
    if table is not None:
        print(f"{table.read_text()}{table}", flush=True)


def usable(words: Sequence[str]) -> list[str]:
    """Return words as Hydra takes them: `logger=null` is `logger=none`, Lightning's names are ours.

    Hydra would add an option that nothing reads, and merge two choices of a group that are in a list.

    Raises:
        UserError: a word cannot be used.
    """
    typed_words = []
    for word in words:
        name, _, value = word.partition("=")
        option = name.lstrip("+~")
        reason = why_refused(option)
        if name in LIGHTNINGS_NAMES:
            word = f"{LIGHTNINGS_NAMES[name]}={value}"
        if name.startswith("+") and not option.startswith("hydra."):
            reason = f"options cannot be added{nearest_names(option)}"
        if value == "null" and (CONF / name).is_dir():
            word = f"~{name}"
        if value.startswith("[") and (CONF / name).is_dir() and name not in LISTS:
            reason = f"takes one choice; several need -m: {name}={value.strip('[]')}"
        if reason is not None:
            raise UserError(f"{name}: {reason}")
        typed_words.append(word)
    return typed_words


def completions(command: Command, words: list[str]) -> list[str]:
    """Return Hydra's completions for COMP_LINE, without the schemas that group choices build on."""
    register(command)
    choices = hydra_output(command, words).split()
    return [choice for choice in choices if not choice.endswith("schema")]


def one_line(error: BaseException) -> str:
    """Return an error's message in one line, for an unknown option with the nearest name."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename or 'a file of the run or the output'}: {error.strerror}"
    text = str(error)
    unknown = re.match(r"Could not override '([^']+)'", text)
    if unknown:
        return f"{unknown[1]}: no such option{nearest_names(unknown[1])}"
    if isinstance(error, OSError) and error.filename is None:
        text = f"a file of the run or the output: {error.strerror}"
    if isinstance(error, HydraException) and error.__cause__ is not None:
        text += f": {error.__cause__}"
    return " ".join(text.split()) or type(error).__name__


def refused(command: Command, error: BaseException) -> int:
    """Say in one line why a command ends; return its status: 2, or as in a shell 128 + the signal that stopped it."""
    line = one_line(error)
    status = 2
    if isinstance(error, Stopped):
        status = 128 + error.signum
    elif CALL.folder is not None:
        JobFolder(CALL.folder).fail(line)
    print(f"txl {command.name}: {line}", file=sys.stderr)
    return status


def nearest_names(option: str) -> str:
    """Return `, did you mean …?` with the names of options like one that does not exist."""
    command = COMMANDS["train"]  # also of `make reproduce`
    if len(sys.argv) > 1:
        command = COMMANDS.get(sys.argv[1], command)
    variant = re.search(r" variant=(\w+)", " ".join(sys.argv))
    names = meanings(command, variant)
    if option in names:
        return " of this choice (--help lists them)"
    last = option.split(".")[-1]
    near = [name for name in names if name.endswith(f".{last}")]
    near = near or difflib.get_close_matches(option, names, n=3)
    if not near:
        return " (--help lists them)"
    return f", did you mean {' or '.join(near)}?"


def meanings(command: Command, variant: re.Match[str] | None) -> dict[str, str]:
    """Return the meanings of a command's options by dotted name, from the docstrings of their dataclasses.

    Args:
        command: the command.
        variant: the chosen model variant, in its first group.
    """
    kinds: list[Any] = [OmegaConf.get_type(schema) for schema in schemas().values()]
    kinds.append(command.schema)
    for field in fields(command.schema):
        kinds.append(field.default_factory)
    found = {}
    for kind in kinds:
        if isinstance(kind, type) and is_dataclass(kind):
            found.update(described(kind, getattr(kind, "prefix", "")))
    if variant and variant[1] != "none":
        from txl_lightning.model.transformer_xl import VARIANTS, TransformerXLConfig

        found["variant.name"] = "variant of the model"
        core = described(TransformerXLConfig)
        for name, meaning in described(VARIANTS.named(variant[1]).config_class).items():
            if name not in core:
                found[f"variant.{name}"] = meaning
    return found


def described(kind: type, prefix: str = "") -> dict[str, str]:
    """Return each option's meaning: the first sentence of its entry in the docstring, or an empty text."""
    sentences = {}
    for base in reversed(kind.__mro__):
        for name, text in ENTRY.findall(inspect.getdoc(base) or ""):
            sentences[name] = " ".join(text.split()).partition(". ")[0].rstrip(".")
    return {f"{prefix}{field.name}": sentences.get(field.name, "") for field in fields(kind)}


def explained(help_text: str, command: Command) -> str:
    """Return Hydra's help with meanings as comments, and without schemas among the group choices."""
    choices, heading, config = help_text.partition(BEFORE_OPTIONS)
    meaning = meanings(command, VARIANT.search(config))
    lines = []
    path: list[str] = []
    for line in config.split("\n"):
        option = OPTION.match(line)
        if option:
            depth = len(option[1]) // 2
            path[depth:] = [option[2]]
            text = meaning.get(".".join(path))
            if text:
                line = f"{line:{COLUMN}}  # {text}"
        lines.append(line)
    return SCHEMAS.sub("", choices) + heading + "\n".join(lines)
