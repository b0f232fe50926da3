"""`txl speed`: Table 9 on this machine, in rounds in which every scheme at every attention length has a turn."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch
from omegaconf import OmegaConf

from txl_lightning.config.schemas import check_logger, plain
from txl_lightning.data.corpora.published import CUTOFFS, PUBLISHED
from txl_lightning.errors import OptionError, require
from txl_lightning.evaluation.scoring.device import chosen_device
from txl_lightning.evaluation.speed.options import SpeedOptions
from txl_lightning.evaluation.speed.paper_table_9 import TABLE_9
from txl_lightning.evaluation.speed.report import write_report
from txl_lightning.evaluation.speed.schemes import RATIOS, Reading, random_text, readings, vanilla_of
from txl_lightning.model.config import TransformerXLConfig
from txl_lightning.model.transformer_xl import TransformerXL
from txl_lightning.reporting.machine import processor
from txl_lightning.runs.trained import load_trained

LEVELS = ("char", "word")
VOCABULARIES = {"char": "enwik8, newlines dropped", "word": "wikitext-103"}  # as the paper has them
OF_THE_CHECKPOINT = ("levels", "n_layer", "d_model", "n_head", "d_inner")
CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}
LEAST_ROUNDS = 3
TEXT_LEN = 1 << 14

Say = Callable[[str], None]
Timed = dict[tuple[str, int], dict[str, Reading]]  # by level and attention length, and by scheme


def print_now(line: str) -> None:
    """Progress is for whoever waits, also behind a pipe."""
    print(line, flush=True)


@dataclass(frozen=True)
class Subject:
    """What is timed at one level: a model and the vanilla one beside it."""

    level: str
    model: TransformerXL
    vanilla: TransformerXL

    def describe(self) -> dict[str, Any]:
        """Sizes, for the report."""
        config = self.model.config
        names = ("vocab_size", "n_layer", "d_model", "n_head", "d_head", "d_inner", "encoding")
        sizes = {name: getattr(config, name) for name in names}
        parameters = sum(p.numel() for p in self.model.parameters())
        return {
            **sizes,
            "cutoffs": list(config.cutoffs),
            "div_val": config.div_val,
            "parameters": parameters,
            "vanilla_n_layer": self.vanilla.config.n_layer,
            "vanilla_encoding": self.vanilla.config.encoding,
        }


def speed(options: SpeedOptions, directory: Path, say: Say = print_now) -> list[str]:
    """Time all schemes, write `speed.json`, `speed.md` and the figure, and return what to print.

    Args:
        options: what is timed, and for how long.
        directory: where the files go.
        say: takes a line of progress.

    Raises:
        UserError: an option or the checkpoint is not usable, or the budget is too small for three rounds.
    """
    check_options(options)
    if options.num_threads is not None:
        torch.set_num_threads(options.num_threads)
    started = time.perf_counter()
    torch.manual_seed(options.seed)
    subjects = subjects_of_checkpoint(options) if options.checkpoint else random_subjects(options)
    described = {subject.level: subject.describe() for subject in subjects}
    deadline = started + options.budget_seconds
    timed = warmed_up(subjects, options, deadline, say)
    seconds = run_rounds(timed, options.rounds, deadline, say)
    gpu = options.accelerator == "gpu"
    results: dict[str, Any] = {
        "checkpoint": options.checkpoint,
        "models": described,
        "segment_len": options.segment_len,
        "batch_size": 1,
        "clock": options.clock,
        "rounds": len(next(iter(seconds.values()))["vanilla"]),
        "results": [summary(*key, timed[key], seconds[key]) for key in timed],
        "machine": {
            "processor": processor(),
            "accelerator": torch.cuda.get_device_name() if gpu else None,
            "threads": torch.get_num_threads(),
            "torch": torch.__version__,
        },
        "seconds": round(time.perf_counter() - started, 2),
    }
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.yaml").write_text(OmegaConf.to_yaml(OmegaConf.create(plain(options))))
    (directory / "speed.json").write_text(json.dumps(results, indent=2, allow_nan=False) + "\n")
    return write_report(results, directory, options.logger, plain(options))


def check_options(options: SpeedOptions) -> None:
    """Refuse what needs no model to be refused."""
    for name in ("n_layer", "d_model", "n_head", "d_inner", "vanilla_n_layer", "segment_len", "rounds", "num_threads"):
        value = getattr(options, name)
        require(value is None or value >= 1, name, value, "must be an integer >= 1")
    levels = list(options.levels)
    known = bool(levels) and len(set(levels)) == len(levels) and set(levels) <= set(LEVELS)
    require(known, "levels", levels, f"must be of {', '.join(LEVELS)}, each at most once")
    lengths = list(options.attention_lengths)
    allowed = "must be different integers >= 1"
    require(bool(lengths) and len(set(lengths)) == len(lengths), "attention_lengths", lengths, allowed)
    require(min(lengths) >= 1, "attention_lengths", lengths, allowed)
    require(options.budget_seconds > 0, "budget_seconds", options.budget_seconds, "must be a number > 0")
    require(options.seed >= 0, "seed", options.seed, "must be an integer >= 0")
    divides = options.d_model % options.n_head == 0
    require(divides, "n_head", options.n_head, f"must divide d_model, which is {options.d_model}")
    chosen_device(options.accelerator)
    require(options.clock in CLOCKS, "clock", options.clock, f"must be one of {', '.join(CLOCKS)}")
    alone = options.clock == "wall" or (options.num_threads == 1 and options.accelerator == "cpu")
    require(alone, "clock", options.clock, "needs num_threads=1 (threads that wait for each other are busy too)")
    check_logger(options.logger, ("wandb", "none"))
    if options.checkpoint is not None:
        default = SpeedOptions()
        for name in OF_THE_CHECKPOINT:
            value = getattr(options, name)
            require(value == getattr(default, name), name, value, "must not be given: it is the checkpoint's")


def random_subjects(options: SpeedOptions) -> list[Subject]:
    """A model of the chosen sizes for every level, with the paper's vocabularies."""
    subjects = []
    for level in options.levels:
        vocab_size = PUBLISHED[VOCABULARIES[level]].vocabulary
        assert vocab_size is not None
        config = TransformerXLConfig(
            vocab_size=vocab_size,
            n_layer=options.n_layer,
            d_model=options.d_model,
            n_head=options.n_head,
            d_head=options.d_model // options.n_head,
            d_inner=options.d_inner,
            cutoffs=CUTOFFS.get(VOCABULARIES[level], ()),
        )
        model = TransformerXL(config).eval()
        subjects.append(Subject(level, model, vanilla_of(model, options.vanilla_n_layer)))
    return subjects


