"""`txl convert`: checkpoints of the paper's code, of Hugging Face and of our own runs, into one another.

    original      weights of `MemTransformerLM` (.safetensors, .bin or .pt) and, beside them, its options
    huggingface   a folder as `save_pretrained` writes it: the weights and `config.json`
    txl           a checkpoint of `txl train`, for `txl evaluate` and `txl train initial_weights=`

Loading runs no code of the file: tensors and plain containers only.
"""

from __future__ import annotations

import json
from dataclasses import fields, replace
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from txl_lightning.config.schemas import Config, EncodingConfig, MemoryConfig, TransformerXLModelConfig, plain
from txl_lightning.data.corpora.corpus import load_corpus
from txl_lightning.errors import OptionError, UserError, require
from txl_lightning.model.checkpoints.formats import from_huggingface, from_original, to_huggingface, to_original
from txl_lightning.model.transformer_xl import TransformerXL
from txl_lightning.runs.convert.options import ConvertOptions
from txl_lightning.runs.storage import write_checkpoint
from txl_lightning.runs.trained import load_trained

READERS = {"original": from_original, "huggingface": from_huggingface}
WRITERS = {"original": to_original, "huggingface": to_huggingface}
FORMATS = ("original", "huggingface", "txl")
WEIGHTS = ("model.safetensors", "pytorch_model.bin", "model.pt")
CONFIG = "config.json"


def convert(options: ConvertOptions) -> Path:
    """Convert `options.source` into `options.target` and return what was written.

    Raises:
        UserError: a file is missing or no checkpoint, or the target's format cannot hold the model.
    """
    for name in ("source_format", "target_format"):
        value = getattr(options, name)
        require(value in FORMATS, name, value, f"must be one of {', '.join(FORMATS)}")
    target = Path(options.target)
    require(not target.exists(), "target", options.target, "exists already")
    model = read_model(options.source, options.source_format)
    if options.memory_start is not None:
        model = model.with_lengths(memory_start=options.memory_start)
    if options.target_format == "txl":
        return write_run(model, options, target)
    weights, config = WRITERS[options.target_format](model)
    target.mkdir(parents=True)
    save_file({name: tensor.clone().contiguous() for name, tensor in weights.items()}, target / WEIGHTS[0])
    (target / CONFIG).write_text(json.dumps(config, indent=2) + "\n")
    return target


def read_model(source: str, source_format: str) -> TransformerXL:
    """The model in a file or folder of one of the formats."""
    if source_format == "txl":
        trained = load_trained(source, "source").model
        if not isinstance(trained, TransformerXL):
            raise OptionError("source", source, "is a recurrent model, which no other format can hold")
        return trained
    path = Path(source)
    folder = path if path.is_dir() else path.parent
    candidates = [folder / name for name in WEIGHTS] if path.is_dir() else [path]
    weights_path = next((candidate for candidate in candidates if candidate.is_file()), None)
    if weights_path is None:
        looked_for = f"in it none of {', '.join(WEIGHTS)}" if path.is_dir() else "no such file"
        raise OptionError("source", source, looked_for)
    weights = read_weights(weights_path)
    if not (folder / CONFIG).is_file():
        raise OptionError("source", source, f"has no {CONFIG} with its options beside it")
    try:
        config = json.loads((folder / CONFIG).read_text())
    except ValueError as error:
        raise OptionError("source", source, f"its {CONFIG} is no JSON ({error})") from error
    if not isinstance(config, dict):
        raise OptionError("source", source, f"its {CONFIG} is no dictionary of options")
    return READERS[source_format](weights, config)


def read_weights(path: Path) -> dict[str, Tensor]:
    """Tensors by name, from safetensors or from a torch file that holds nothing but tensors."""
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        contents = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # what the readers make of a file that is none has no common type
        raise OptionError("source", path, "holds no weights (or code, which is not run)") from error
    if not isinstance(contents, dict) or not all(isinstance(value, Tensor) for value in contents.values()):
        raise OptionError("source", path, "is not a dictionary of tensors (save the model's state_dict)")
    return contents


def write_run(model: TransformerXL, options: ConvertOptions, target: Path) -> Path:
    """A checkpoint as `txl train` leaves it, with the vocabulary of the chosen corpus and step 0."""
    corpus = load_corpus(options.data)
    if len(corpus.vocabulary) != model.config.vocab_size:
        raise UserError(
            f"the model has {model.config.vocab_size} tokens, {corpus.name} has {len(corpus.vocabulary)}: "
            "choose the corpus it was trained on with data=…"
        )
    target.parent.mkdir(parents=True, exist_ok=True)
    write_checkpoint(
        {
            "state_dict": {f"model.{name}": tensor for name, tensor in model.state_dict().items()},
            "global_step": 0,
            "txl_lightning": {
                "config": plain(run_config(model, options)),
                "vocabulary": corpus.vocabulary.state_dict(),
            },
        },
        target,
    )
    return target


def run_config(model: TransformerXL, options: ConvertOptions) -> Config:
    """The configuration of a run that would have made this model, everything else as in `options`."""
    ours = model.config
    sizes = {f.name: getattr(ours, f.name) for f in fields(TransformerXLModelConfig) if f.name != "name"}
    return replace(
        Config(**{f.name: getattr(options, f.name) for f in fields(Config)}),
        model=TransformerXLModelConfig(name="converted", **{**sizes, "cutoffs": list(ours.cutoffs)}),
        encoding=EncodingConfig(ours.encoding, ours.table_len),
        memory=MemoryConfig(ours.mem_len, ours.memory_start),
    )


def run(options: ConvertOptions, directory: Path) -> list[str]:
    """Run the command: see `convert`."""
    return [str(convert(options))]
