"""`txl convert`: convert checkpoints between the paper's code, Hugging Face and `txl train`; read TensorFlow's.

    original      weights of `MemTransformerLM` (.safetensors, .bin or .pt) with `config.json`, its options, beside them
    huggingface   a folder as `save_pretrained` or the hub has it: weights, `config.json`, perhaps `vocab.json`
    tensorflow    checkpoint of the paper's TensorFlow code, such as the published models; only as the source
    txl           a checkpoint of `txl train`, for `txl evaluate` and `txl train initial_weights=`

Loading runs no code from a file: it reads tensors and plain containers only.
"""

from __future__ import annotations

import sys
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from txl_lightning.config.architecture import TransformerXLConfig, option_names
from txl_lightning.config.schemas import (
    Config,
    EncodingConfig,
    FileData,
    Lm1bData,
    MemoryConfig,
    TransformerXLModelConfig,
    file_data,
    stored,
)
from txl_lightning.data.corpus import load_corpus
from txl_lightning.data.vocabulary import LEVELS, Vocabulary
from txl_lightning.errors import OptionError, UserError, require
from txl_lightning.files import write_json
from txl_lightning.model.checkpoints import (
    from_huggingface,
    from_original,
    from_tensorflow,
    to_huggingface,
    to_original,
)
from txl_lightning.model.transformer_xl import TransformerXL
from txl_lightning.runs.convert import tensorflow_checkpoint
from txl_lightning.runs.convert.options import ConvertOptions
from txl_lightning.runs.storage import write_checkpoint
from txl_lightning.runs.trained import TrainedModel, load_trained

READERS = {"original": from_original, "huggingface": from_huggingface}
WRITERS = {"original": to_original, "huggingface": to_huggingface}
TARGETS = ("original", "huggingface", "txl")
SOURCES = (*TARGETS, "tensorflow")
OF_CORPUS = "corpus"
EVALUATION_LENGTHS = ("mem_len", "same_length", "clamp_len")
LENGTHS = (*EVALUATION_LENGTHS, "memory_start")
WEIGHTS = ("model.safetensors", "pytorch_model.bin", "model.pt")
CONFIG = "config.json"
VOCABULARY, PICKLED_VOCABULARIES = "vocab.json", ("vocab.bin", "vocab.pkl")


def run(options: ConvertOptions, directory: Path) -> list[str]:
    """Convert `options.source` into `options.target`; nothing is written to the run directory.

    Returns:
        The path of the target, to print.

    Raises:
        UserError: a file is missing or not a checkpoint, or the target's format cannot hold the model.
    """
    for name, formats in (("source_format", SOURCES), ("target_format", TARGETS)):
        value = getattr(options, name)
        require(value in formats, name, value, f"must be one of {', '.join(formats)}")
    target = Path(options.target)
    require(not target.exists(), "target", options.target, "must not exist yet")
    lengths = {name: value for name in LENGTHS if (value := getattr(options, name)) is not None}
    vocabulary = _given_vocabulary(options)
    trained = None
    if options.source_format == "txl":
        trained = load_trained(options.source, "source")
        if not isinstance(model := trained.model, TransformerXL):
            recurrent = "is a recurrent model; the other formats hold Transformer-XLs only"
            raise OptionError("source", options.source, recurrent)
    elif options.source_format == "tensorflow":
        model, segment_len = _read_tensorflow(options.source, lengths)
        options = _as_in_tensorflow(options, model, segment_len, vocabulary)
    else:
        model = _read_model(options.source, options.source_format)
    model = model.with_lengths(**lengths)
    if options.target_format == "txl":
        run_of_model = _new_run(model, options, vocabulary) if trained is None else _same_run(trained, lengths)
        _write_run(model, run_of_model, target)
        return [str(target)]
    weights, config = WRITERS[options.target_format](model)
    target.mkdir(parents=True)
    save_file({name: tensor.clone().contiguous() for name, tensor in weights.items()}, target / WEIGHTS[0])
    write_json(target / CONFIG, config)
    return [str(target)]


