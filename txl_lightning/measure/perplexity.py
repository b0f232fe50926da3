"""`txl evaluate`: score a checkpoint on its corpus, the state carried or in windows; sweep its attention (Table 6)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from txl_lightning.config.lengths import Lengths, training_lengths
from txl_lightning.config.schemas import check_values
from txl_lightning.data.corpus import WHOLE, Corpus
from txl_lightning.errors import require
from txl_lightning.files import write_json
from txl_lightning.measure.commands import Table, log_results, open_checkpoint, options_as_typed, write_markdown
from txl_lightning.measure.dynamic_evaluation import dynamic_evaluation
from txl_lightning.measure.options import OWN_SPLITS, DynamicOptions, EvaluateOptions
from txl_lightning.measure.protocols import (
    OF_CARRIED,
    OF_WINDOWS,
    Carried,
    SplitScores,
    Windows,
    protocol_of,
    split_line,
)
from txl_lightning.measure.units import Fresh, context_of, units_of
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
    sweep = learning = None
    if options.attention_lengths is not None or chosen_on is not None:
        sweep = Sweep(shown, options.attention_lengths, chosen_on)
        shown = shown if chosen_on is None else sweep.init.protocol
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
        summed = isinstance(shown, Carried) and not (files or units or learning or sweep)
        result = scored[split] = scores.running(shown) if summed else scores.values(scores.losses(shown))
        if sweep is not None:
            result |= sweep.entries(scores, files)
        if chosen_on is None:
            result |= scores.written(shown, "", files)
        if split in units:
            result["units"] = f"{options.per}s_{split}.{options.table}"
            units[split].write(scores.losses(shown), directory / result["units"])
        if learning is not None:
            result["dynamic"] = learning.scores(shown, scores, files)

    settings = shown.settings()
    results = {
        "checkpoint": str(options.checkpoint),
        "step": trained.step,
        "corpus": corpus.facts(),
        "protocol": options.protocol,
        "evaluation": settings,
        "streams_start": Lengths(0, settings.get("mem_len")).streams_start(trained.config.memory.start),
        "dynamic": None if learning is None else vars(options.dynamic),
        **scored,
    }
    write_json(directory / "evaluation.json", results)
    lines = [split_line(split, result, names[split], settings) for split, result in scored.items()]
    lines += [f"{split}: {len(units[split].texts):,} {options.per}s in {scored[split]['units']}" for split in units]
    lines += learning.lines(scored, corpus.name) if learning is not None else []
    lines += write_sweeps(results, splits, directory) if sweep is not None and sweep.lengths else []
    log_results("evaluate", results, options, directory)
    return lines


def _check_options(options: EvaluateOptions) -> None:
    check_values(options)
    carried, fresh, per = options.protocol == "carried", options.unit_memory == "fresh", options.per
    only = {  # options that have an effect only where this holds
        OF_WINDOWS: (not carried, "protocol=window"),
        (*OF_CARRIED, "unit_memory"): (carried, "protocol=carried"),
        ("sweep_tokens",): (options.select_on is not None, "select_on=valid"),
        ("unit_memory", ""): (per in ("line", "document"), "per=line or document"),
        ("unit_memory",): (options.select_on is None, "select_on=null"),
        ("unit_context",): (fresh, "unit_memory=fresh"),
        ("table",): (per is not None, "per=line, document or token"),
    }
    for names, (holds, words) in only.items():
        for name in filter(None, names):
            value = getattr(options, name)
            require(holds or value == getattr(EvaluateOptions, name), name, value, f"is for {words}")
    splits = options.splits or OWN_SPLITS
    allowed = f"must be null, or valid or train and among {splits=}"
    require(options.select_on in (None, *({*splits} - {"test"})), "select_on", options.select_on, allowed)
    require(
        per is None or options.attention_lengths is None,
        "attention_lengths",
        options.attention_lengths,
        "must be null with per",
    )
    if options.dynamic != DynamicOptions():
        require(options.dynamic.lr is not None, "dynamic.lr", None, "must be given with other options of dynamic")
        for name, one in {"protocol": "carried", "attention_lengths": None, "select_on": None, "per": None}.items():
            value, allowed = getattr(options, name), f"must be {one or 'null'} for dynamic evaluation"
            require(value == one, name, value, allowed)


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


class Sweep:
    """Protocol at the lengths of training and at several attention lengths, and the best of them, once it is known.

    The model's limit replaces a longer attention length.

    Args:
        protocol: lengths that the sweep does not vary.
        lengths: attention lengths; not used with `chosen_on` by a model that has none.
        chosen_on: split whose best length the others are scored at; None for a sweep of every split.

    Raises:
        OptionError: the model has no attention, or a length is not given or not allowed.
    """

    def __init__(self, protocol: Carried | Windows, lengths: list[int] | None, chosen_on: str | None) -> None:
        self.chosen_on, self.lengths = chosen_on, list[AtLength]()
        self.init = self.best = AtLength(None, protocol.at_training_lengths())
        if chosen_on is not None and protocol.fixed:
            return
        require(protocol.fixed is None, "attention_lengths", lengths, str(protocol.fixed))
        allowed = "must be given with select_on: lengths to choose from"
        require(lengths is not None, "attention_lengths", lengths, allowed)
        limit, trained = protocol.limit, training_lengths(protocol.trained.config).attention_length
        own, *others = (length if limit is None else min(length, limit) for length in (trained, *(lengths or ())))
        self.init = self.best = AtLength(own, self.init.protocol)
        self.lengths = [AtLength(length, protocol.at_attention_length(length)) for length in sorted({*others})]
        for at in (self.init, *self.lengths):
            at.protocol.settings()  # raises for a length that is not allowed, before anything is scored

    def entries(self, scores: SplitScores, files: Path | None) -> dict[str, Any]:
        """Score a split; return its entries `sweep` and `selected` in `evaluation.json`."""
        found: dict[str, Any] = {}
        if self.chosen_on in (None, scores.split):
            found["sweep"] = self._at_all(scores) if self.lengths else None
        if self.chosen_on is not None:
            found["selected"] = self._at_chosen(scores, files)
        return found

    def _at_all(self, scores: SplitScores) -> dict[str, Any]:
        """Score a split at every length; the tolerance is half of the last digit printed: 0.005 ppl or 0.0005 bits."""
        unit, varied, plan = loss_unit(scores.corpus.vocabulary.level), self.init.protocol, [self.init, *self.lengths]
        rows, tolerance = [_row(at, scores) for at in plan], 0.5 * 10 ** -DIGITS[unit]
        best, self.best = min(zip(rows[::-1], plan[::-1], strict=True), key=lambda scored: scored[0][unit])
        return {
            "length_option": varied.length_option,
            "limit": varied.limit,
            "unit": unit,
            "tolerance": tolerance,
            "init": rows[0],
            "best": {**best, "below_init": self._below_init(scores)},
            "attention_length": min(row["attention_length"] for row in rows if row[unit] <= best[unit] + tolerance),
            "lengths": rows[1:],
        }

    def _at_chosen(self, scores: SplitScores, files: Path | None) -> dict[str, Any]:
        """Score a split at the lengths of training and at the best length of the split `chosen_on`."""
        init, best = self.init.protocol, self.best.protocol
        stem = "_init" if scores.losses(init) is scores.losses(best) else "_best"
        return {
            "chosen_on": self.chosen_on,
            "attention_length": self.best.length,
            "init": _row(self.init, scores) | scores.written(init, "_init", files),
            "best": _row(self.best, scores) | scores.written(best, stem, files),
            "below_init": self._below_init(scores),
        }

    def _below_init(self, scores: SplitScores) -> dict[str, Any] | None:
        return scores.difference(scores.losses(self.init.protocol), scores.losses(self.best.protocol))


def _row(at: AtLength, scores: SplitScores) -> dict[str, Any]:
    values = scores.values(scores.losses(at.protocol))
    return {"attention_length": at.length, **values, "evaluation": at.protocol.settings()}


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
        gain = "–" if below is None else _with_error(below, unit, DIGITS[unit] + 1)
        length = f"{scores['attention_length']}{chosen_on.format(scores.get('chosen_on'))}"
        rows.append([split, *(_with_error(scores[name], unit) for name in ("init", "best")), gain, length])
    return ["split", f"{unit} at training's lengths", f"{unit} best", "difference", "attention length"], rows


def _with_error(row: dict[str, Any], unit: str, digits: int | None = None) -> str:
    digits, error = DIGITS[unit] if digits is None else digits, row["standard_error"][unit]
    return f"{row[unit]:.{digits}f}" + ("" if error is None else f" ± {error:.{digits}f}")
