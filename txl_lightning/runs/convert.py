"""`txl convert`: convert checkpoints between the paper's code, Hugging Face and `txl train`; read TensorFlow's.

    original      weights of `MemTransformerLM` (.safetensors, .bin or .pt) with `config.json`, its options, beside them
    huggingface   a folder as `save_pretrained` or the hub has it: weights, `config.json`, perhaps `vocab.json`
    tensorflow    checkpoint of the paper's TensorFlow code, such as the published models; only as the source
    txl           a checkpoint of `txl train`, for `txl evaluate` and `txl train initial_weights=`

Loading runs no code from a file: it reads tensors and plain containers only.
"""

from __future__ import annotations

import errno
import json
import re
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from txl_lightning.config.architecture import TransformerXLConfig, option_names
from txl_lightning.config.schemas import (
    Config,
    FileData,
    Lm1bData,
    MemoryConfig,
    TableEncodingConfig,
    TransformerXLModelConfig,
    file_data,
    stored,
)
from txl_lightning.data.corpus import load_corpus
from txl_lightning.data.vocabulary import UNKNOWN, Vocabulary
from txl_lightning.errors import OptionError, UserError, require
from txl_lightning.files import new_folder, write_json, write_text
from txl_lightning.model.checkpoints import (
    from_huggingface,
    from_original,
    from_tensorflow,
    to_huggingface,
    to_original,
)
from txl_lightning.model.checkpoints.tensorflow import INDEX, read_variables
from txl_lightning.model.transformer_xl import TransformerXL
from txl_lightning.runs import ConvertOptions
from txl_lightning.runs.storage import write_checkpoint
from txl_lightning.runs.trained import load_trained

READERS = {"original": from_original, "huggingface": from_huggingface}
WRITERS = {"original": to_original, "huggingface": to_huggingface}
TARGETS = ("original", "huggingface", "txl")
SOURCES = (*TARGETS, "tensorflow")
EVALUATION_LENGTHS = ("mem_len", "same_length", "clamp_len")
GIVEN_LENGTHS = (*EVALUATION_LENGTHS, "memory_start")
WEIGHTS = ("model.safetensors", "pytorch_model.bin", "model.pt")
CONFIG = "config.json"
OF_CORPUS = "corpus"
VOCABULARIES = ("vocab.json", "vocab", "vocab.txt", "1b_word_vocab.txt")
PICKLED_VOCABULARIES = ("vocab.bin", "vocab.pkl", "cache.pkl")
SYMBOL_LEVELS = ("byte", "char", "word")  # a file of symbols has no merges
FIRST_WORD = re.compile(r"^[ \t]*([^ \t]*)")  # a word may contain white space of Unicode, as in Python 2


def run(options: ConvertOptions, directory: Path) -> list[str]:
    """Convert `options.source` into `options.target`; nothing is written to the run directory.

    Returns:
        The path of the target, to print.

    Raises:
        UserError: a file is missing or not a checkpoint, or the target's format cannot hold the model.
    """
    _check_formats(options)
    target = Path(options.target)
    require(not target.exists(), "target", options.target, "must not exist yet")
    lengths = {}
    for name in GIVEN_LENGTHS:
        value = getattr(options, name)
        if value is not None:
            lengths[name] = value
    vocabulary = None
    if options.target_format == "txl":
        vocabulary = _given_vocabulary(options)
    trained = None
    if options.source_format == "txl":
        trained = load_trained(options.source, "source")
        model: Any = trained.model
        allowed = "is a recurrent model; the other formats hold Transformer-XLs only"
        require(isinstance(model, TransformerXL), "source", options.source, allowed)
    elif options.source_format == "tensorflow":
        model, segment_len = _read_tensorflow(options.source, lengths)
        options = _as_in_tensorflow(options, model, segment_len, vocabulary)
    else:
        model = _read_model(options.source, options.source_format)
    model = model.with_lengths(**lengths)
    if options.target_format == "txl":
        _write_run(model, options, vocabulary, target)
        return [str(target)]
    weights, config = WRITERS[options.target_format](model)
    with new_folder(target) as folder:
        _write_weights(weights, folder / WEIGHTS[0])
        write_json(folder / CONFIG, config)
        if trained is not None and options.target_format == "huggingface":
            _write_vocabulary(trained.vocabulary, folder)
    return [str(target)]


