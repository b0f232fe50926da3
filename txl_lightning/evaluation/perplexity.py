"""`txl evaluate`: score a checkpoint on its corpus, the state carried or in windows; sweep its attention (Table 6)."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from txl_lightning.config.lengths import Lengths, training_lengths
from txl_lightning.config.schemas import check_values
from txl_lightning.data.corpus import WHOLE, Corpus
from txl_lightning.errors import require
from txl_lightning.evaluation.commands import Table, log_results, open_checkpoint, options_as_typed, write_markdown
from txl_lightning.evaluation.dynamic_evaluation import dynamic_evaluation
from txl_lightning.evaluation.options import OWN_SPLITS, DynamicOptions, EvaluateOptions
from txl_lightning.evaluation.protocols import (
    OF_CARRIED,
    OF_WINDOWS,
    Carried,
    SplitScores,
    Windows,
    protocol_of,
    split_line,
)
from txl_lightning.evaluation.units import Fresh, context_of, units_of
from txl_lightning.files import write_json
from txl_lightning.reporting.canvas import line_figure
from txl_lightning.runs.metrics import loss_unit, unit_name
from txl_lightning.runs.trained import checkpoint_corpus, is_other_text

DIGITS = {"ppl": 2, "bpc": 3, "bpb": 3}  # printed


@options_as_typed()
def run(options: EvaluateOptions, directory: Path) -> list[str]:
    """Score the splits and write `evaluation.json`; for a sweep also its table and figure.

    The file says what was scored how, and has an entry for every split with `nll` (nats per token), `ppl` or `bpc`,
    `bpt` (bits per token) for ids, `bpb` where the bytes are known, `standard_error` of these with `over` (name of a
    unit) and `units` (how many), `tokens` and `bytes` that are scored, `left_out` (tokens that are not, by reason) and
    `seconds`. By option it also has

        losses      losses=true: file with nll and positions of the scored tokens, in text order
        units       per: file of the table
        sweep       attention_lengths: length_option, limit, unit, tolerance; init, best and lengths, each with
                    attention_length, the values above and evaluation; attention_length: the shortest within tolerance
                    of the best; null for a model without attention lengths
        selected    select_on: chosen_on, attention_length, init, best; below_init: their difference, by token
        dynamic     dynamic.lr: the values above; below_static: the difference, by token

    Returns:
        Lines to print: one for each split, and the table of a sweep.

    Raises:
        UserError: an option, the checkpoint or the corpus is not usable.
    """
    _check_options(options)
    trained, chosen_on = open_checkpoint(options), options.select_on
    if options.per is not None:
        trained = replace(trained, vocabulary=replace(trained.vocabulary, lenient=True))
    whole = not options.splits and chosen_on is None and is_other_text(options.data_path, [trained])
    splits = [WHOLE] if whole else options.splits or OWN_SPLITS
    corpus = checkpoint_corpus(trained, options.checkpoint, options.data_path, whole=whole)
    corpus = read = corpus if chosen_on is None else first_tokens(corpus, chosen_on, options.sweep_tokens)
    units = {split: units_of(trained, corpus, split, options) for split in splits if options.per}
    shown: Any = protocol_of(trained, options, whole)
    sweeps, learning = options.attention_lengths is not None or chosen_on is not None, None
    plan = planned(shown, options) if sweeps else []
    if chosen_on is not None:
        shown, best = plan[0].protocol, plan[0]
    if options.unit_memory == "fresh":
        shown = Fresh(shown, units, str(options.per), context_of(trained.vocabulary, options.unit_context))
        read = shown.corpus(corpus)
    if options.dynamic.lr is not None:
        own = corpus if options.data_path is None else checkpoint_corpus(trained, options.checkpoint)
        learning = dynamic_evaluation(shown, own, options.dynamic)

    scored: dict[str, dict[str, Any]] = {}
    files, names = directory if options.losses else None, dict[str, str]()
    for split in sorted(splits, key=lambda split: split != chosen_on):
        scores, names[split] = SplitScores(read, split, options.block_len), corpus.name + corpus.unknown_share(split)
        summed = isinstance(shown, Carried) and not (files or units or learning or plan)
        result = scored[split] = scores.running(shown) if summed else scores.values(scores.losses(shown))
        if plan and chosen_on in (None, split):
            result["sweep"], best = swept(plan, scores)
        if chosen_on is not None:
            result["selected"] = {"chosen_on": chosen_on, **selected(plan[0], best, scores, files)}
        else:
            result |= scores.written(shown, "", files)
        if split in units:
            result["units"] = f"{options.per}s_{split}.{options.table}"
            units[split].write(scores.losses(shown), directory / result["units"])
        if learning is not None:
            result["dynamic"] = learning.scores(shown, scores, files)

    settings = shown.settings()
    results = {"checkpoint": str(options.checkpoint), "step": trained.step, "corpus": corpus.facts()}
    results |= {"protocol": options.protocol, "evaluation": settings}
    results["streams_start"] = Lengths(0, settings.get("mem_len")).streams_start(trained.config.memory.start)
    results |= {"dynamic": None if learning is None else vars(options.dynamic), **scored}
    write_json(directory / "evaluation.json", results)
    lines = [split_line(split, result, names[split], settings) for split, result in scored.items()]
    lines += [f"{split}: {len(units[split].texts):,} {options.per}s in {scored[split]['units']}" for split in units]
    lines += learning.lines(scored, corpus.name) if learning is not None else []
    lines += write_sweeps(results, splits, directory) if len(plan) > 1 else []
    log_results("evaluate", results, options, directory)
    return lines


def _check_options(options: EvaluateOptions) -> None:
    check_values(options)
    carried, fresh, per = options.protocol == "carried", options.unit_memory == "fresh", options.per
    only: list[tuple[tuple[str, ...], bool, str]] = [  # options that have an effect only where this holds
        (OF_WINDOWS, not carried, "protocol=window"),
        ((*OF_CARRIED, "unit_memory"), carried, "protocol=carried"),
        (("sweep_tokens",), options.select_on is not None, "select_on=valid"),
        (("unit_memory",), per in ("line", "document"), "per=line or document"),
        (("unit_memory",), options.select_on is None, "select_on=null"),
        (("unit_context",), fresh, "unit_memory=fresh"),
        (("table",), per is not None, "per=line, document or token"),
    ]
    for names, holds, words in only:
        for name in names:
            value = getattr(options, name)
            require(holds or value == getattr(EvaluateOptions, name), name, value, f"is for {words}")
    splits, lengths = options.splits or OWN_SPLITS, options.attention_lengths
    allowed = f"must be null, or valid or train and among {splits=}"
    require(options.select_on in (None, *({*splits} - {"test"})), "select_on", options.select_on, allowed)
    require(per is None or lengths is None, "attention_lengths", lengths, "must be null with per")
    learns, allowed = options.dynamic != DynamicOptions(), "must be given with other options of dynamic"
    require(not learns or options.dynamic.lr is not None, "dynamic.lr", None, allowed)
    for name in ("protocol", "attention_lengths", "select_on", "per") if learns else ():
        fits, value = getattr(EvaluateOptions, name, None), getattr(options, name)
        require(value == fits, name, value, f"must be {fits or 'null'} for dynamic evaluation")


def first_tokens(corpus: Corpus, split: str, n: int | None) -> Corpus:
    """Return the corpus with only the first n tokens of a split, or whole sentences of at most n tokens in all."""
    tokens, documents = corpus.splits[split], corpus.documents
    if n is None or n >= len(tokens):
        return corpus
    if corpus.sentences:
        starts = np.asarray(documents[split])
        kept = max(1, int(np.searchsorted(starts, n, side="right")) - 1)
        n, documents = int(starts[kept]), {**documents, split: starts[:kept]}
    return replace(corpus, splits={**corpus.splits, split: tokens[:n]}, documents=documents)


class AtLength(NamedTuple):
    """Protocol at an attention length, which is None for a model without one."""

    length: int | None
    protocol: Carried | Windows

    def row(self, scores: SplitScores) -> dict[str, Any]:
        """Return the values of a split at this length."""
        values = scores.values(scores.losses(self.protocol))
        return {"attention_length": self.length, **values, "evaluation": self.protocol.settings()}

    def below(self, other: AtLength, scores: SplitScores) -> dict[str, Any] | None:
        """Return the difference of another length's losses and those at this one, by token."""
        return scores.difference(scores.losses(other.protocol), scores.losses(self.protocol))


