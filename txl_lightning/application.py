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
from typing import Any, get_type_hints

import hydra
import yaml
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import CompactHydraException, HydraException
from hydra.experimental.callback import Callback
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException

from txl_lightning.config.schemas import (
    CONF,
    LIGHTNINGS_NAMES,
    OPEN_GROUPS,
    REMOVED,
    SCHEMAS,
    Config,
    flat,
    typed,
)
from txl_lightning.errors import Stopped, UserError, is_first_rank, require
from txl_lightning.files import locked, write_text
from txl_lightning.launcher import CALL, prepare_wandb, run_in_process
from txl_lightning.multirun import JobFolder, check_search, write_results
from txl_lightning.registry import CHOICES, COMMANDS, Command, load_guests

EXPECTED = (
    UserError,
    HydraException,
    OmegaConfBaseException,
    yaml.YAMLError,
    OSError,
)
FULL_ERROR = "HYDRA_FULL_ERROR"
LISTS = (  # groups that take several choices
    "callbacks",
    "experiment",
    "logger",
)
# A further rank writes nothing: Hydra makes no folder and no log for it.
OF_FURTHER_RANKS = (
    "hydra.run.dir=.",
    "hydra.output_subdir=null",
    "hydra/job_logging=none",
    "hydra/hydra_logging=none",
)
ENTRY = re.compile(r"^    ([a-z_]\w*): (.+(?:\n {8}.+)*)", re.MULTILINE)  # in a docstring's list
VARIANT = re.compile(r" variant=(?!none\b)(\w+)")  # on the command line
BEFORE_OPTIONS = "== Options =="  # in conf/common.yaml
COLUMN = 44
SCHEMA_NAME = re.compile(r"\b[\w-]*schema\b, |, [\w-]*schema\b(?!,)")  # in a list of choices


def register(*commands: Command) -> None:
    """Register the user's choices, and the schemas for groups and commands, with Hydra.

    Args:
        commands: commands to register; without any, all.

    Raises:
        OptionError: a user's file cannot be imported.
    """
    load_guests()
    nodes: dict[str, Any] = {"callbacks/schema": OmegaConf.create(flags={"struct": False})}
    nodes.update(CHOICES)
    for path, kind in SCHEMAS.items():
        node = nodes[path] = OmegaConf.structured(kind)
        group = path.split("/")[0]
        OmegaConf.set_struct(node, group not in OPEN_GROUPS)
        if group == "data":
            node.seed = "${seed}"
    for command in commands or COMMANDS.values():
        schema = f"{command.name}_schema"
        nodes[schema] = command.schema
        nodes[command.name] = {"defaults": [schema, "_self_", "common"]}
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
    outer = GlobalHydra.instance().hydra  # a program that uses Hydra itself
    GlobalHydra.instance().clear()
    try:
        return typed(composition("train", overrides))
    finally:
        GlobalHydra.instance().hydra = outer


def composition(name: str, overrides: Sequence[str]) -> DictConfig:
    """Return the config that Hydra composes from a file in `conf/`; its schemas must be registered."""
    with hydra.initialize_config_dir(str(CONF), version_base="1.3"):
        return hydra.compose(name, usable(overrides))


class Refusal(BaseException):
    """An expected error on its way through Hydra, as the cause: Hydra reports exceptions in callbacks as warnings."""


@contextlib.contextmanager
def _refusing() -> Iterator[None]:
    try:
        yield
    except EXPECTED as error:
        raise Refusal from error


class RunFolder(Callback):
    """Hydra callback in `conf/common.yaml`: locks the folder before Hydra writes into it."""

    def on_run_start(self, config: DictConfig, **kwargs: Any) -> None:
        """Lock the folder of a run or multirun; refuse a search whose jobs would all fail."""
        settings = config.hydra
        with _refusing():
            _refuse_hidden_files(settings.runtime.config_sources)
            if settings.mode == RunMode.MULTIRUN:
                check_search(config)
                folder = Path(str(settings.sweep.dir))
                prepare_wandb(folder)
                CALL.locks.enter_context(locked(folder))
                CALL.sweep_dir = folder
            elif settings.output_subdir is not None:
                CALL.folder = Path(str(settings.run.dir))
                CALL.locks.enter_context(locked(CALL.folder))

    on_multirun_start = on_run_start


def _refuse_hidden_files(sources: Any) -> None:
    """Refuse a user's folder with a file that has the name of one of ours: Hydra would read ours."""
    for source in sources:
        if source.schema == "file" and source.provider != "main":
            for ours in CONF.rglob("*.yaml"):
                path = Path(source.path) / ours.relative_to(CONF)
                if path.is_file():
                    hidden = "has the name of a file of txl_lightning, which Hydra reads instead"
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
                return run_in_process(self.command, config, settings, self._run)
            except (UserError, OmegaConfBaseException, OSError) as error:
                raise CompactHydraException(one_line(error, self.command)) from None
        with _refusing():
            self._run(config, Path(settings.runtime.output_dir))
        return None

    def _run(self, config: DictConfig, directory: Path) -> None:
        """Run the command; print its lines and the directory."""
        text = OmegaConf.to_yaml(config, resolve=True)
        has_folder = HydraConfig.get().output_subdir is not None
        if has_folder and not self.command.resume:
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
        if has_folder:
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
    status: int | str = 0
    try:
        try:
            start(command, words)
        finally:
            sys.argv = arguments
            CALL.locks.close()
            table = CALL.sweep_dir and write_results(CALL.sweep_dir)
            if table:  # also after a failure or an interrupt
                print(f"{table.read_text()}{table}", flush=True)
    except BrokenPipeError:
        raise
    except (Refusal, *EXPECTED, RuntimeError) as error:
        cause: Any = error.__cause__ if isinstance(error, Refusal) else error
        # Optuna's sweeper raises a RuntimeError in place of the error of a grid's last job.
        if not isinstance(cause, EXPECTED) and "Study.stop" not in str(cause):
            raise
        if wants_traceback:
            raise cause from None
        if not CALL.failures:  # else the sweeper repeats the job's error
            status = refused(command, cause)
    for line in CALL.failures:
        print(f"txl {command.name}: {line}", file=sys.stderr)
        status = f"txl {command.name}: failed jobs: {len(CALL.failures)}"
    if status:
        sys.exit(status)