def _read_model(source: str, source_format: str) -> TransformerXL:
    path = Path(source)
    folder = path if path.is_dir() else path.parent
    found = [file for file in ([folder / name for name in WEIGHTS] if path.is_dir() else [path]) if file.is_file()]
    problem = f"has none of {', '.join(WEIGHTS)}" if path.is_dir() else "no such file"
    require(bool(found), "source", source, problem)
    weights = _read_weights(found[0])
    beside = f"must have {CONFIG} with its options in the same folder"
    require((folder / CONFIG).is_file(), "source", source, beside)
    config = tensorflow_checkpoint.read_json(folder / CONFIG)
    try:
        return READERS[source_format](weights, config)
    except UserError as error:
        raise OptionError("source", source, str(error)) from error


def _read_tensorflow(source: str, lengths: dict[str, Any]) -> tuple[TransformerXL, int | None]:
    """Read a model of TensorFlow, and the length of its segments if the flags beside it say so.

    `lengths` of the options replace these flags.
    """
    prefix = tensorflow_checkpoint.find_checkpoint(source)
    flags = {**tensorflow_checkpoint.read_flags(prefix), **lengths}
    allowed = f"must be given, since there is no {CONFIG} with the model's flags beside {prefix}"
    require(flags.get("mem_len") is not None, "mem_len", None, allowed)
    variables, ignored = tensorflow_checkpoint.read_variables(prefix)
    if ignored:
        more = f" and {len(ignored) - 3} more" if len(ignored) > 3 else ""
        print(f"{prefix}: ignored {', '.join(ignored[:3])}{more}, not of the model", file=sys.stderr, flush=True)
    return from_tensorflow(variables, flags), flags.get("tgt_len")


def _as_in_tensorflow(
    options: ConvertOptions, model: TransformerXL, segment_len: int | None, vocabulary: Vocabulary | None
) -> ConvertOptions:
    """Return options that evaluate the model at its own lengths, except for those that they give.

    A model of One Billion Word reads `<S>` at both ends of a sentence, as the TensorFlow code does.
    """
    if options.data.name == "lm1b" or (vocabulary is not None and vocabulary.starts_sentences):
        data = options.data
        if not isinstance(data, (Lm1bData, FileData)):
            data = file_data(data, None, data.level)
        options = replace(options, data=replace(data, sentence_marks="both"))
    names = [name for name in EVALUATION_LENGTHS if getattr(options.evaluation, name) is None]
    own = {name: getattr(model.config, name) for name in names}
    segment: dict[str, Any] = {} if segment_len is None else {"segment_len": segment_len}
    evaluation, data = replace(options.evaluation, **own, **segment), replace(options.data, **segment)
    return replace(options, evaluation=evaluation, data=data)


def _given_vocabulary(options: ConvertOptions) -> Vocabulary | None:
    """Return the vocabulary of a file, given or beside a TensorFlow model; None for the corpus' or the source's."""
    path: str | Path | None = options.vocabulary
    if options.target_format != "txl":
        return None
    own = "must be null: a checkpoint of source_format=txl keeps its own"
    require(options.source_format != "txl" or path is None, "vocabulary", path, own)
    if path is None and options.source_format == "tensorflow":
        path = tensorflow_checkpoint.find_vocabulary(tensorflow_checkpoint.find_checkpoint(options.source))
    if path is None and options.source_format == "huggingface":
        path = _vocabulary_beside(Path(options.source))
    if path in (None, OF_CORPUS):
        return None
    levels = [level for level in LEVELS if level != "bpe"]  # a file of symbols has no merges
    require(options.data.level in levels, "data.level", options.data.level, f"must be one of {', '.join(levels)}")
    return tensorflow_checkpoint.read_vocabulary(path, options.data.level)  # type: ignore[arg-type]


