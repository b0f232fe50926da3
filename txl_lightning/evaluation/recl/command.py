"""`txl recl`: score a group of checkpoints at equal positions and contexts, and derive their RECL (appendix C)."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from txl_lightning.config.schemas import plain
from txl_lightning.distributed.ranks import all_gather, process_group, rank_and_world_size
from txl_lightning.errors import require
from txl_lightning.evaluation.recl.effective_context import Array, check_definition, relative_effective_context_lengths
from txl_lightning.evaluation.recl.group import Member, common_corpus, load_group
from txl_lightning.evaluation.recl.loss_by_context import mean_and_error
from txl_lightning.evaluation.recl.loss_store import LossStore, array_checksum
from txl_lightning.evaluation.recl.options import ReclOptions
from txl_lightning.evaluation.recl.report import write_report
from txl_lightning.evaluation.scoring.device import device_of, prepare_device
from txl_lightning.evaluation.scoring.option_checks import check_at_least_one, check_common_options
from txl_lightning.evaluation.scoring.windows import context_losses, evenly_spaced
from txl_lightning.files import write_json
from txl_lightning.runs.bfloat16 import autocast, chosen_precision
from txl_lightning.runs.metrics import loss_metrics


def run(options: ReclOptions, directory: Path) -> list[str]:
    """Score the losses that are not stored yet; write `recl.json`, the table and the figures.

    Under a launcher (torchrun) the positions are divided over the processes. Only the first process writes
    results and returns lines.

    Returns:
        Lines to print: the table and its notes.

    Raises:
        UserError: an option, a checkpoint, or the group is not usable.
    """
    contexts = _check_options(options)
    prepare_device(options.accelerator, options.num_threads)
    options = replace(options, precision=chosen_precision(options.precision, options.accelerator))
    with process_group():
        started = time.perf_counter()
        members = load_group(options)
        corpus = common_corpus(members, options.data_path)
        tokens = corpus.splits[options.split]
        positions = evenly_spaced(len(tokens), options.n_positions, contexts[-1])
        losses: dict[str, Array] = {}
        scored: dict[str, int] = {}
        for member in members:
            losses[member.name], scored[member.name] = _stored_losses(member, tokens, positions, contexts, options)
        if rank_and_world_size()[0] > 0:
            return []
    results = _measure(options, members, losses, contexts)
    results["corpus"] = {"name": corpus.name, "sha256": corpus.checksum, "level": corpus.vocabulary.level}
    results["positions"] = {"number": len(positions), "first": int(positions[0]), "last": int(positions[-1])}
    for model in results["models"]:
        model["contexts_scored"] = scored[model["name"]]
    results["seconds"] = round(time.perf_counter() - started, 2)
    write_json(directory / "recl.json", results, allow_nan=False)
    return write_report(results, directory, options.logger, plain(options))


def _check_options(options: ReclOptions) -> list[int]:
    """Check the options and return the grid of contexts."""
    require(len(options.checkpoints) >= 1, "checkpoints", "[]", "must name at least one checkpoint")
    twice = [path for path, times in Counter(options.checkpoints).items() if times > 1]
    require(not twice, "checkpoints", twice[:1], "is named twice")
    if options.names is not None:
        fits = len(options.names) == len(set(options.names)) == len(options.checkpoints) and all(options.names)
        require(fits, "names", options.names, f"must be {len(options.checkpoints)} different names, one per checkpoint")
    check_common_options(options)
    check_at_least_one(options, "first_context", "step", "batch_tokens")
    allowed = "must be an integer >= 2 (for a standard error)"
    require(options.n_positions >= 2, "n_positions", options.n_positions, allowed)
    shortest = options.first_context + options.step
    allowed = f"must be at least first_context + step = {shortest}"
    require(options.max_context >= shortest, "max_context", options.max_context, allowed)
    contexts = list(range(options.first_context, options.max_context + 1, options.step))
    check_definition(contexts, options.fractions, options.threshold, options.bootstrap)
    return contexts


def _stored_losses(
    member: Member, tokens: np.ndarray, positions: NDArray[np.int64], contexts: list[int], options: ReclOptions
) -> tuple[Array, int]:
    """Return l(c, t) of one model, [C, P], and the number of contexts scored now; the store has the others.

    Every context is stored as soon as it is scored, so an interrupted command resumes after the last one.
    """
    store = LossStore(Path(options.store).expanduser())
    key = {
        "checkpoint": member.checksum,
        "split": options.split,
        "tokens": array_checksum(tokens),
        "positions": array_checksum(positions),
        "clamp_len": member.clamp_len,
        "segment_len": member.reader.segment_len,
        "precision": options.precision,
    }
    rank, _ = rank_and_world_size()
    # Only the first rank reads the store: another rank could read it after the first has written to it.
    losses = all_gather(store.read(key) if rank == 0 else {})[0]
    missing = sorted({member.reader.visible(context) for context in contexts} - set(losses))
    for context in tqdm(missing, desc=member.name, unit="context", disable=True if rank else None, leave=False):
        with autocast(options.precision, device_of(member.reader.model)):
            losses[context] = context_losses(member.reader, tokens, positions, context, options.batch_tokens)
        if rank == 0:
            store.write(key, losses)
    return np.stack([losses[member.reader.visible(context)] for context in contexts]), len(missing)


def _measure(
    options: ReclOptions, members: list[Member], losses: dict[str, Array], contexts: list[int]
) -> dict[str, Any]:
    """Return the entries of `recl.json` for the definition and the models."""
    limits = {member.name: member.reader.limit for member in members}
    lengths = relative_effective_context_lengths(
        losses, contexts, options.fractions, options.threshold, limits, options.bootstrap, options.seed
    )
    names = ("split", "first_context", "step", "fractions", "threshold", "bootstrap", "seed", "precision")
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