def planned(protocol: Carried | Windows, options: EvaluateOptions) -> list[AtLength]:
    """Return the protocol at the lengths of training, and at `attention_lengths`, ascending, as far as the model sees.

    A model without attention lengths has the first alone, with `select_on`.

    Raises:
        OptionError: the model has no attention, or a length is not given or not allowed.
    """
    lengths, at_init, limit = options.attention_lengths, protocol.at_training_lengths(), protocol.limit or math.inf
    if options.select_on is not None and protocol.fixed:
        return [AtLength(None, at_init)]
    require(protocol.fixed is None, "attention_lengths", lengths, str(protocol.fixed))
    require(lengths is not None, "attention_lengths", lengths, "must be given with select_on: lengths to choose from")
    trained = training_lengths(protocol.trained.config).attention_length
    own, *others = (int(min(length, limit)) for length in (trained, *(lengths or ())))
    plan = [AtLength(own, at_init), *(AtLength(n, protocol.at_attention_length(n)) for n in sorted({*others}))]
    for at in plan:
        at.protocol.settings()  # raises for a length that is not allowed, before anything is scored
    return plan


def swept(plan: list[AtLength], scores: SplitScores) -> tuple[dict[str, Any] | None, AtLength]:
    """Score a split at every length; return its entry `sweep` and the best length.

    The tolerance is half of the last digit printed: 0.005 ppl or 0.0005 bits.
    """
    init, *lengths = plan
    if not lengths:
        return None, init
    unit, rows = loss_unit(scores.corpus.vocabulary.level), [at.row(scores) for at in plan]
    tolerance = 0.5 * 10 ** -DIGITS[unit]
    best, at_best = min(zip(rows[::-1], plan[::-1], strict=True), key=lambda scored: scored[0][unit])
    shortest = min(row["attention_length"] for row in rows if row[unit] <= best[unit] + tolerance)
    sweep: dict[str, Any] = {"length_option": init.protocol.length_option, "limit": init.protocol.limit, "unit": unit}
    sweep |= {"tolerance": tolerance, "init": rows[0], "best": {**best, "below_init": at_best.below(init, scores)}}
    return {**sweep, "attention_length": shortest, "lengths": rows[1:]}, at_best


