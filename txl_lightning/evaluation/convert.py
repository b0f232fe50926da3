"""`txl convert`: convert checkpoints between the paper's code, Hugging Face and `txl train`; read TensorFlow's.

    original      weights of `MemTransformerLM` (.safetensors, .bin or .pt) with `config.json`, its options, beside them
    huggingface   a folder as `save_pretrained` or the hub has it: weights, `config.json`, perhaps `vocab.json`
    tensorflow    checkpoint of the paper's TensorFlow code, such as the published models; only as the source
    txl           a checkpoint of `txl train`, for `txl evaluate` and `txl train initial_weights=`

Loading runs no code from a file: it reads tensors and plain containers only.
"""

from __future__ import annotations

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
    EncodingConfig,
    FileData,
    Lm1bData,
    MemoryConfig,
    TransformerXLModelConfig,
    file_data,
    stored,
)
from txl_lightning.data.corpus import load_corpus
from txl_lightning.data.vocabulary import UNKNOWN, Vocabulary
from txl_lightning.errors import OptionError, UserError, require
from txl_lightning.evaluation.options import ConvertOptions
from txl_lightning.evaluation.trained import load_trained, naming, write_checkpoint
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

READERS = {"original": from_original, "huggingface": from_huggingface}
WRITERS = {"original": to_original, "huggingface": to_huggingface}
TARGETS = ("original", "huggingface", "txl")
LENGTHS = ("mem_len", "same_length", "clamp_len", "memory_start")
WEIGHTS = ("model.safetensors", "pytorch_model.bin", "model.pt")
CONFIG = "config.json"
VOCABULARIES = ("vocab.json", "vocab", "vocab.txt", "1b_word_vocab.txt")
OF_CORPUS = "corpus"
NUMBER = re.compile("[0-9]*")
SYMBOL_LEVELS = ("byte", "char", "word")  # a symbols file has no merges
FIRST_WORD = re.compile(
    r"^[ \t]*([^ \t]*)"
)  # a word may contain Unicode white space, as in Python 2


def run(options: ConvertOptions, directory: Path) -> list[str]:
    """Convert `options.source` into `options.target`; nothing is written to the run directory.

    Returns:
        The path of the target, to print.

    Raises:
        UserError: a file is missing or not a checkpoint, or the target's format cannot hold the model.
    """
    targets = [name for name in TARGETS if name != options.source_format]
    allowed = f"must be one of {', '.join(targets)} for source_format={options.source_format}"
    require(options.target_format in targets, "target_format", options.target_format, allowed)
    target = Path(options.target)
    require(not target.exists(), "target", options.target, "must not exist yet")
    lengths = {}
    for name in LENGTHS:
        if getattr(options, name) is not None:
            lengths[name] = getattr(options, name)
    segment_len = None
    if options.source_format == "txl":
        trained = load_trained(options.source, "source")
        model: Any = trained.model
        allowed = "is a recurrent model; the other formats hold Transformer-XLs only"
        require(isinstance(model, TransformerXL), "source", options.source, allowed)
    elif options.source_format == "tensorflow":
        model, segment_len = _read_tensorflow(options.source, lengths)
    else:
        model = _read_model(options.source, options.source_format)
    model = model.with_lengths(**lengths)
    if options.target_format == "txl":
        vocabulary = _vocabulary_of_file(options)
        if options.source_format == "tensorflow":
            options = _as_in_tensorflow(options, segment_len, vocabulary)
        _write_run(model, options, vocabulary, target)
        return [str(target)]
    weights, config = WRITERS[options.target_format](model)
    with new_folder(target) as folder:
        _write_weights(weights, folder / WEIGHTS[0])
        write_json(folder / CONFIG, config)
        if options.source_format == "txl" and options.target_format == "huggingface":
            _write_vocabulary(trained.vocabulary, folder)
    return [str(target)]


def _write_weights(weights: dict[str, Tensor], path: Path) -> None:
    """Write safetensors, which hold no views."""
    copies = {name: tensor.clone().contiguous() for name, tensor in weights.items()}
    try:
        save_file(copies, path)
    except SafetensorError as error:  # also after a full disk
        raise OSError(f"{path}: {error}") from error


def _write_vocabulary(vocabulary: Vocabulary, folder: Path) -> None:
    """Write `tokenizer.json` for subwords or `vocab.json` for symbols; bytes need no file."""
    if vocabulary.tokenizer:
        write_text(folder / "tokenizer.json", vocabulary.tokenizer)
    elif vocabulary.symbols:
        write_json(folder / VOCABULARIES[0], vocabulary.numbers, ensure_ascii=False)


