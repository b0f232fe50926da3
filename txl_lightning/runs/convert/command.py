"""`txl convert`: convert checkpoints between the paper's code, Hugging Face and `txl train`.

    original      weights of `MemTransformerLM` (.safetensors, .bin or .pt) with `config.json`, its options, beside them
    huggingface   a folder as `save_pretrained` writes it: weights and `config.json`
    txl           a checkpoint of `txl train`, for `txl evaluate` and `txl train initial_weights=`

Loading runs no code from a file: it reads tensors and plain containers only.
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
from txl_lightning.files import write_json
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


def run(options: ConvertOptions, directory: Path) -> list[str]:
    """Convert `options.source` into `options.target`; nothing is written to the run directory.

    Returns:
        The path of the target, to print.

    Raises:
        UserError: a file is missing or not a checkpoint, or the target's format cannot hold the model.
    """
    for name in ("source_format", "target_format"):
        value = getattr(options, name)
        require(value in FORMATS, name, value, f"must be one of {', '.join(FORMATS)}")
    target = Path(options.target)
    require(not target.exists(), "target", options.target, "must not exist yet")
    model = _read_model(options.source, options.source_format)
    if options.memory_start is not None:
        model = model.with_lengths(memory_start=options.memory_start)
    if options.target_format == "txl":
        _write_run(model, options, target)
        return [str(target)]
    weights, config = WRITERS[options.target_format](model)
    target.mkdir(parents=True)
    save_file({name: tensor.clone().contiguous() for name, tensor in weights.items()}, target / WEIGHTS[0])
    write_json(target / CONFIG, config)
    return [str(target)]


def _read_model(source: str, source_format: str) -> TransformerXL:
    if source_format == "txl":
        trained = load_trained(source, "source").model
        if not isinstance(trained, TransformerXL):
            raise OptionError("source", source, "is a recurrent model; the other formats hold Transformer-XLs only")
        return trained
    path = Path(source)
    folder = path if path.is_dir() else path.parent
    candidates = [folder / name for name in WEIGHTS] if path.is_dir() else [path]
    weights_path = next((candidate for candidate in candidates if candidate.is_file()), None)
    if weights_path is None:
        problem = f"has none of {', '.join(WEIGHTS)}" if path.is_dir() else "no such file"
        raise OptionError("source", source, problem)
    weights = _read_weights(weights_path)
    if not (folder / CONFIG).is_file():
        raise OptionError("source", source, f"must have {CONFIG} with its options in the same folder")
    try:
        config = json.loads((folder / CONFIG).read_text())
    except ValueError as error:
        raise OptionError("source", source, f"its {CONFIG} must be JSON ({error})") from error
    if not isinstance(config, dict):
        raise OptionError("source", source, f"its {CONFIG} must be a dictionary of options")
    return READERS[source_format](weights, config)


def _read_weights(path: Path) -> dict[str, Tensor]:
    """Read tensors by name, from safetensors or from a torch file that holds only tensors."""
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        contents = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # the readers have no common error for other files
        raise OptionError("source", path, "must hold tensors only; code in a file is never run") from error
    if not isinstance(contents, dict) or not all(isinstance(value, Tensor) for value in contents.values()):
        raise OptionError("source", path, "is not a dictionary of tensors; save the state_dict of the model")
    return contents


def _write_run(model: TransformerXL, options: ConvertOptions, target: Path) -> None:
    """Write a checkpoint like those of `txl train`, at step 0, with the vocabulary of the chosen corpus."""
    corpus = load_corpus(options.data)
    if len(corpus.vocabulary) != model.config.vocab_size:
        raise UserError(
            f"the vocabulary of the model has {model.config.vocab_size} tokens, that of data={corpus.name} has "
            f"{len(corpus.vocabulary)}: choose the corpus the model was trained on with data=…"
        )
    target.parent.mkdir(parents=True, exist_ok=True)
    write_checkpoint(
        {
            "state_dict": {f"model.{name}": tensor for name, tensor in model.state_dict().items()},
            "global_step": 0,
            "txl_lightning": {
                "config": plain(_run_config(model, options)),
                "vocabulary": corpus.vocabulary.state_dict(),
            },
        },
        target,
    )


def _run_config(model: TransformerXL, options: ConvertOptions) -> Config:
    """Return the configuration of a run with this model; everything else comes from `options`."""
    architecture = model.config
    sizes = {f.name: getattr(architecture, f.name) for f in fields(TransformerXLModelConfig) if f.name != "name"}
    return replace(
        Config(**{f.name: getattr(options, f.name) for f in fields(Config)}),
        model=TransformerXLModelConfig(name="converted", **{**sizes, "cutoffs": list(architecture.cutoffs)}),
        encoding=EncodingConfig(architecture.encoding, architecture.table_len),
        memory=MemoryConfig(architecture.mem_len, architecture.memory_start, architecture.memory_reset),
    )