def _check_formats(options: ConvertOptions) -> None:
    source_format = options.source_format
    allowed = f"must be one of {', '.join(SOURCES)}"
    require(source_format in SOURCES, "source_format", source_format, allowed)
    targets = [name for name in TARGETS if name != source_format]
    allowed = f"must be one of {', '.join(targets)} for source_format={source_format}"
    require(options.target_format in targets, "target_format", options.target_format, allowed)


def _write_weights(weights: dict[str, Tensor], path: Path) -> None:
    """Write safetensors, which hold no views."""
    copies = {name: tensor.clone().contiguous() for name, tensor in weights.items()}
    try:
        save_file(copies, path)
    except SafetensorError as error:  # of a full disk too
        raise OSError(errno.EIO, str(error)) from error


def _write_vocabulary(vocabulary: Vocabulary, folder: Path) -> None:
    """Write `tokenizer.json` of subwords or `vocab.json` of symbols; bytes are their own numbers."""
    if vocabulary.tokenizer:
        write_text(folder / "tokenizer.json", vocabulary.tokenizer)
    elif vocabulary.symbols:
        write_json(folder / VOCABULARIES[0], vocabulary.numbers, ensure_ascii=False)


def _read_model(source: str, source_format: str) -> TransformerXL:
    path = Path(source)
    if path.is_dir():
        folder = path
        candidates = [folder / name for name in WEIGHTS]
        problem = f"has none of {', '.join(WEIGHTS)}"
    else:
        folder = path.parent
        candidates = [path]
        problem = "no such file"
    files = [file for file in candidates if file.is_file()]
    require(bool(files), "source", source, problem)
    weights = _read_weights(files[0])
    config = _read_config(folder)
    needed = f"must have {CONFIG} with its options in the same folder"
    require(bool(config), "source", source, needed)
    try:
        return READERS[source_format](weights, config)
    except UserError as error:
        raise OptionError("source", source, str(error)) from error


def _read_weights(path: Path) -> dict[str, Tensor]:
    """Read tensors by name, from safetensors or from a torch file that holds only tensors."""
    is_safe = path.suffix == ".safetensors"
    try:
        if is_safe:
            contents: Any = load_file(path)
        else:
            contents = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # the readers have no common error for other files
        problem = "must hold tensors only; code in a file is never run"
        if is_safe:
            problem = "is not a file of safetensors, or was cut short"
        raise OptionError("source", path, problem) from error
    is_state = isinstance(contents, dict)
    if is_state:
        is_state = all(isinstance(value, Tensor) for value in contents.values())
    needed = "is not a dictionary of tensors; save the state_dict of the model"
    require(is_state, "source", path, needed)
    weights: dict[str, Tensor] = contents
    return weights


def _read_config(folder: Path) -> dict[str, Any]:
    """Return the options in `config.json`; none if there is no such file."""
    if not (folder / CONFIG).is_file():
        return {}
    try:
        config = json.loads((folder / CONFIG).read_text("utf-8"))
    except (ValueError, RecursionError) as error:
        raise OptionError("source", folder, f"its {CONFIG} must be JSON ({error})") from error
    require(isinstance(config, dict), "source", folder, f"its {CONFIG} must be a dictionary of options")
    return config


def _read_tensorflow(source: str, lengths: dict[str, Any]) -> tuple[TransformerXL, int | None]:
    """Read a model of TensorFlow, and the length of its segments if the flags beside it say so.

    `lengths` of the options replace these flags.
    """
    path = Path(source)
    named = [path, path.with_name(path.name + INDEX)]
    files = [file for file in named if file.suffix == INDEX and file.is_file()]
    if not files:
        files = sorted(path.rglob(f"*{INDEX}"))
    checkpoint = f"a checkpoint of TensorFlow (NAME{INDEX} and NAME.data-…)"
    needed = f"must be {checkpoint} or a folder with one; {len(files)} found"
    require(len(files) == 1, "source", source, needed)
    folder = files[0].parent
    flags = _read_config(folder)
    flags.update(lengths)
    needed = f"must be given, since there is no {CONFIG} with the model's flags in {folder}"
    require(flags.get("mem_len") is not None, "mem_len", None, needed)
    variables = read_variables(files[0].with_suffix(""))
    return from_tensorflow(variables, flags), flags.get("tgt_len")


