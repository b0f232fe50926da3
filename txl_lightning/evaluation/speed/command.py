"""`txl speed`: Table 9 on this machine, in rounds that time every scheme at every attention length."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch

from txl_lightning.config.architecture import TransformerXLConfig
from txl_lightning.config.schemas import plain
from txl_lightning.data.benchmarks import CUTOFFS, PUBLISHED
from txl_lightning.errors import OptionError, require
from txl_lightning.evaluation.scoring.option_checks import check_at_least_one, check_common_options, chosen_device
from txl_lightning.evaluation.speed.options import TABLE_9, SpeedOptions
from txl_lightning.evaluation.speed.report import write_report
from txl_lightning.evaluation.speed.schemes import RATIOS, TimedScheme, make_schemes, random_text, vanilla_of
from txl_lightning.files import write_json
from txl_lightning.model.inference.cached import can_cache
from txl_lightning.model.transformer_xl import TransformerXL
from txl_lightning.reporting.machine import processor
from txl_lightning.runs.metrics import loss_unit
from txl_lightning.runs.threads import set_threads
from txl_lightning.runs.trained import load_trained

LEVELS = ("char", "word")
VOCABULARIES = {"char": "enwik8, newlines dropped", "word": "wikitext-103"}  # of the paper
SET_BY_CHECKPOINT = ("levels", "n_layer", "d_model", "n_head", "d_inner")
CLOCKS: dict[str, Callable[[], float]] = {"wall": time.perf_counter, "cpu": time.process_time}
MIN_ROUNDS = 3
TEXT_LEN = 1 << 14

Show = Callable[[str], None]
Schemes = dict[tuple[str, int], dict[str, TimedScheme]]  # by level and attention length, then by name


def print_now(line: str) -> None:
    """Print a line of progress at once, into a pipe too."""
    print(line, flush=True)


@dataclass(frozen=True)
class Subject:
    """Model to time at one level, and its vanilla counterpart."""

    level: str
    model: TransformerXL
    vanilla: TransformerXL

    def describe(self) -> dict[str, Any]:
        """Return the sizes of both models, for the report."""
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


def run(options: SpeedOptions, directory: Path, show: Show = print_now) -> list[str]:
    """Time all schemes; write `speed.json`, `speed.md` and the figure.

    Args:
        options: options of the command.
        directory: folder for the files.
        show: function that prints a line of progress.

    Returns:
        Lines to print: the table and its notes.

    Raises:
        UserError: an option or the checkpoint is not usable, or the budget is too small for three rounds.
    """
    _check_options(options)
    device = chosen_device(options.accelerator)
    set_threads(options.num_threads)
    started = time.perf_counter()
    torch.manual_seed(options.seed)
    subjects = _checkpoint_subjects(options) if options.checkpoint else _random_subjects(options)
    described = {subject.level: subject.describe() for subject in subjects}
    deadline = started + options.budget_seconds
    schemes = _warmed_up_schemes(subjects, options, device, deadline, show)
    seconds = run_rounds(schemes, options.rounds, deadline, show)
    results: dict[str, Any] = {
        "checkpoint": options.checkpoint,
        "models": described,
        "segment_len": options.segment_len,
        "batch_size": 1,
        "clock": options.clock,
        "rounds": len(next(iter(seconds.values()))["vanilla"]),
        "results": [_summary(*key, schemes[key], seconds[key]) for key in schemes],
        "machine": {
            "processor": processor(),
            "accelerator": torch.cuda.get_device_name() if device.type == "cuda" else None,
            "threads": torch.get_num_threads(),
            "torch": torch.__version__,
        },
        "seconds": round(time.perf_counter() - started, 2),
    }
    write_json(directory / "speed.json", results, allow_nan=False)
    return write_report(results, directory, options.logger, plain(options))


def _check_options(options: SpeedOptions) -> None:
    check_common_options(options)
    check_at_least_one(options, "n_layer", "d_model", "n_head", "d_inner", "vanilla_n_layer", "segment_len", "rounds")
    levels = list(options.levels)
    known = bool(levels) and len(set(levels)) == len(levels) and set(levels) <= set(LEVELS)
    require(known, "levels", levels, f"must be of {', '.join(LEVELS)}, each at most once")
    lengths = list(options.attention_lengths)
    allowed = "must be different integers >= 1"
    require(bool(lengths) and len(set(lengths)) == len(lengths), "attention_lengths", lengths, allowed)
    require(min(lengths) >= 1, "attention_lengths", lengths, allowed)
    require(options.budget_seconds > 0, "budget_seconds", options.budget_seconds, "must be a number > 0")
    divides = options.d_model % options.n_head == 0
    require(divides, "n_head", options.n_head, f"must divide d_model, which is {options.d_model}")
    require(options.clock in CLOCKS, "clock", options.clock, f"must be one of {', '.join(CLOCKS)}")
    alone = options.clock == "wall" or (options.num_threads == 1 and options.accelerator == "cpu")
    allowed = "needs num_threads=1 and accelerator=cpu (threads use CPU time even while they wait for each other)"
    require(alone, "clock", options.clock, allowed)
    if options.checkpoint is not None:
        default = SpeedOptions()
        for name in SET_BY_CHECKPOINT:
            value = getattr(options, name)
            require(value == getattr(default, name), name, value, "must not be given with a checkpoint, which sets it")


def _random_subjects(options: SpeedOptions) -> list[Subject]:
    """Return a model with random weights for every level, with the paper's vocabularies."""
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


