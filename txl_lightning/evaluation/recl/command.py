"""`txl recl`: a group of checkpoints at the same positions and contexts, and the RECL of each (appendix C)."""

from __future__ import annotations

import json
import time
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from omegaconf import OmegaConf
from tqdm import tqdm

from txl_lightning.config.lengths import extended_context
from txl_lightning.config.schemas import RecurrentModelConfig, TransformerXLModelConfig, check_logger, plain
from txl_lightning.data.corpora.corpus import SPLITS, Corpus, load_corpus
from txl_lightning.distributed.division import gathered, processes, rank_and_world_size
from txl_lightning.errors import OptionError, UserError, require
from txl_lightning.evaluation.recl.effective_context import Array, check_definition, relative_effective_context_lengths
from txl_lightning.evaluation.recl.loss_by_context import mean_and_error
from txl_lightning.evaluation.recl.loss_store import LossStore, array_checksum, file_checksum
from txl_lightning.evaluation.recl.options import ReclOptions
from txl_lightning.evaluation.recl.report import write_report
from txl_lightning.evaluation.scoring.device import chosen_device
from txl_lightning.evaluation.scoring.windows import WindowReader, context_losses, evenly_spaced, window_reader
from txl_lightning.runs.metrics import loss_metrics
from txl_lightning.runs.trained import TrainedModel, load_trained


@dataclass(frozen=True)
class Member:
    """One model of a group.

    Args:
        name: what tables and figures call it.
        path: its checkpoint.
        checksum: of the checkpoint's content.
        trained: what the checkpoint holds.
        reader: how the model reads windows.
        clamp_len: distances share a position beyond it; None for a recurrent model.
    """

    name: str
    path: str
    checksum: str
    trained: TrainedModel
    reader: WindowReader
    clamp_len: int | None

    @property
    def kind(self) -> str:
        """Size, encoding and recurrence in words."""
        config = self.trained.config
        if isinstance(config.model, RecurrentModelConfig):
            return config.model.name
        memory = f"memory {config.memory.mem_len}" if config.memory.mem_len else "no recurrence"
        return f"{config.model.name}, {config.encoding.name}, {memory}"


def recl(options: ReclOptions, directory: Path) -> list[str]:
    """Score what is not stored, write `recl.json`, the table and the figures, and return what to print.

    Under a launcher (torchrun) the positions are divided over the processes; the first writes everything,
    and the others return nothing.

    Raises:
        UserError: an option, a checkpoint, or the group is not usable.
    """
    contexts = check_options(options)
    if options.num_threads is not None:
        torch.set_num_threads(options.num_threads)
    with processes():
        started = time.perf_counter()
        members = load_group(options)
        corpus = common_corpus(members, options.data_path)
        tokens = corpus.splits[options.split]
        positions = evenly_spaced(len(tokens), options.n_positions, contexts[-1])
        losses: dict[str, Array] = {}
        scored: dict[str, int] = {}
        for member in members:
            losses[member.name], scored[member.name] = stored_losses(member, tokens, positions, contexts, options)
        if rank_and_world_size()[0] > 0:
            return []
    results = measure(options, members, losses, contexts)
    results["corpus"] = {"name": corpus.name, "sha256": corpus.checksum, "level": corpus.vocabulary.level}
    results["positions"] = {"number": len(positions), "first": int(positions[0]), "last": int(positions[-1])}
    for model in results["models"]:
        model["contexts_scored"] = scored[model["name"]]
    results["seconds"] = round(time.perf_counter() - started, 2)
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.yaml").write_text(OmegaConf.to_yaml(OmegaConf.create(plain(options))))
    (directory / "recl.json").write_text(json.dumps(results, indent=2, allow_nan=False) + "\n")
    return write_report(results, directory, options.logger, plain(options))


def check_options(options: ReclOptions) -> list[int]:
    """The grid of contexts, after refusing what needs no checkpoint to be refused."""
    require(len(options.checkpoints) >= 1, "checkpoints", "[]", "must name at least one checkpoint")
    twice = [path for path, times in Counter(options.checkpoints).items() if times > 1]
    require(not twice, "checkpoints", twice[:1], "is named twice")
    if options.names is not None:
        fits = len(options.names) == len(set(options.names)) == len(options.checkpoints) and all(options.names)
        require(fits, "names", options.names, f"must be {len(options.checkpoints)} different names, as checkpoints has")
    require(options.split in SPLITS, "split", options.split, f"must be one of {', '.join(SPLITS)}")
    for name in ("first_context", "step", "batch_tokens", "num_threads"):
        value = getattr(options, name)
        require(value is None or value >= 1, name, value, "must be an integer >= 1")
    allowed = "must be an integer >= 2 (a standard error is over positions)"
    require(options.n_positions >= 2, "n_positions", options.n_positions, allowed)
    shortest = options.first_context + options.step
    allowed = f"must be at least first_context + step = {shortest}"
    require(options.max_context >= shortest, "max_context", options.max_context, allowed)
    require(options.seed >= 0, "seed", options.seed, "must be an integer >= 0")
    chosen_device(options.accelerator)
    check_logger(options.logger, ("wandb", "none"))
    contexts = list(range(options.first_context, options.max_context + 1, options.step))
    check_definition(contexts, options.fractions, options.threshold, options.bootstrap)
    return contexts