def subjects_of_checkpoint(options: SpeedOptions) -> list[Subject]:
    """The model of a checkpoint at its own level.

    Raises:
        OptionError: it cannot be read, or is no Transformer-XL with relative positions.
    """
    trained = load_trained(options.checkpoint or "")
    model = trained.model
    if not isinstance(model, TransformerXL) or model.config.kind.absolute:
        kind = model.config.encoding if isinstance(model, TransformerXL) else trained.config.model.name
        allowed = f"is {kind}; must be a Transformer-XL with distances (relative, shaw), which can reuse states"
        raise OptionError("checkpoint", options.checkpoint, allowed)
    level = "word" if trained.vocabulary.level == "word" else "char"
    return [Subject(level, model, vanilla_of(model, options.vanilla_n_layer))]


def warmed_up(subjects: list[Subject], options: SpeedOptions, deadline: float, say: Say) -> Timed:
    """All schemes of all levels and lengths, each after a first turn that does not count.

    Raises:
        OptionError: as soon as it is clear that `budget_seconds` does not last for the fewest rounds.
    """
    device = chosen_device(options.accelerator)
    fewest = min(LEAST_ROUNDS, options.rounds)
    timed: Timed = {}
    round_seconds = 0.0
    for subject in subjects:
        subject.model.to(device)
        subject.vanilla.to(device)
        vocab_size = subject.model.config.vocab_size
        text_1n = random_text(vocab_size, TEXT_LEN, subject.level == "word", options.seed).to(device)
        for length in sorted(options.attention_lengths):
            schemes = readings(subject.model, subject.vanilla, length, options.segment_len, text_1n)
            timed[subject.level, length] = schemes
            for reading in schemes.values():
                reading.clock = CLOCKS[options.clock]
            turns_seconds = sum(reading.warm_up() for reading in schemes.values())
            round_seconds += turns_seconds
            say(f"{subject.level}, attention length {length:,}: a turn of all takes {turns_seconds:.1f} s")
            left = deadline - time.perf_counter()
            needed = options.budget_seconds - left + fewest * round_seconds
            allowed = f"is too little for {fewest} rounds, which end after {needed:.0f} s or more on this machine"
            require(fewest * round_seconds <= left, "budget_seconds", f"{options.budget_seconds:g}", allowed)
    say(f"{options.rounds} rounds of about {round_seconds:.0f} s, or as many as fit into {left:.0f} s")
    return timed


def run_rounds(timed: Timed, rounds: int, deadline: float, say: Say) -> dict[tuple[str, int], dict[str, list[float]]]:
    """Seconds a token of every scheme in every round, as long as another round fits; who begins alternates."""
    seconds: dict[tuple[str, int], dict[str, list[float]]] = {key: {name: [] for name in timed[key]} for key in timed}
    turns = [(key, name) for key, schemes in timed.items() for name in schemes]
    longest = 0.0
    for i in range(rounds):
        before = time.perf_counter()
        if i >= LEAST_ROUNDS and before + longest > deadline:
            say(f"budget_seconds: another round would not fit; {i} of {rounds} rounds measured")
            break
        for key, name in turns:
            seconds[key][name].append(timed[key][name].turn())
        turns.reverse()
        longest = max(longest, time.perf_counter() - before)
        say(f"round {i + 1} of {rounds}: {time.perf_counter() - before:.1f} s")
    return seconds


def summary(level: str, length: int, schemes: dict[str, Reading], seconds: dict[str, list[float]]) -> dict[str, Any]:
    """One line of Table 9: times, and ratios within the rounds."""
    per_token = {
        name: {"tokens": len(values) * schemes[name].tokens, **spread(values), "rounds": values}
        for name, values in seconds.items()
    }
    ratios = {
        f"{slow}/{fast}": spread([a / b for a, b in zip(seconds[slow], seconds[fast], strict=True)])
        for slow, fast in RATIOS
    }
    return {
        "level": level,
        "attention_len": length,
        "seconds_per_token": per_token,
        "ratios": ratios,
        "paper": TABLE_9.get(length) if level == "char" else None,
    }


def spread(values: list[float]) -> dict[str, float]:
    """Median, lowest and highest."""
    return {"median": median(values), "min": min(values), "max": max(values)}


def run(options: SpeedOptions, directory: Path) -> list[str]:
    """Run the command: see `speed`."""
    return speed(options, directory)