def _read_model(source: str, source_format: str) -> TransformerXL:
    path = Path(source)
    if path.is_dir():
        files = [path / name for name in WEIGHTS if (path / name).is_file()]
        require(
            bool(files),
            "source",
            source,
            f"has none of {', '.join(WEIGHTS)}",
        )
        path = files[0]
    require(path.is_file(), "source", source, "no such file")
    weights = _read_weights(path)
    config = _read_config(path.parent)
    allowed = f"must have {CONFIG} with its options in the same folder"
    require(bool(config), "source", source, allowed)
    try:
        return READERS[source_format](weights, config)
    except UserError as error:
        raise OptionError("source", source, str(error)) from error


def _read_weights(path: Path) -> dict[str, Tensor]:
    """Read tensors by name, from safetensors or from a torch file that holds only tensors."""
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        weights = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # the readers have no common error for other files
        problem = "it is cut short, or has more than tensors; code in a file is never run"
        raise OptionError("source", path, f"cannot be read: {problem}") from error
    is_state = isinstance(weights, dict)
    is_state = is_state and all(
        isinstance(
            value,
            Tensor,
        )
        for value in weights.values()
    )
    problem = "is not a dictionary of tensors; save the state_dict of the model"
    require(is_state, "source", path, problem)
    return weights


def _read_config(folder: Path) -> dict[str, Any]:
    """Return the options in `config.json`; none if there is no such file."""
    path = folder / CONFIG
    if not path.is_file():
        return {}
    with naming("source", path):
        return dict(json.loads(path.read_text("utf-8")))


def _read_tensorflow(source: str, lengths: dict[str, Any]) -> tuple[TransformerXL, int | None]:
    """Read a TensorFlow model, and its segment length if the flags beside it say so.

    `lengths` in the options replace these flags.
    """
    path = Path(source)
    files = sorted(path.rglob(f"*{INDEX}"))
    if path.with_name(path.name + INDEX).is_file():
        files = [path.with_name(path.name + INDEX)]
    needed = (
        f"must be a checkpoint of TensorFlow (NAME{INDEX} and NAME.data-…) or a folder with one"
    )
    require(
        len(files) == 1,
        "source",
        source,
        f"{needed}; {len(files)} found",
    )
    folder = files[0].parent
    flags = _read_config(folder)
    flags.update(lengths)
    needed = f"must be given, since there is no {CONFIG} with the model's flags in {folder}"
    require(flags.get("mem_len") is not None, "mem_len", None, needed)
    variables = read_variables(files[0].with_suffix(""))
    return from_tensorflow(variables, flags), flags.get("tgt_len")


def _as_in_tensorflow(
    options: ConvertOptions, segment_len: int | None, vocabulary: Vocabulary | None
) -> ConvertOptions:
    """Return options with the model's segments; One Billion Word has `<S>` at both sentence ends there."""
    data = options.data
    evaluation = options.evaluation
    marks_sentences = vocabulary is not None and vocabulary.starts_sentences
    if data.name == "lm1b" or marks_sentences:
        if not isinstance(data, (Lm1bData, FileData)):
            data = file_data(data, None, data.level)
        data = replace(data, sentence_marks="both")
    if segment_len is not None:
        data = replace(data, segment_len=segment_len)
        evaluation = replace(evaluation, segment_len=segment_len)
    return replace(options, evaluation=evaluation, data=data)


def _vocabulary_of_file(options: ConvertOptions) -> Vocabulary | None:
    """Return the vocabulary from a file, given or in the source's folder; None for the corpus's.

    Raises:
        OptionError: there is no such file, and the corpus would give its symbols another order.
    """
    path = options.vocabulary
    level = options.data.level
    if path is None and options.source_format != "original":
        source = Path(options.source)
        folder = source if source.is_dir() else source.parent
        files = [file for name in VOCABULARIES for file in sorted(folder.rglob(name))]
        is_bytes = options.source_format == "huggingface" and level == "byte"
        needed = f"must be given, or {OF_CORPUS}: no {' or '.join(VOCABULARIES)} beside the model (docs/models.md)"
        require(bool(files) or is_bytes, "vocabulary", None, needed)
        if files:
            path = str(files[0])
    if path is None or path == OF_CORPUS:
        return None
    allowed = f"must be one of {', '.join(SYMBOL_LEVELS)}"
    require(level in SYMBOL_LEVELS, "data.level", level, allowed)
    return read_vocabulary(path, level)