def _as_in_tensorflow(
    options: ConvertOptions, model: TransformerXL, segment_len: int | None, vocabulary: Vocabulary | None
) -> ConvertOptions:
    """Return options that evaluate the model at its own lengths, except for those that they give.

    A model of One Billion Word reads `<S>` at both ends of a sentence, as the TensorFlow code does.
    """
    data = options.data
    evaluation = options.evaluation
    marks_sentences = vocabulary is not None and vocabulary.starts_sentences
    if data.name == "lm1b" or marks_sentences:
        if not isinstance(data, (Lm1bData, FileData)):
            data = file_data(data, None, data.level)
        data = replace(data, sentence_marks="both")
    lengths: dict[str, Any] = {}
    for name in EVALUATION_LENGTHS:
        if getattr(evaluation, name) is None:
            lengths[name] = getattr(model.config, name)
    if segment_len is not None:
        lengths["segment_len"] = segment_len
        data = replace(data, segment_len=segment_len)
    return replace(options, evaluation=replace(evaluation, **lengths), data=data)


def _given_vocabulary(options: ConvertOptions) -> Vocabulary | None:
    """Return the vocabulary of a file, given or beside the source; None for that of the corpus."""
    path = options.vocabulary
    if path is None and options.source_format != "original":
        path = _vocabulary_beside(Path(options.source))
    if path is None or path == OF_CORPUS:
        return None
    allowed = f"must be one of {', '.join(SYMBOL_LEVELS)}"
    require(options.data.level in SYMBOL_LEVELS, "data.level", options.data.level, allowed)
    return read_vocabulary(path, options.data.level)


def _vocabulary_beside(source: Path) -> str | None:
    """Return a file of symbols in the folder of a model, in `data/` in it or beside it; None if there is none.

    Raises:
        OptionError: they are only in a pickle, which is never opened.
    """
    folder = source if source.is_dir() else source.parent
    folders = (folder, folder / "data", folder.absolute().parent / "data")
    path = _first_file(folders, VOCABULARIES)
    if path is not None:
        return str(path)
    pickled = _first_file(folders, PICKLED_VOCABULARIES)
    reason = "is never unpickled, since that runs code of the file (docs/models.md)"
    require(pickled is None, "vocabulary", None, f"must be given: {pickled} {reason}")
    return None


def _first_file(folders: tuple[Path, ...], names: tuple[str, ...]) -> Path | None:
    for folder in folders:
        for name in names:
            if (folder / name).is_file():
                return folder / name
    return None


def read_vocabulary(path: str | Path, level: Any) -> Vocabulary:
    """Read symbols in the order of their numbers.

    A `.json` file is a dictionary from symbols to numbers. Any other file has a symbol on each line, its first word;
    there bytes are written as numbers and the space as `_`, as the paper's code prepares enwik8 and text8.

    Raises:
        OptionError: the file cannot be read, or a line is not a symbol of the level.
    """
    try:
        text = Path(path).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise OptionError("vocabulary", path, f"cannot be read as UTF-8 text ({error})") from error
    is_json = Path(path).suffix == ".json"
    written = _symbols_of_json(text, path) if is_json else _symbols_of_lines(text, level)
    symbols: dict[str, None] = {}
    are_bytes = all(_is_byte(symbol) for symbol in written if symbol)
    for number, symbol in enumerate(written, start=1):
        if not symbol:
            continue
        fits = True
        if level == "char":
            fits = len(symbol) == 1 or symbol == UNKNOWN
        elif level == "byte":
            is_character = is_json and not are_bytes and len(symbol) == 1 and ord(symbol) < 256
            fits = is_character or _is_byte(symbol)
            if fits and not is_character:
                symbol = chr(int(symbol))
        allowed = f"line {number}: {symbol!r} is not a {level} (data.level)"
        require(fits, "vocabulary", path, allowed)
        symbols[symbol] = None
    require(bool(symbols), "vocabulary", path, "has no symbols")
    if level == "char" and " " not in symbols:
        symbols = {" " if symbol == "_" else symbol: None for symbol in symbols}
    return Vocabulary(level, tuple(symbols))