def _checkpoint_subjects(options: SpeedOptions) -> list[Subject]:
    """Return the model of the checkpoint, at its own level.

    Raises:
        OptionError: the checkpoint cannot be read, or its model cannot reuse states.
    """
    trained = load_trained(options.checkpoint or "")
    model = trained.model
    if not isinstance(model, TransformerXL) or model.config.kind.absolute:
        kind = model.config.encoding if isinstance(model, TransformerXL) else trained.config.model.name
        allowed = f"is {kind}; must be a Transformer-XL whose encoding is of distances, which can reuse states"
        raise OptionError("checkpoint", options.checkpoint, allowed)
    compressed = f"compresses its memory ({model.config.compression}); Table 9 is of keys and values that can be cached"
    require(can_cache(model), "checkpoint", options.checkpoint, compressed)
    level = "word" if loss_unit(trained.vocabulary.level) == "ppl" else "char"
    return [Subject(level, model, vanilla_of(model, options.vanilla_n_layer))]


def _warmed_up_schemes(
    subjects: list[Subject], options: SpeedOptions, device: torch.device, deadline: float, show: Show
) -> Schemes:
    """Make the schemes of all levels and lengths, and give each an unrecorded turn.

    Raises:
        OptionError: `budget_seconds` is too little for the minimum of rounds.
    """
    fewest = min(MIN_ROUNDS, options.rounds)
    schemes: Schemes = {}
    round_seconds = 0.0
    for subject in subjects:
        subject.model.to(device)
        subject.vanilla.to(device)
        vocab_size = subject.model.config.vocab_size
        text_1n = random_text(vocab_size, TEXT_LEN, subject.level == "word", options.seed).to(device)
        for length in sorted(options.attention_lengths):
            named = make_schemes(subject.model, subject.vanilla, length, options.segment_len, text_1n)
            schemes[subject.level, length] = named
            for scheme in named.values():
                scheme.clock = CLOCKS[options.clock]
            turns_seconds = sum(scheme.warm_up() for scheme in named.values())
            round_seconds += turns_seconds
            show(f"{subject.level}, attention length {length:,}: {turns_seconds:.1f} s per round")
            left = deadline - time.perf_counter()
            needed = options.budget_seconds - left + fewest * round_seconds
            allowed = f"is too little for {fewest} rounds, which need {needed:.0f} s or more on this machine"
            require(fewest * round_seconds <= left, "budget_seconds", f"{options.budget_seconds:g}", allowed)
    show(f"{options.rounds} rounds of about {round_seconds:.0f} s, or as many as fit into {left:.0f} s")
    return schemes


def run_rounds(
    schemes: Schemes, rounds: int, deadline: float, show: Show
) -> dict[tuple[str, int], dict[str, list[float]]]:
    """Return seconds per token of every scheme in every round; the order of schemes reverses with every round.

    Stops, after at least 3 rounds, when another round would end after the deadline.
    """
    seconds: dict[tuple[str, int], dict[str, list[float]]] = {key: {n: [] for n in schemes[key]} for key in schemes}
    turns = [(key, name) for key, named in schemes.items() for name in named]
    longest = 0.0
    for i in range(rounds):
        before = time.perf_counter()
        if i >= MIN_ROUNDS and before + longest > deadline:
            show(f"budget_seconds: another round would not fit; {i} of {rounds} rounds measured")
            break
        for key, name in turns:
            seconds[key][name].append(schemes[key][name].turn())
        turns.reverse()
        taken = time.perf_counter() - before
        longest = max(longest, taken)
        show(f"round {i + 1} of {rounds}: {taken:.1f} s; about {(rounds - i - 1) * taken:.0f} s left")
    return seconds


def _summary(
    level: str, length: int, schemes: dict[str, TimedScheme], seconds: dict[str, list[float]]
) -> dict[str, Any]:
    """Return one line of Table 9: times, and ratios within the rounds."""
    per_token = {
        name: {"tokens": len(values) * schemes[name].tokens, **_spread(values), "rounds": values}
        for name, values in seconds.items()
    }
    ratios = {
        f"{slow}/{fast}": _spread([a / b for a, b in zip(seconds[slow], seconds[fast], strict=True)])
        for slow, fast in RATIOS
    }
    return {
        "level": level,
        "attention_len": length,
        "seconds_per_token": per_token,
        "ratios": ratios,
        "paper": TABLE_9.get(length) if level == "char" else None,
    }


def _spread(values: list[float]) -> dict[str, float]:
    return {"median": median(values), "min": min(values), "max": max(values)}