def load_group(options: ReclOptions) -> list[Member]:
    """The checkpoints' models in evaluation mode, on the chosen device."""
    device = chosen_device(options.accelerator)
    members = []
    for path, name in zip(options.checkpoints, options.names or run_names(options.checkpoints), strict=True):
        trained = load_trained(path, option="checkpoints")
        config, clamp_len = trained.config, None
        if isinstance(config.model, TransformerXLModelConfig):
            choices = (options.clamp_len, config.evaluation.clamp_len, config.model.clamp_len)
            clamp_len = next(choice for choice in choices if choice is not None)
        trained.model.to(device)
        reader = window_reader(trained.model, config.data.segment_len + extended_context(config), clamp_len)
        members.append(Member(name, path, file_checksum(path), trained, reader, clamp_len))
    return members


def run_names(paths: list[str]) -> list[str]:
    """The shortest different names: `ours/checkpoints/best.ckpt` is `ours`, or `ours/best` beside `ours/last`."""
    files = [Path(path).resolve().with_suffix("") for path in paths]
    parts = [[part for part in file.parts[1:] if part != "checkpoints"] for file in files]
    for start in range(-2, -max(map(len, parts)) - 1, -1):
        for stop in (-1, None):
            names = ["/".join(of_path[start:stop]) for of_path in parts]
            if len(set(names)) == len(names) and all(names):
                return names
    return paths


def common_corpus(members: list[Member], data_path: str | None) -> Corpus:
    """The corpus that all models of a group are scored on.

    Raises:
        UserError: a corpus cannot be read, or the models have different ones or different vocabularies.
    """
    first: Corpus | None = None
    for member in members:
        data = member.trained.config.data
        if data_path is not None:
            data = replace(data, name="file", path=data_path)
        try:
            corpus = load_corpus(data)
        except OptionError as error:
            option = "data_path" if data_path is not None and error.option == "data.path" else error.option
            raise UserError(f"corpus of {member.path}: {OptionError(option, error.value, error.allowed)}") from error
        if corpus.vocabulary != member.trained.vocabulary:
            allowed = f"was trained on another vocabulary than that of {corpus.name}"
            raise OptionError("checkpoints", member.path, allowed)
        first = first or corpus
        if (corpus.checksum, corpus.vocabulary) != (first.checksum, first.vocabulary):
            allowed = f"was trained on another corpus ({corpus.name}) than {members[0].path} ({first.name})"
            raise OptionError("checkpoints", member.path, allowed)
    assert first is not None
    return first


def stored_losses(
    member: Member, tokens: np.ndarray, positions: NDArray[np.int64], contexts: list[int], options: ReclOptions
) -> tuple[Array, int]:
    """l(c, t) of one model, [C, P], from the store where it has them, and how many contexts were scored now.

    Every context is stored as soon as it is scored, so that a run that was interrupted goes on.
    """
    store = LossStore(Path(options.store).expanduser())
    key = {
        "checkpoint": member.checksum,
        "split": options.split,
        "tokens": array_checksum(tokens),
        "positions": array_checksum(positions),
        "clamp_len": member.clamp_len,
        "segment_len": member.reader.segment_len,
    }
    rank, _ = rank_and_world_size()
    # The first rank's look into the store decides for all: another may look after it has written.
    losses = gathered(store.read(key) if rank == 0 else {})[0]
    missing = sorted({member.reader.visible(context) for context in contexts} - set(losses))
    for context in tqdm(missing, desc=member.name, unit="context", disable=True if rank else None, leave=False):
        losses[context] = context_losses(member.reader, tokens, positions, context, options.batch_tokens)
        if rank == 0:
            store.write(key, losses)
    return np.stack([losses[member.reader.visible(context)] for context in contexts]), len(missing)


def measure(
    options: ReclOptions, members: list[Member], losses: dict[str, Array], contexts: list[int]
) -> dict[str, Any]:
    """What `recl.json` holds of definition and models."""
    limits = {member.name: member.reader.limit for member in members}
    lengths = relative_effective_context_lengths(
        losses, contexts, options.fractions, options.threshold, limits, options.bootstrap, options.seed
    )
    names = ("split", "first_context", "step", "fractions", "threshold", "bootstrap", "seed")
    models = []
    for member in members:
        nll, error = mean_and_error(losses[member.name])
        level = member.trained.vocabulary.level
        units = [loss_metrics(value, level) for value in nll.tolist()]
        unit = next(name for name in units[0] if name != "nll")
        values = [of_context[unit] for of_context in units]
        # d ppl = ppl · d nll; d bpc = d nll / ln 2
        scale = np.asarray(values) if unit == "ppl" else np.full(len(values), 1 / np.log(2))
        models.append(
            {
                "name": member.name,
                "checkpoint": str(member.path),
                "sha256": member.checksum,
                "step": member.trained.step,
                "kind": member.kind,
                "parameters": sum(p.numel() for p in member.trained.model.parameters()),
                "limit": member.reader.limit,
                "clamp_len": member.clamp_len,
                "nll": nll.tolist(),
                "nll_standard_error": error.tolist(),
                unit: values,
                f"{unit}_standard_error": (scale * error).tolist(),
                "recl": {str(float(r)): vars(of_fraction) for r, of_fraction in lengths[member.name].items()},
            }
        )
    return {"unit": unit, "contexts": contexts, **{n: getattr(options, n) for n in names}, "models": models}


def run(options: ReclOptions, directory: Path) -> list[str]:
    """Run the command: see `recl`."""
    return recl(options, directory)