def read_vocabulary(path: str | Path, level: Any) -> Vocabulary:
    """Read symbols, ordered by number.

    A `.json` file is a dictionary from symbols to numbers. Any other file has a symbol on each line, its first word;
    there bytes are written as numbers and the space as `_`, as the paper's code prepares enwik8 and text8.

    Raises:
        OptionError: the file cannot be read, or a line is not a symbol at this level.
    """
    with naming("vocabulary", path):
        text = Path(path).read_text("utf-8")
    is_json = Path(path).suffix == ".json"
    written = _symbols_of_json(text, path) if is_json else _symbols_of_lines(text, level)
    are_numbers = not is_json or all(NUMBER.fullmatch(symbol) for symbol in written)
    symbols: dict[str, None] = {}
    for number, symbol in enumerate(written, start=1):
        is_symbol = level == "word" or len(symbol) < 2 or (level, symbol) == ("char", UNKNOWN)
        if level == "byte" and symbol and are_numbers:
            is_symbol = NUMBER.fullmatch(symbol) is not None and int(symbol) < 256
            if is_symbol:
                symbol = chr(int(symbol))
        elif level == "byte" and symbol:
            is_symbol = len(symbol) == 1 and ord(symbol) < 256
        allowed = f"line {number}: {written[number - 1]!r} is not a {level} (data.level)"
        require(is_symbol, "vocabulary", path, allowed)
        symbols[symbol] = None
    symbols.pop("", None)
    require(bool(symbols), "vocabulary", path, "has no symbols")
    if level == "char" and " " not in symbols:
        symbols = {" " if symbol == "_" else symbol: None for symbol in symbols}
    return Vocabulary(level, tuple(symbols))


def _symbols_of_lines(text: str, level: str) -> list[str]:
    symbols = []
    for line in text.split("\n"):
        is_character = level == "char" and len(line) == 1
        symbols.append(line if is_character else FIRST_WORD.findall(line)[0])
    return symbols


def _symbols_of_json(text: str, path: str | Path) -> list[str]:
    """Return the symbols in a dictionary from symbols to numbers, such as Hugging Face's `vocab.json`, by number.

    Words from a Python 2 pickle are UTF-8 read as Latin-1, `cafÃ©`, since Hugging Face's conversion opened the authors'
    `cache.pkl` that way. If all symbols in a file can be read so, they become UTF-8 again.

    Raises:
        OptionError: the text is not such a dictionary with each number 0 … n - 1 once.
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


def _write_run(
    model: TransformerXL, options: ConvertOptions, given: Vocabulary | None, target: Path
) -> None:
    """Write a checkpoint as `txl train` does, at step 0, with the given vocabulary or the corpus's."""
    vocabulary = given
    if vocabulary is None:
        vocabulary = load_corpus(options.data).vocabulary
    n_tokens = model.config.vocab_size
    if len(vocabulary) != n_tokens:
        sizes = f"has {n_tokens} tokens, the vocabulary of the file or corpus {len(vocabulary)}"
        advice = "choose the model's own with vocabulary=FILE, or its corpus with data="
        raise UserError(f"the model {sizes}: {advice}")
    weights = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
    record = {
        "config": stored(_run_config(model, options)),
        "vocabulary": vocabulary.state_dict(),
        "vocabulary_given": given is not None,
    }
    target.parent.mkdir(parents=True, exist_ok=True)
    write_checkpoint({"state_dict": weights, "global_step": 0, "txl_lightning": record}, target)


def _run_config(model: TransformerXL, options: ConvertOptions) -> Config:
    """Return the configuration for a run with this model; everything else comes from the options."""
    groups: dict[str, Any] = {
        "model": {"name": "converted"},
        "encoding": {},
        "memory": {},
    }
    for field, option in option_names(TransformerXLConfig).items():
        group, name = option.split(".")
        value = getattr(model.config, field)
        groups[group][name] = (
            list(value)
            if isinstance(
                value,
                tuple,
            )
            else value
        )
    values = {
        field.name: getattr(
            options,
            field.name,
        )
        for field in fields(Config)
    }
    values["model"] = TransformerXLModelConfig(**groups["model"])
    values["encoding"] = EncodingConfig(**groups["encoding"])
    values["memory"] = MemoryConfig(**groups["memory"])
    return Config(**values)