def _is_byte(symbol: str) -> bool:
    return symbol.isascii() and symbol.isdigit() and int(symbol) < 256


def _symbols_of_lines(text: str, level: str) -> list[str]:
    symbols = []
    for line in text.split("\n"):
        is_character = level == "char" and len(line) == 1
        symbols.append(line if is_character else FIRST_WORD.findall(line)[0])
    return symbols


def _symbols_of_json(text: str, path: str | Path) -> list[str]:
    """Return the symbols of a dictionary from symbols to numbers, such as Hugging Face's `vocab.json`, by number.

    Words of a pickle of Python 2 are UTF-8 that was read as Latin-1, `cafÃ©`, since that is how Hugging Face's
    conversion opened the authors' `cache.pkl`. If all symbols of a file can be read so, they become UTF-8 again.

    Raises:
        OptionError: the text is not such a dictionary, with each of the numbers 0 … n - 1 once.
    """
    try:
        numbers = json.loads(text)
        is_vocabulary = sorted(numbers.values()) == list(range(len(numbers)))
    except (ValueError, TypeError, AttributeError, RecursionError):
        is_vocabulary = False
    allowed = "must be a dictionary from symbols to their numbers, 0 … n - 1, in JSON"
    require(is_vocabulary, "vocabulary", path, allowed)
    symbols = sorted(numbers, key=numbers.__getitem__)
    try:
        return [symbol.encode("latin-1").decode() for symbol in symbols]
    except UnicodeError:
        return symbols


def _write_run(model: TransformerXL, options: ConvertOptions, given: Vocabulary | None, target: Path) -> None:
    """Write a checkpoint like those of `txl train`, at step 0, with the given vocabulary or the chosen corpus' own."""
    if given is None:
        corpus = load_corpus(options.data)
        vocabulary = corpus.vocabulary
        source = f"data={corpus.name}"
        advice = "choose the corpus the model was trained on with data=…"
    else:
        vocabulary = given
        source = f"the file {options.vocabulary}" if options.vocabulary else "the file beside it"
        advice = "choose the model's own with vocabulary=FILE"
    n_tokens = model.config.vocab_size
    if len(vocabulary) != n_tokens:
        sizes = f"{n_tokens} tokens, that of {source} has {len(vocabulary)}"
        raise UserError(f"the vocabulary of the model has {sizes}: {advice}")
    contents = {
        "state_dict": {f"model.{name}": tensor for name, tensor in model.state_dict().items()},
        "global_step": 0,
        "txl_lightning": {
            "config": stored(_run_config(model, options)),
            "vocabulary": vocabulary.state_dict(),
            "vocabulary_given": given is not None,
        },
    }
    target.parent.mkdir(parents=True, exist_ok=True)
    write_checkpoint(contents, target)


def _run_config(model: TransformerXL, options: ConvertOptions) -> Config:
    """Return the configuration of a run with this model; everything else comes from the options."""
    model_options: dict[str, Any] = {"name": "converted"}
    encoding_options: dict[str, Any] = {}
    memory_options: dict[str, Any] = {}
    groups = {"model": model_options, "encoding": encoding_options, "memory": memory_options}
    for field, option in option_names(TransformerXLConfig).items():
        group, name = option.split(".")
        value = getattr(model.config, field)
        groups[group][name] = list(value) if isinstance(value, tuple) else value
    values: dict[str, Any] = {}
    for f in fields(Config):
        values[f.name] = getattr(options, f.name)
    values["model"] = TransformerXLModelConfig(**model_options)
    values["encoding"] = TableEncodingConfig(**encoding_options)
    values["memory"] = MemoryConfig(**memory_options)
    return Config(**values)