def start(command: Command, words: list[str]) -> None:
    """Call Hydra with a command's words."""
    register(command)
    words = usable(words)
    if "--help" in words or "-h" in words:
        print(explained(hydra_output(command, words), command), flush=True)
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


def usable(words: Sequence[str]) -> list[str]:
    """Return words as Hydra takes them: `logger=null` is `logger=none`, `+` adds no option that nothing reads.

    Lightning's names of our options are ours, so that a job's identity has one name for each.

    Hydra would merge two choices of a group that are in a list.

    Raises:
        UserError: a word cannot be used.
    """
    typed_words = []
    for word in words:
        word = re.sub(r"^\++(?!\+|hydra[./])", "", word)
        name, _, value = word.partition("=")
        if name in LIGHTNINGS_NAMES:
            name = LIGHTNINGS_NAMES[name]
            word = f"{name}={value}"
        for old, reason in REMOVED.items():
            if f"{name}.".startswith(f"{old}."):
                raise UserError(f"{old}: {reason}")
        if (CONF / name).is_dir():
            if value == "null":
                word = f"~{name}"
            if value.startswith("[") and name not in LISTS:
                several = f"several need -m: {name}={value.strip('[]')}"
                raise UserError(f"{name}: takes one choice; {several}")
        typed_words.append(word)
    return typed_words


def completions(command: Command, words: list[str]) -> list[str]:
    """Return Hydra's completions for COMP_LINE, without the schemas that group choices build on."""
    register(command)
    choices = hydra_output(command, words).split()
    return [choice for choice in choices if not choice.endswith("schema")]


def refused(command: Command, error: BaseException) -> int:
    """Say in one line why a command ends; return its status: 2, or as in a shell 128 + the signal that stopped it."""
    line = one_line(error, command)
    status = 2
    if isinstance(error, Stopped):
        status = 128 + error.signum
    elif CALL.folder is not None:
        JobFolder(CALL.folder).fail(line)
    print(f"txl {command.name}: {line}", file=sys.stderr)
    return status


def one_line(error: BaseException, command: Command = COMMANDS["train"]) -> str:
    """Return an error's message in one line, for an unknown option with the nearest name of the command's."""
    if isinstance(error, MissingMandatoryValue):
        return f"{error.full_key}: must be given ({error.full_key}=…)"
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename or 'a file of the run or the output'}: {error.strerror}"
    text = str(error)
    unknown = re.match(r"Could not override '([^']+)'", text)
    if unknown:
        return f"{unknown[1]}: no such option{nearest_names(unknown[1], command)}"
    if isinstance(error, HydraException) and error.__cause__ is not None:
        text += f": {error.__cause__}"
    return " ".join(text.split()) or type(error).__name__


def nearest_names(option: str, command: Command) -> str:
    """Return `, did you mean …?` with the names of options like one that does not exist."""
    names = meanings(command)
    if option in names:
        return " of this choice (--help lists them)"
    last = option.split(".")[-1]
    near = [name for name in names if name.endswith(f".{last}")]
    near = near or difflib.get_close_matches(option, names, n=3)
    if not near:
        return " (--help lists them)"
    return f", did you mean {' or '.join(near)}?"


def meanings(command: Command) -> dict[str, str]:
    """Return the meanings of a command's options by dotted name, from the docstrings of their dataclasses."""
    kinds = [
        command.schema,
        *SCHEMAS.values(),
        *get_type_hints(command.schema).values(),
    ]
    found = {}
    for kind in kinds:
        if is_dataclass(kind):
            found.update(described(kind, getattr(kind, "prefix", "")))
    for variant in VARIANT.findall(" ".join(sys.argv)):
        from txl_lightning.model.transformer_xl import VARIANTS, TransformerXLConfig

        options = described(VARIANTS.named(variant).config_class, "variant.")
        for name in described(TransformerXLConfig, "variant."):
            del options[name]
        found.update(options)
    return found


def described(kind: Any, prefix: str) -> dict[str, str]:
    """Return each option's meaning: the first sentence of its entry in the docstring, or an empty text."""
    sentences = {}
    for field in fields(kind):
        sentences[prefix + field.name] = ""
    for base in reversed(kind.__mro__):
        for name, text in ENTRY.findall(inspect.getdoc(base) or ""):
            sentences[prefix + name] = " ".join(text.split()).partition(". ")[0].rstrip(".")
    return sentences


def explained(help_text: str, command: Command) -> str:
    """Return Hydra's help with an option a line, its meaning as a comment, and no schemas among the group choices."""
    choices, heading, config = help_text.partition(BEFORE_OPTIONS)
    meaning = meanings(command)
    lines = [SCHEMA_NAME.sub("", choices) + heading]
    for name, value in flat(yaml.load(config, yaml.BaseLoader)).items():
        option = f"{name}={value}".replace("'", "")
        lines.append(f"{option:{COLUMN}}  # {meaning.get(name, '')}")
    return "\n".join(lines)