def selected(init: AtLength, best: AtLength, scores: SplitScores, files: Path | None) -> dict[str, Any]:
    """Score a split at the lengths of training and at the best length of another split."""
    stem = "_init" if scores.losses(init.protocol) is scores.losses(best.protocol) else "_best"
    at_init = init.row(scores) | scores.written(init.protocol, "_init", files)
    at_best, below = best.row(scores) | scores.written(best.protocol, stem, files), best.below(init, scores)
    return {"attention_length": best.length, "init": at_init, "best": at_best, "below_init": below}


def write_sweeps(results: dict[str, Any], splits: list[str], directory: Path) -> list[str]:
    """Write `attention_lengths.md` and `attention_lengths.svg|png`.

    Args:
        results: contents of `evaluation.json`, with a sweep of at least one split.
        splits: names of the splits.
        directory: folder for the files.

    Returns:
        Lines to print: the table and its notes.
    """
    sweeps = {split: results[split]["sweep"] for split in splits if "sweep" in results[split]}
    (sweep, *_), (level, corpus) = sweeps.values(), (results["corpus"][key] for key in ("level", "name"))
    unit, over, curves = sweep["unit"], results[splits[0]]["standard_error"]["over"], dict[str, Any]()
    for split, of_split in sweeps.items():
        points = sorted((row["attention_length"], row[unit]) for row in (of_split["init"], *of_split["lengths"]))
        curves[split] = [tuple(zip(*points, strict=True))]
    figure = ("attention length (tokens)", unit_name(level), f"Loss by attention length, {corpus}")
    line_figure(directory / "attention_lengths", curves, *figure)
    limit = "" if sweep["limit"] is None else f", at most {sweep['limit']}: positions beyond are not trained"
    return write_markdown(
        directory / "attention_lengths.md",
        table_6(results, splits),
        "",
        f"The attention length is set by {sweep['length_option']}{limit}. Its column has the shortest length within "
        f"{sweep['tolerance']:g} {unit} of the best. Streams start {results['streams_start']}.",
        f"±: standard error over {over}; of differences that of the token-by-token differences.",
    )


def table_6(results: dict[str, Any], splits: list[str]) -> Table:
    """Return a row for each split: at training's lengths, the best, and the shortest within tolerance.

    A split without sweep has the loss at the length that was chosen on another split, and that length.
    """
    unit, rows = loss_unit(results["corpus"]["level"]), []
    for split in splits:
        sweep = results[split].get("sweep")
        scores, chosen_on = (sweep, "") if sweep else (results[split]["selected"], " (best on {})")
        below = scores["best"]["below_init"] if sweep else scores["below_init"]
        length = f"{scores['attention_length']}{chosen_on.format(scores.get('chosen_on'))}"
        row = {"split": split, f"{unit} at training's lengths": _with_error(scores["init"], unit)}
        row |= {f"{unit} best": _with_error(scores["best"], unit), "difference": _with_error(below, unit, 1)}
        rows.append(row | {"attention length": length})
    return rows


def _with_error(row: dict[str, Any] | None, unit: str, more_digits: int = 0) -> str:
    if row is None:
        return "–"
    digits, error = DIGITS[unit] + more_digits, row["standard_error"][unit]
    return f"{row[unit]:.{digits}f}" + ("" if error is None else f" ± {error:.{digits}f}")
