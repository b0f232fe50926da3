"""Open a run again from its checkpoint: its model, vocabulary, corpus or another text."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, suppress
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch

from txl_lightning.config.schemas import OWN_OPTIONS, Config, DataConfig, FileData, data_class, file_data, from_plain
from txl_lightning.data.corpus import Corpus, corpus_source, load_corpus
from txl_lightning.data.vocabulary import KEPT_LEVELS, Vocabulary
from txl_lightning.errors import OptionError, UserError, notice, require
from txl_lightning.files import expand
from txl_lightning.runs.models import Model, architecture, make_model, require_room
from txl_lightning.runs.storage import OLDER, read_file

REPORTED: set[str] = set()  # checksums of texts at training and now, in this process


@dataclass(frozen=True)
class TrainedModel:
    """Contents of a checkpoint that evaluation needs: all but the state of training.

    Args:
        model: in evaluation mode, on the CPU.
        config: config of the run.
        vocabulary: vocabulary of its corpus.
        step: optimizer steps trained.
        vocabulary_given: whether the vocabulary is not the corpus' own, so that the text is encoded with it.
        corpus: checksum of the corpus at training; None for weights that were not trained here.
    """

    model: Model
    config: Config
    vocabulary: Vocabulary
    step: int
    vocabulary_given: bool = False
    corpus: str | None = None

    @property
    def closed_sentences(self) -> bool:
        """Whether `<S>` stands at both ends of a sentence (lm1b as the TensorFlow code reads it)."""
        return self.vocabulary.starts_sentences and getattr(self.config.data, "sentence_marks", "") == "both"


@dataclass(frozen=True)
class Checkpoint:
    """Checkpoint of `txl train`, as `read_checkpoint` returns it.

    Args:
        path: path of the file.
        option: option that named it, for errors.
        contents: what the file holds, on the CPU.
        config: config of the run, its values literal.
        vocabulary: vocabulary of its corpus.
        weights: the model's, under its own names.
    """

    path: Path
    option: str
    contents: dict[str, Any]
    config: Config
    vocabulary: Vocabulary
    weights: dict[str, torch.Tensor]

    @property
    def record(self) -> dict[str, Any]:
        """Return the entries that `txl train` adds to every checkpoint."""
        return self.contents["txl_lightning"]

    @property
    def step(self) -> int:
        """Optimizer steps trained."""
        return self.contents["global_step"]

    def require(self, condition: bool, allowed: str) -> None:
        """Raise an `OptionError` that names the file unless `condition` holds."""
        require(condition, self.option, self.path, allowed)

    def load_into(self, model: Model, strict: bool = True) -> Model:
        """Load the weights into a model, by default strictly, and return it.

        Raises:
            OptionError: they are not those of such a model, or not finite.
        """
        with naming(self.option, self.path):
            model.load_state_dict(self.weights, strict=strict)
        finite = all(bool(x.isfinite().all()) for x in self.weights.values())
        self.require(finite, "has weights that are not finite: its training diverged")
        return model


def read_checkpoint(path: str | Path, option: str = "checkpoint") -> Checkpoint:
    """Open a checkpoint of `txl train`: the one place for all that read one.

    A file whose checksum fits is trusted. No code in a file ever runs, values of its config are literal, and a cache
    folder that is not one here is not used.

    Args:
        path: path of the checkpoint.
        option: name of the command-line option that gave the path, for errors.

    Raises:
        OptionError: the file is missing, is damaged, or does not hold what `txl train` writes; its encoding, variant or
            corpus is not registered (see `guests`).
    """
    require(not Path(path).is_dir(), option, path, "is a folder: give a file in it, such as checkpoints/best.ckpt")
    require(Path(path).is_file(), option, path, "no such file")
    contents = read_file(path, option)
    with naming(option, path):
        record = _check_contents(contents)
        config, vocabulary = from_plain(record["config"]), Vocabulary.from_state_dict(record["vocabulary"])
        require_room(architecture(config, len(vocabulary)))
        if not any(expand(config.data.cache_dir).glob("*/description.json")):  # not a cache of this machine
            config.data.cache_dir = DataConfig.cache_dir
        weights = {name.removeprefix("model."): tensor for name, tensor in contents["state_dict"].items()}
        if (rows := len(weights.get("softmax.bias", vocabulary))) != len(vocabulary):
            raise UserError(f"has {len(vocabulary)} tokens in its vocabulary, and weights for {rows}")
        return Checkpoint(Path(path), option, contents, config, vocabulary, weights)


def _check_contents(contents: Any) -> dict[str, Any]:
    """Return what a checkpoint says about its run.

    Raises:
        UserError: it is no checkpoint of the module, or one of an older version.
    """
    needed = {"txl_lightning", "state_dict", "global_step"}
    if not isinstance(contents, dict) or not needed <= contents.keys():
        raise UserError("is not a checkpoint of LanguageModelModule (txl train writes them)")
    record: dict[str, Any] = contents["txl_lightning"]
    if "each" not in record["config"]["logger"]:  # an option since 0.5
        raise UserError(OLDER)
    _drop_options_of_other_corpora(record["config"]["data"])
    return record


def _drop_options_of_other_corpora(data: dict[str, Any]) -> None:
    """Remove options that only another corpus has: `txl convert` stores the whole composed group."""
    own = {field.name for field in fields(data_class(data["name"]))}
    for options in OWN_OPTIONS.values():
        for field in fields(options):
            if field.name not in own:
                data.pop(field.name, None)


def continues_in(directory: Path, checkpoint: Path) -> bool:
    """Return whether a checkpoint is in the directory of a run, whose curves go on there if it resumes from it."""
    return checkpoint.parent.resolve() == (directory / "checkpoints").resolve()


@contextmanager
def naming(option: str, path: str | Path) -> Iterator[None]:
    """Name the option and the file in an error about what the file holds, a library's with its own reason."""
    try:
        yield
    except Exception as error:  # of any library that reads a file which somebody else wrote
        if isinstance(error, OptionError) and error.option == option:
            raise
        of_library = " ".join(f"cannot be used ({type(error).__name__}: {error})".split())
        raise OptionError(option, path, str(error) if isinstance(error, UserError) else of_library[:300]) from error


