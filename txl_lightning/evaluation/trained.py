"""Open a run again from its checkpoint: its model, vocabulary, corpus or another text."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, suppress
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import torch

from txl_lightning.config.schemas import (
    Config,
    DataConfig,
    FileData,
    data_class,
    file_data,
    from_plain,
)
from txl_lightning.data.corpus import Corpus, corpus_source, load_corpus
from txl_lightning.data.vocabulary import (
    END_OF_LINE,
    KEPT_LEVELS,
    SENTENCE,
    Vocabulary,
    close_sentences,
)
from txl_lightning.errors import OptionError, UserError, notice, require
from txl_lightning.evaluation.models import Model, architecture, make_model, require_room
from txl_lightning.files import expand, write_atomically

OLDER = "was written by a version before 0.5: txl_lightning 0.5.0 reads it"
NOT_READABLE = "is damaged, or is not a checkpoint"
WEIGHTS_PREFIX = "model."  # from the module


@dataclass(frozen=True)
class TrainedModel:
    """Contents of a checkpoint for evaluation, without the training state.

    Args:
        model: in evaluation mode, on the CPU.
        config: the run's config.
        vocabulary: its corpus's vocabulary.
        step: optimizer steps trained.
        vocabulary_given: whether the vocabulary comes from outside the corpus, so the text is encoded with it.
        corpus: the corpus's checksum at training; None for weights that were not trained here.
    """

    model: Model
    config: Config
    vocabulary: Vocabulary
    step: int
    vocabulary_given: bool = False
    corpus: str | None = None

    @property
    def marks_documents(self) -> bool:
        """Whether each document's first token is marked, for `memory.reset=document`."""
        return self.config.memory.reset == "document"

    @property
    def closed_sentences(self) -> bool:
        """Whether `<S>` stands at both sentence ends (lm1b as the TensorFlow code reads it)."""
        marks = getattr(self.config.data, "sentence_marks", "")
        return self.vocabulary.starts_sentences and marks == "both"

    def encode(self, text: str) -> list[int]:
        """Encode a text that goes on: words end their line only if the text ends with a line break.

        Raises:
            UserError: the vocabulary lacks a character, and has no `<unk>`.
        """
        if not text:
            return []
        vocabulary = self.vocabulary
        tokens = vocabulary.encode(text.encode())
        ends_its_line = vocabulary.level == "word" and END_OF_LINE in vocabulary.numbers
        if self.closed_sentences:
            ends_its_line = True
            tokens, _ = close_sentences(tokens, vocabulary.numbers[SENTENCE])
        if ends_its_line and not text.endswith("\n"):
            tokens = tokens[:-1]
        return tokens.tolist()


