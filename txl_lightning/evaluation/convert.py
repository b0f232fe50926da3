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
from safetensors.torch import load_file, save

from txl_lightning.config.architecture import TransformerXLConfig, option_names
from txl_lightning.config.schemas import (
    Config,
    DataConfig,
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
from txl_lightning.files import new_folder, write_atomically, write_json, write_text
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
LENGTHS = ("mem_len", "same_length", "clamp_len", "memory_start")
WEIGHTS = ("model.safetensors", "pytorch_model.bin", "model.pt")
CONFIG = "config.json"
OF_CORPUS = "corpus"
SYMBOL_LEVELS = ("byte", "char", "word")  # a symbols file has no merges
WHITE_SPACE = re.compile(r"[ \t]")  # a word may have Unicode white space, as in Python 2


def run(options: ConvertOptions, directory: Path) -> list[str]:
    """Convert `options.source` into `options.target`; nothing is written to the run directory.

    Returns:
        The path of the target, to print.

    Raises:
        UserError: a file is missing or not a checkpoint, or the target's format cannot hold the model.
    """
    target_format = options.target_format
    targets = {"txl", *WRITERS} - {options.source_format}
    allowed = f"must be one of {', '.join(sorted(targets))}"
    require(target_format in targets, "target_format", target_format, allowed)
    target = Path(options.target)
    require(not target.exists(), "target", options.target, "must not exist yet")
    lengths = {}
    for name in LENGTHS:
        if getattr(options, name) is not None:
            lengths[name] = getattr(options, name)
    if options.source_format == "txl":
        trained = load_trained(options.source, "source")
        model: Any = trained.model
        allowed = "is a recurrent model; the other formats hold Transformer-XLs only"
        require(isinstance(model, TransformerXL), "source", options.source, allowed)
    elif options.source_format == "tensorflow":
        model = _read_tensorflow(options.source, lengths)
    else:
        model = _read_model(options.source, options.source_format)
    model = model.with_lengths(**lengths)
    if target_format == "txl":
        _write_run(model, options, target)
        return [str(target)]
    weights, config = WRITERS[target_format](model)
    copies = {name: tensor.clone().contiguous() for name, tensor in weights.items()}  # no views
    with new_folder(target) as folder:
        content = save(copies)
        write_atomically(folder / WEIGHTS[0], lambda path: path.write_bytes(content))
        write_json(folder / CONFIG, config)
        if options.source_format == "txl" and target_format == "huggingface":
            write_vocabulary(trained.vocabulary, folder)
    return [str(target)]


def write_vocabulary(vocabulary: Vocabulary, folder: Path) -> None:
    """Write `tokenizer.json` for subwords or `vocab.json` for symbols; 256 bytes need no file."""
    numbers = vocabulary.numbers
    if vocabulary.level == "byte":
        numbers = {str(ord(symbol)): number for symbol, number in numbers.items()}
    if vocabulary.tokenizer:
        write_text(folder / "tokenizer.json", vocabulary.tokenizer)
    elif vocabulary.symbols:
        write_json(folder / "vocab.json", numbers, ensure_ascii=False)


def _read_model(source: str, source_format: str) -> TransformerXL:
    """Read tensors by name, from safetensors or from a torch file that holds only tensors, and their config."""
    path = Path(source)
    if path.is_dir():
        names = [name for name in WEIGHTS if (path / name).is_file()]
        require(
            bool(names),
            "source",
            source,
            f"has none of {', '.join(WEIGHTS)}",
        )
        path = path / names[0]
    require(path.is_file(), "source", source, "no such file")
    try:
        if path.suffix == ".safetensors":
            weights = load_file(path)
        else:
            weights = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # the readers have no common error for other files
        problem = "it is cut short, or has more than tensors; code in a file is never run"
        raise OptionError("source", path, f"cannot be read: {problem}") from error
    config = _read_config(path.parent)
    require(
        bool(config),
        "source",
        source,
        f"must have {CONFIG} with its options beside it",
    )
    with naming("source", source):
        return READERS[source_format](weights, config)


def _read_config(folder: Path) -> dict[str, Any]:
    """Return the options in `config.json`; none if there is no such file."""
    path = folder / CONFIG
    if not path.is_file():
        return {}
    with naming("source", path):
        return dict(json.loads(path.read_text("utf-8")))


def _read_tensorflow(source: str, lengths: dict[str, Any]) -> TransformerXL:
    """Read a TensorFlow model; `lengths` in the options replace the flags beside it."""
    path = Path(source)
    files = sorted(path.rglob(f"*{INDEX}"))
    index = Path(f"{path}{INDEX}")
    if index.is_file():
        files = [index]
    needed = f"a checkpoint of TensorFlow (NAME{INDEX} and NAME.data-…) or a folder with one"
    require(
        len(files) == 1,
        "source",
        source,
        f"must be {needed}; {len(files)} found",
    )
    flags = {**_read_config(files[0].parent), **lengths}
    needed = f"must be given, since there is no {CONFIG} with the model's flags beside {files[0]}"
    require(
        flags.get("mem_len") is not None,
        "mem_len",
        None,
        needed,
    )
    return from_tensorflow(read_variables(files[0].with_suffix("")), flags)


def read_vocabulary(path: str | Path, level: Any) -> Vocabulary:
    """Read symbols, ordered by number.

    A `.json` file is a dictionary from symbols to numbers. Any other file has a symbol on each line, its first word.
    Bytes are written as numbers, and a space among characters as `_`, as the paper's code prepares enwik8 and text8.

    Raises:
        OptionError: the file cannot be read, or has something that is not a symbol at this level.
    """
    allowed = f"must be one of {', '.join(SYMBOL_LEVELS)}"
    require(level in SYMBOL_LEVELS, "data.level", level, allowed)
    with naming("vocabulary", path):
        text = Path(path).read_text("utf-8")
        symbols = []
        if Path(path).suffix == ".json":
            symbols = _symbols_of_json(text)
            text = ""
        for line in text.split("\n"):
            if level != "char" or len(line) != 1:  # a line may be a space
                line = WHITE_SPACE.split(line.strip(" \t"))[0]
            symbols.append(line)
        symbols = list(dict.fromkeys(filter(None, symbols)))
        if not symbols:
            raise UserError("has no symbols")
        for number, symbol in enumerate(symbols):
            is_symbol = level == "word" or len(symbol) == 1 or symbol == UNKNOWN
            if level == "byte":
                is_symbol = symbol.isdecimal() and int(symbol) < 256
            if not is_symbol:
                raise UserError(f"symbol {number}: {symbol!r} is not a {level} (data.level)")
    if level == "byte":
        symbols = [chr(int(symbol)) for symbol in symbols]
    elif level == "char" and " " not in symbols:
        symbols = [symbol.replace("_", " ") for symbol in symbols]
    return Vocabulary(level, tuple(symbols))


def _symbols_of_json(text: str) -> list[str]:
    """Return the symbols in a dictionary from symbols to numbers, such as Hugging Face's `vocab.json`, by number.

    Words from a Python 2 pickle are UTF-8 read as Latin-1, `cafÃ©`, since Hugging Face's conversion opened the authors'
    `cache.pkl` that way. If all symbols in a file can be read so, they become UTF-8 again.

    Raises:
        UserError: the dictionary does not have each number 0 … n - 1 once.
    """
    numbers = json.loads(text)
    if sorted(numbers.values()) != list(range(len(numbers))):
        raise UserError("must be a dictionary from symbols to their numbers, 0 … n - 1, in JSON")
    symbols = sorted(numbers, key=numbers.__getitem__)
    try:
        return [symbol.encode("latin-1").decode() for symbol in symbols]
    except UnicodeError:
        return symbols


def _write_run(model: TransformerXL, options: ConvertOptions, target: Path) -> None:
    """Write a checkpoint as `txl train` does, at step 0, with the given vocabulary or the corpus's.

    Everything but the model comes from the options.
    """
    path = options.vocabulary
    is_chosen = path is not None or options.source_format == "original"
    allowed = f"must be a file with the model's symbols, or {OF_CORPUS} (docs/models.md)"
    require(is_chosen, "vocabulary", path, allowed)
    given = None
    if path not in (None, OF_CORPUS):
        given = read_vocabulary(str(path), options.data.level)
    vocabulary = given or load_corpus(options.data).vocabulary
    n_tokens = model.config.vocab_size
    if len(vocabulary) != n_tokens:
        sizes = f"has {n_tokens} tokens, the vocabulary of the file or corpus {len(vocabulary)}"
        advice = "choose the model's own with vocabulary=FILE, or its corpus with data="
        raise UserError(f"the model {sizes}: {advice}")
    groups: dict[str, Any] = {"model": {"name": "converted"}, "encoding": {}, "memory": {}}
    for field, option in option_names(TransformerXLConfig).items():
        group, name = option.split(".")
        groups[group][name] = getattr(model.config, field)
    groups["model"]["cutoffs"] = list(model.config.cutoffs)
    values = {field.name: getattr(options, field.name) for field in fields(Config)}
    values["model"] = TransformerXLModelConfig(**groups["model"])
    values["encoding"] = EncodingConfig(**groups["encoding"])
    values["memory"] = MemoryConfig(**groups["memory"])
    if options.source_format == "tensorflow":
        values["data"] = _as_in_tensorflow(options.data, given)
    record = {
        "config": stored(Config(**values)),
        "vocabulary": vocabulary.state_dict(),
        "vocabulary_given": given is not None,
    }
    weights = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
    target.parent.mkdir(parents=True, exist_ok=True)
    write_checkpoint({"state_dict": weights, "global_step": 0, "txl_lightning": record}, target)


def _as_in_tensorflow(data: DataConfig, vocabulary: Vocabulary | None) -> DataConfig:
    """Return options with `<S>` at both sentence ends, if there are any: so its code reads One Billion Word."""
    if data.name != "lm1b" and not (vocabulary and vocabulary.starts_sentences):
        return data
    if not isinstance(data, Lm1bData | FileData):
        data = file_data(data, None, data.level)
    return replace(data, sentence_marks="both")