def load_trained(path: str | Path, option: str = "checkpoint") -> TrainedModel:
    """Load the model of a checkpoint, with the config and vocabulary of its run: how Python code opens a checkpoint.

    Args:
        path: path of the checkpoint.
        option: name of the command-line option that gave the path, for errors.

    Raises:
        OptionError: as `read_checkpoint`.
    """
    return model_of(read_checkpoint(path, option))


def model_of(checkpoint: Checkpoint, strict: bool = True) -> TrainedModel:
    """Load the model of an opened checkpoint; `strict=False` leaves out weights that it lacks or has too many."""
    new_model = make_model(checkpoint.config, len(checkpoint.vocabulary))
    model = checkpoint.load_into(new_model, strict)
    return TrainedModel(
        model.eval(),
        checkpoint.config,
        checkpoint.vocabulary,
        checkpoint.step,
        vocabulary_given=checkpoint.record.get("vocabulary_given", False),
        corpus=checkpoint.record.get("corpus"),
    )


def checkpoint_corpus(
    trained: TrainedModel,
    checkpoint: str | Path,
    data_path: Any = None,
    option: str = "checkpoint",
    whole: bool = False,
) -> Corpus:
    """Load the corpus a run was trained on, or encode the text `data_path` with the vocabulary of the run.

    For a run with `memory.reset=document` the first token of every document is marked. A text that has changed since
    training is reported on stderr: what is held out now may have been trained on.

    Args:
        trained: contents of the checkpoint.
        checkpoint: path of the checkpoint, for errors.
        data_path: the files of the run where they are now, or others: of text, split as `data=file` does, or of ids.
            A word that is not in the vocabulary becomes `<unk>`. For a model of lm1b every line is a sentence, with
            `<S>` as in its corpus.
        option: name of the command's option for checkpoints.
        whole: `data_path` is one split, `WHOLE`.

    Raises:
        OptionError: `data_path` cannot be read or has a character that is not in the vocabulary, or the corpus
            of the run now has another vocabulary.
        UserError: the corpus of the run cannot be loaded.
    """
    if data_path is not None:
        return _encoded_text(trained, data_path, whole)
    # The vocabulary of the checkpoint needs neither the tokenizer's file nor its training, and no names of ids.
    kept = trained.vocabulary_given or trained.vocabulary.level in KEPT_LEVELS
    vocabulary, marked = trained.vocabulary if kept else None, trained.config.memory.reset == "document"
    try:
        corpus = load_corpus(trained.config.data, vocabulary, marked)
    except UserError as error:
        moved = isinstance(error, OptionError) and error.option == "data.path"
        advice = "; if it has moved, give data_path=" if moved else ""
        raise UserError(f"corpus of {checkpoint}: {error}{advice}") from error
    if corpus.vocabulary != trained.vocabulary:
        raise OptionError(option, checkpoint, f"was trained with another vocabulary than that of {corpus.name}")
    report_if_changed(trained, f"{option}={checkpoint}", corpus.name, corpus.checksum)
    return corpus