@dataclass(frozen=True)
class Checkpoint:
    """Checkpoint from `txl train`, as `read_checkpoint` returns it.

    Args:
        path: file path.
        option: option that named it, for errors.
        contents: what the file holds, on the CPU.
        config: the run's config; its values are literal.
        vocabulary: its corpus's vocabulary.
        weights: the model's, under their names in the model.
    """

    path: Path
    option: str
    contents: dict[str, Any]
    config: Config
    vocabulary: Vocabulary
    weights: dict[str, torch.Tensor]

    @property
    def record(self) -> dict[str, Any]:
        """Return the entries that the module adds to every checkpoint."""
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
            OptionError: they do not fit such a model, or are not finite.
        """
        with naming(self.option, self.path):
            model.load_state_dict(self.weights, strict=strict)
        for weight in self.weights.values():
            is_finite = bool(weight.isfinite().all())
            self.require(is_finite, "has weights that are not finite: its training diverged")
        return model


def write_checkpoint(contents: dict[str, Any], path: Path) -> None:
    """Write a checkpoint atomically: a reader finds the old file or a new one that can be opened.

    Args:
        contents: plain containers and tensors.
        path: checkpoint path; its folder must exist.

    Raises:
        OSError: the disk is full or the folder is not writable; `path` is unchanged.
        pickle.UnpicklingError: the contents are not plain; `path` is unchanged.
    """

    def write(temporary: Path) -> None:
        with temporary.open("wb") as file:
            try:
                torch.save(contents, file)
            except RuntimeError as error:  # torch's error, raised while it closes the archive
                if isinstance(error.__context__, OSError):
                    raise error.__context__ from None
                raise
        torch.load(temporary, map_location="cpu", weights_only=True, mmap=True)

    write_atomically(path, write)


def read_file(path: str | Path, option: str = "checkpoint") -> Any:
    """Return a checkpoint's contents, on the CPU, without running code stored in the file.

    The file is a zip archive with a CRC-32 for every record. torch does not compare them, so this does.

    Args:
        path: file path.
        option: command-line option that gave the path, for errors.

    Raises:
        OptionError: the file is missing or damaged, or torch cannot read it.
    """
    require(
        not Path(path).is_dir(),
        option,
        path,
        "is a folder: give a file in it, such as checkpoints/best.ckpt",
    )
    require(Path(path).is_file(), option, path, "no such file")
    try:
        with ZipFile(path) as archive:
            is_intact = archive.testzip() is None
        require(is_intact, option, path, NOT_READABLE)
        return torch.load(path, map_location="cpu", weights_only=True)
    except OptionError:
        raise
    except Exception as error:  # the readers have no common error for other files
        raise OptionError(option, path, NOT_READABLE) from error


def read_checkpoint(path: str | Path, option: str = "checkpoint") -> Checkpoint:
    """Open the module's checkpoint.

    No code in a file ever runs, values in its config are literal, and a cache folder that does not exist here is not
    used.

    Args:
        path: checkpoint path.
        option: command-line option that gave the path, for errors.

    Raises:
        OptionError: the file is missing, is damaged, or does not hold what the module writes; its encoding, variant or
            corpus is not registered (see `guests`).
    """
    contents = read_file(path, option)
    with naming(option, path):
        record = _record_of(contents)
        config = from_plain(record["config"])
        vocabulary = Vocabulary.from_state_dict(record["vocabulary"])
        require_room(architecture(config, len(vocabulary)))
        caches = expand(config.data.cache_dir)
        if not any(caches.glob("*/description.json")):  # not a cache on this machine
            config.data.cache_dir = DataConfig.cache_dir
        weights = {}
        for name, tensor in contents["state_dict"].items():
            weights[name.removeprefix(WEIGHTS_PREFIX)] = tensor
        n_rows = len(weights.get("softmax.bias", vocabulary))
        if n_rows != len(vocabulary):
            raise UserError(
                f"has {len(vocabulary)} tokens in its vocabulary, and weights for {n_rows}"
            )
        return Checkpoint(Path(path), option, contents, config, vocabulary, weights)


def _record_of(contents: Any) -> dict[str, Any]:
    """Return what a checkpoint says about its run.

    Raises:
        UserError: it is not the module's checkpoint, or one from an older version.
    """
    needed = {"txl_lightning", "state_dict", "global_step"}
    if not isinstance(contents, dict) or not needed <= contents.keys():
        raise UserError("is not a checkpoint of LanguageModelModule (txl train writes them)")
    record: dict[str, Any] = contents["txl_lightning"]
    if "each" not in record["config"]["logger"]:  # an option since 0.5
        raise UserError(OLDER)
    _drop_options_of_other_corpora(record["config"]["data"])
    optimizer = record["config"]["optimizer"]
    if optimizer["weight_decay"] > 0:
        optimizer.setdefault("weight_decay_on", "all")  # in version 0.5
    return record


def _drop_options_of_other_corpora(data: dict[str, Any]) -> None:
    """Remove options that only another corpus has: `txl convert` stores the whole composed group."""
    known = {field.name for field in fields(data_class(data["name"]))}
    for options in DataConfig.__subclasses__():
        for field in fields(options):
            if field.name not in known:
                data.pop(field.name, None)


@contextmanager
def naming(option: str, path: str | Path) -> Iterator[None]:
    """Name the option and the file in an error about the file's contents."""
    try:
        yield
    except UserError as error:
        if isinstance(error, OptionError) and error.option == option:
            raise
        raise OptionError(option, path, str(error)) from error
    except Exception as error:  # from any library that reads a file which somebody else wrote
        words = f"cannot be used ({type(error).__name__}: {error})".split()
        raise OptionError(
            option,
            path,
            " ".join(words)[:300],
        ) from error