def _vocabulary_beside(source: Path) -> Path | None:
    """Return the `vocab.json` in the folder of a model of Hugging Face, or None if the corpus has to give the symbols.

    Raises:
        OptionError: they are only in a pickle, which is never opened.
    """
    folder = source if source.is_dir() else source.parent
    path = folder / VOCABULARY
    pickled = [name for name in PICKLED_VOCABULARIES if (folder / name).is_file()]
    allowed = f"must be given, or {VOCABULARY} be in {folder}: {' and '.join(pickled)} would run code when opened"
    require(path.is_file() or not pickled, "vocabulary", None, allowed)
    return path if path.is_file() else None


def _read_weights(path: Path) -> dict[str, Tensor]:
    """Read tensors by name, from safetensors or from a torch file that holds only tensors."""
    is_safe = path.suffix == ".safetensors"
    try:
        contents = load_file(path) if is_safe else torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # the readers have no common error for other files
        code = "must hold tensors only; code in a file is never run"
        damaged = "is not a file of safetensors, or was cut short"
        raise OptionError("source", path, damaged if is_safe else code) from error
    is_state = isinstance(contents, dict) and all(isinstance(value, Tensor) for value in contents.values())
    require(is_state, "source", path, "is not a dictionary of tensors; save the state_dict of the model")
    return contents


def _new_run(model: TransformerXL, options: ConvertOptions, given: Vocabulary | None) -> TrainedModel:
    """Return a run of the model with the given vocabulary or the chosen corpus' own, and the config of the options."""
    if given is None:
        corpus = load_corpus(options.data)
        vocabulary, source = corpus.vocabulary, f"data={corpus.name}"
        advice = "choose the corpus the model was trained on with data=…"
    else:
        vocabulary, advice = given, "choose the model's own with vocabulary=FILE"
        source = f"the file {options.vocabulary}" if options.vocabulary else "the file beside it"
    if len(vocabulary) != model.config.vocab_size:
        both = f"{model.config.vocab_size} tokens, that of {source} has {len(vocabulary)}"
        raise UserError(f"the vocabulary of the model has {both}: {advice}")
    config = Config(**{f.name: getattr(options, f.name) for f in fields(Config)})
    return TrainedModel(model, config, vocabulary, step=0, vocabulary_given=given is not None)


def _same_run(trained: TrainedModel, lengths: dict[str, Any]) -> TrainedModel:
    """Return the source's run, evaluated at the given lengths too."""
    changed: dict[str, Any] = dict.fromkeys(name for name in EVALUATION_LENGTHS if name in lengths)
    evaluation = replace(trained.config.evaluation, **changed)
    return replace(trained, config=replace(trained.config, evaluation=evaluation))


def _write_run(model: TransformerXL, run_of_model: TrainedModel, target: Path) -> None:
    """Write a checkpoint like those of `txl train`, at step 0: the model, and all else of the run."""
    contents = {
        "state_dict": {f"model.{name}": tensor for name, tensor in model.state_dict().items()},
        "global_step": 0,
        "txl_lightning": {
            "config": stored(_run_config(model, run_of_model.config)),
            "vocabulary": run_of_model.vocabulary.state_dict(),
            "vocabulary_given": run_of_model.vocabulary_given,
            **({"corpus": run_of_model.corpus} if run_of_model.corpus else {}),
        },
    }
    target.parent.mkdir(parents=True, exist_ok=True)
    target.touch(exist_ok=False)  # of two conversions to one file, the second is refused
    try:
        write_checkpoint(contents, target)
    except BaseException:
        target.unlink()
        raise


def _run_config(model: TransformerXL, config: Config) -> Config:
    """Return the configuration of a run with this model; everything else comes from `config`."""
    groups: dict[str, dict[str, Any]] = {"model": {"name": "converted"}, "encoding": {}, "memory": {}}
    for field, option in option_names(TransformerXLConfig).items():
        group, name = option.split(".")
        value = getattr(model.config, field)
        groups[group][name] = list(value) if isinstance(value, tuple) else value
    return replace(
        config,
        model=TransformerXLModelConfig(**groups["model"]),
        encoding=EncodingConfig(**groups["encoding"]),
        memory=MemoryConfig(**groups["memory"]),
    )
