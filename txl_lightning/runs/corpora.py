"""Corpus of a checkpoint, or another text in the vocabulary of the checkpoint."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

from txl_lightning.data.corpus import Corpus, load_corpus
from txl_lightning.errors import OptionError, UserError
from txl_lightning.runs.trained import TrainedModel

REPORTED: set[tuple[str | None, str]] = set()  # checksums of texts at training and now, in this process


def checkpoint_corpus(
    trained: TrainedModel, checkpoint: str | Path, data_path: str | None = None, option: str = "checkpoint"
) -> Corpus:
    """Load the corpus a run was trained on, or encode the text `data_path` with the vocabulary of the run.

    For a run with `memory.reset=document` the first token of every document is marked. A text that has changed since
    training is reported on stderr: what is held out now may have been trained on.

    Args:
        trained: contents of the checkpoint.
        checkpoint: path of the checkpoint, for errors.
        data_path: text file, split as `data=file` does; a word that is not in the vocabulary becomes `<unk>`. For a
            model of lm1b every line is a sentence, with `<S>` as in its corpus.
        option: name of the command's option for checkpoints.

    Raises:
        OptionError: `data_path` cannot be read or has a character that is not in the vocabulary, or the corpus
            of the run now has another vocabulary.
        UserError: the corpus of the run cannot be loaded.
    """
    if data_path is not None:
        return _encoded_text(trained, data_path)
    # At level bpe that of the checkpoint needs neither the tokenizer's file nor its training.
    given = trained.vocabulary_given or trained.vocabulary.level == "bpe"
    try:
        corpus = load_corpus(trained.config.data, trained.vocabulary if given else None, _resets(trained))
    except UserError as error:
        raise UserError(f"corpus of {checkpoint}: {error}") from error
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
    if before not in (None, now) and (before, now) not in REPORTED:
        REPORTED.add((before, now))
        reason = "parts of its validation and test split may have been in the training text"
        print(f"{given} was trained on another text than {name} has now: {reason}", file=sys.stderr, flush=True)


def _resets(trained: TrainedModel) -> bool:
    return trained.config.memory.reset == "document"


def _encoded_text(trained: TrainedModel, data_path: str) -> Corpus:
    data = replace(trained.config.data, name="file", path=data_path, level=trained.vocabulary.level)
    try:
        return load_corpus(data, trained.vocabulary, _resets(trained))
    except OptionError as error:
        option = "data_path" if error.option == "data.path" else error.option
        raise OptionError(option, error.value, error.allowed) from error
    except UserError as error:
        reason = str(error).removeprefix(f"{Path(data_path).name}: ")
        raise OptionError("data_path", data_path, reason) from error