def load_trained(path: str | Path, option: str = "checkpoint") -> TrainedModel:
    """Load a checkpoint's model, with its run's config and vocabulary: how Python code opens a checkpoint.

    Args:
        path: checkpoint path.
        option: command-line option that gave the path, for errors.

    Raises:
        OptionError: as `read_checkpoint`.
    """
    return model_of(read_checkpoint(path, option))


def model_of(checkpoint: Checkpoint, strict: bool = True) -> TrainedModel:
    """Load an opened checkpoint's model; `strict=False` ignores missing and surplus weights."""
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
    """Load the corpus a run was trained on, or encode the text `data_path` with the run's vocabulary.

    With `memory.reset=document` each document's first token is marked. A text that has changed since training is
    reported on stderr: its test split may have been trained on.

    Args:
        trained: the checkpoint's contents.
        checkpoint: checkpoint path, for errors.
        data_path: the run's files where they are now, or others: text, split as `data=file` does, or ids.
            Out-of-vocabulary words become `<unk>`. For a model trained on lm1b every line is a sentence, with `<S>` as
            in its corpus.
        option: the command's option for checkpoints.
        whole: `data_path` is one split, `WHOLE`.

    Raises:
        OptionError: `data_path` cannot be read or has a character missing from the vocabulary, or the run's corpus now
            has another vocabulary.
        UserError: the run's corpus cannot be loaded.
    """
    if data_path is not None:
        text, _ = _text_options(trained, data_path)
        with naming("data_path", data_path):
            return load_corpus(text, trained.vocabulary, trained.marks_documents, whole)
    # The checkpoint's vocabulary needs neither the tokenizer's file nor its training, and no names for ids.
    vocabulary = None
    if trained.vocabulary_given or trained.vocabulary.level in KEPT_LEVELS:
        vocabulary = trained.vocabulary
    try:
        corpus = load_corpus(trained.config.data, vocabulary, trained.marks_documents)
    except UserError as error:
        advice = ""
        if isinstance(error, OptionError) and error.option == "data.path":
            advice = "; if it has moved, give data_path="
        raise UserError(f"corpus of {checkpoint}: {error}{advice}") from error
    allowed = f"was trained with another vocabulary than {corpus.name} has"
    require(corpus.vocabulary == trained.vocabulary, option, checkpoint, allowed)
    if trained.corpus not in (None, corpus.checksum):
        changed = f"{option}={checkpoint} was trained on another text than {corpus.name} has now"
        reason = "parts of its validation and test split may have been in the training text"
        notice(f"{changed}: {reason}")
    return corpus


def is_other_text(data_path: Any, models: Iterable[TrainedModel]) -> bool:
    """Return whether `data_path` is given, names no splits, and is not the model's training text.

    Such a text is read whole, a training's text by its splits.
    """
    if data_path is None or (isinstance(data_path, Mapping) and "path" not in data_path):
        return False
    return not any(_text_options(trained, data_path)[1] for trained in models)


def _text_options(trained: TrainedModel, data_path: Any) -> tuple[FileData, bool]:
    """Return the options that read `data_path`, and whether this is the training text.

    Type and column for the run's files are the run's.
    """
    run = trained.config.data
    text = file_data(run, data_path, trained.vocabulary.level)
    dtype = text.dtype or getattr(run, "dtype", None)
    own = replace(
        text,
        dtype=dtype,
        column=text.column or getattr(run, "column", None),
    )
    for choice in (text, own):
        # Errors and notices come when the text is loaded.
        with suppress(UserError), redirect_stderr(io.StringIO()):
            if corpus_source(choice)[1] == trained.corpus:
                return choice, True
    notice.cache_clear()
    return text, False