def report_if_changed(trained: TrainedModel, given: str, name: str, now: str) -> None:
    """Report a text that has changed since training, once for all checkpoints of runs on it.

    Args:
        trained: contents of a checkpoint.
        given: the option that named it, with its value.
        name: name of the corpus.
        now: its checksum.
    """
    before = trained.corpus
    if before not in (None, now) and (pair := f"{before} {now}") not in REPORTED:
        REPORTED.add(pair)
        reason = "parts of its validation and test split may have been in the training text"
        print(f"{given} was trained on another text than {name} has now: {reason}", file=sys.stderr, flush=True)


def is_other_text(data_path: Any, models: Iterable[TrainedModel]) -> bool:
    """Return whether `data_path` is given, names no splits, and is not the text of a model's training.

    Such a text is read whole, and that of a training by its splits.
    """
    if data_path is None or (isinstance(data_path, Mapping) and "path" not in data_path):
        return False
    same = False
    with suppress(UserError), redirect_stderr(io.StringIO()):  # errors and notices come when the text is loaded
        same = any(corpus_source(text_options(of, data_path))[1] == of.corpus for of in models)
    notice.cache_clear()
    return not same


def text_options(trained: TrainedModel, data_path: Any) -> FileData:
    """Return the options that read `data_path`; of the run's own files the type and column are the run's."""
    run = trained.config.data
    text = file_data(run, data_path, trained.vocabulary.level)
    own = replace(text, dtype=getattr(run, "dtype", None), column=getattr(run, "column", None))
    if own != text and (text.dtype, text.column) == (None, None):
        with suppress(UserError), redirect_stderr(io.StringIO()):
            if corpus_source(own)[1] == trained.corpus:
                return own
    return text


def _encoded_text(trained: TrainedModel, data_path: Any, whole: bool) -> Corpus:
    data = text_options(trained, data_path)
    try:
        return load_corpus(data, trained.vocabulary, trained.config.memory.reset == "document", whole)
    except OptionError as error:
        option = "data_path" if error.option == "data.path" else error.option
        of_file = option in ("data.dtype", "data.column")
        how = ": data_path='{path: …, dtype: …, column: …}'" if of_file else ""
        raise OptionError(option, error.value, f"{error.allowed}{how}") from error
    except UserError as error:
        reason = str(error).removeprefix(f"{Path(str(data_path)).name}: ")
        raise OptionError("data_path", data_path, reason) from error
