"""`txl evaluate`: score a checkpoint on its corpus, the state carried or in windows; sweep its attention (Table 6)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from txl_lightning.data.corpus import SPLITS, WHOLE, Corpus
from txl_lightning.errors import require
from txl_lightning.files import write_json
from txl_lightning.measure.commands import (
    Table,
    check_at_least_one,
    log_results,
    open_checkpoint,
    options_as_typed,
    write_markdown,
)
from txl_lightning.measure.dynamic_evaluation import check_dynamic, dynamic_evaluation
from txl_lightning.measure.options import OWN_SPLITS, DynamicOptions, EvaluateOptions
from txl_lightning.measure.scoring import OF_CARRIED, OF_WINDOW, Scoring, SplitScores, scoring_of
from txl_lightning.measure.units import FreshUnits, context_of, units_of
from txl_lightning.reporting.canvas import line_figure
from txl_lightning.runs.metrics import loss_unit, shown_units, unit_name
from txl_lightning.runs.trained import checkpoint_corpus, is_other_text

DIGITS = {"ppl": 2, "bpc": 3, "bpb": 3}  # printed
AtLength = tuple[int | None, Scoring]
"""Attention length, None for a model without one, and the scoring that has it."""
REASONS = {"first_of_streams": "at streams' starts", "trimmed": "trimmed", "max_segments": "after max_segments"}


@dataclass(frozen=True)
class Evaluation:
    """Contents of `evaluation.json`, besides an entry for every split.

    An entry has `nll` (nats per token), `ppl` or `bpc`, `bpt` (bits per token) for ids, `bpb` where the bytes are
    known, `standard_error` of these with `over` (name of a unit) and `units` (how many), `tokens` and `bytes` that are
    scored, `left_out` (tokens that are not, by reason) and `seconds`. By option it also has

        losses      losses=true: file with nll and positions of the scored tokens, in text order
        units       per: file of the table
        sweep       attention_lengths: length_option, limit, unit, tolerance; init, best and lengths, each with
                    attention_length, the values above and evaluation; attention_length: the shortest within tolerance
                    of the best; null for a model without attention lengths
        selected    select_on: chosen_on, attention_length, init, best; below_init: their difference, by token
        dynamic     dynamic.lr: the values above; below_static: the difference, by token

    Args:
        checkpoint: path.
        step: training steps.
        corpus: name, sha256, level; of words unknown, the share of `<unk>` in each split.
        protocol: option `protocol`.
        evaluation: all lengths, in the words of the options, and the precision.
        streams_start: context of the first token of every stream.
        dynamic: rates of dynamic evaluation; None without.
    """

    checkpoint: str
    step: int
    corpus: dict[str, Any]
    protocol: str
    evaluation: dict[str, Any]
    streams_start: str
    dynamic: dict[str, Any] | None


@options_as_typed()
def run(options: EvaluateOptions, directory: Path) -> list[str]:
    """Score the splits and write `evaluation.json`; for a sweep also its table and figure.

    Returns:
        Lines to print: one for each split, and the table of a sweep.

    Raises:
        UserError: an option, the checkpoint or the corpus is not usable.
    """
    _check_options(options)
    trained, chosen_on = open_checkpoint(options), options.select_on
    if options.per is not None:
        trained = replace(trained, vocabulary=replace(trained.vocabulary, lenient=True))
    in_parts = options.splits or chosen_on is not None
    whole = not in_parts and is_other_text(options.data_path, [trained])
    options = replace(options, splits=[WHOLE] if whole else options.splits or OWN_SPLITS)
    corpus = checkpoint_corpus(trained, options.checkpoint, options.data_path, whole=whole)
    corpus = corpus if chosen_on is None else first_tokens(corpus, chosen_on, options.sweep_tokens)
    units = {split: units_of(trained, corpus, split, options) for split in options.splits if options.per}
    scoring = scoring_of(trained, corpus, options)
    if options.unit_memory == "fresh":
        alone = {split: np.concatenate(of_split.tokens) for split, of_split in units.items()}
        scoring = replace(scoring, corpus=replace(corpus, splits=alone))
        fresh: dict[str, Any] = {"units": units, "per": str(options.per)}
        scoring = FreshUnits(**vars(scoring), **fresh, before=context_of(trained.vocabulary, options.unit_context))
    shown = scoring if chosen_on is None else scoring.at_training_lengths()
    plan = _plan(scoring, options) or [(None, shown)]
    learning: Any = None
    if options.dynamic.lr is not None:
        own = corpus if options.data_path is None else checkpoint_corpus(trained, options.checkpoint)
        learning = dynamic_evaluation(scoring, own, options.dynamic)

    best, files, scored = plan[0], directory if options.losses else None, {}
    for split in sorted(options.splits, key=lambda split: split != chosen_on):
        scores = SplitScores(scoring.corpus, split, options.block_len)
        by_token = options.losses or options.per or options.protocol == "window" or learning or len(plan) > 1
        result = scored[split] = scores.values(scores.losses(shown)) if by_token else scores.running(shown)
        if len(plan) > 1 and chosen_on in (None, split):
            result["sweep"], best = sweep_lengths(plan, scores)
        elif split == chosen_on:
            result["sweep"] = None
        if chosen_on is not None:
            result["selected"] = score_chosen(plan[0], best, chosen_on, scores, files)
        elif files is not None:
            result["losses"] = scores.write(shown, files / f"losses_{split}.npz")
        if split in units:
            result["units"] = f"{options.per}s_{split}.{options.table}"
            units[split].write(scores.losses(shown), directory / result["units"])
        if learning is not None:
            result["dynamic"] = learning.scores(shown, scores, files)

    evaluation = Evaluation(
        checkpoint=str(options.checkpoint),
        step=trained.step,
        corpus=corpus.facts(),
        protocol=options.protocol,
        evaluation=shown.settings(),
        streams_start=scoring.streams_start,
        dynamic=None if learning is None else learning.found,
    )
    results = {**vars(evaluation), **scored}
    write_json(directory / "evaluation.json", results)
    lengths = f"{evaluation.evaluation['protocol']}: {shown.description()}"
    names = {split: corpus.name + corpus.unknown_share(split) for split in scored}
    lines = [split_line(split, result, names[split], lengths) for split, result in scored.items()]
    lines += [f"{split}: {len(units[split].texts):,} {options.per}s in {scored[split]['units']}" for split in units]
    lines += learning.lines(scored, corpus.name, split_line) if learning is not None else []
    lines += write_sweeps(results, options.splits, directory) if len(plan) > 1 else []
    log_results("evaluate", results, options, directory)
    return lines


def _check_options(options: EvaluateOptions) -> None:
    splits, lengths, per = options.splits or OWN_SPLITS, options.attention_lengths, options.per
    check_at_least_one(options, "batch_size", "segment_len", "max_segments", "window", "stride", "block_len")
    check_at_least_one(options, "sweep_tokens")
    require(options.protocol in ("carried", "window"), "protocol", options.protocol, "must be carried or window")
    other, names = ("carried", OF_CARRIED) if options.protocol == "window" else ("window", OF_WINDOW)
    for name in names:
        require(getattr(options, name) is None, name, getattr(options, name), f"is for protocol={other}")
    to_select = [split for split in splits if split in ("valid", "train")]
    fresh = options.unit_memory == "fresh"
    rules = [
        ("splits", set(splits) <= set(SPLITS), f"must be of {', '.join(SPLITS)}"),
        ("attention_lengths", lengths is None or min(lengths, default=0) >= 1, "must be integers >= 1, at least one"),
        ("select_on", options.select_on in (None, *to_select), f"must be null, or valid or train and among {splits=}"),
        ("sweep_tokens", options.sweep_tokens is None or options.select_on is not None, "is for select_on=valid"),
        ("per", per in (None, "line", "document", "token"), "must be null, line, document or token"),
        ("unit_memory", options.unit_memory in ("carried", "fresh"), "must be carried or fresh"),
        ("unit_memory", not fresh or per in ("line", "document"), "is for per=line or document"),
        ("unit_memory", not fresh or options.protocol == "carried", "is for protocol=carried"),
        ("unit_context", fresh or options.unit_context is None, "is for unit_memory=fresh"),
        ("table", options.table in ("tsv", "parquet"), "must be tsv or parquet"),
        ("table", options.table == "tsv" or per is not None, "is for per=line, document or token"),
        ("attention_lengths", per is None or lengths is None, "must be null with per"),
    ]
    for name, right, allowed in rules:
        require(right, name, getattr(options, name), allowed)
    if options.dynamic != DynamicOptions():
        check_dynamic(options)


def _plan(scoring: Scoring, options: EvaluateOptions) -> list[AtLength]:
    """Plan the sweep; empty without attention lengths, and with `select_on` for a model that has none."""
    lengths = options.attention_lengths
    cannot = getattr(scoring.trained.model, "cannot", {"attention lengths": "a recurrent model has none"})
    if options.select_on is not None and options.protocol == "carried" and "attention lengths" in cannot:
        return []
    allowed = "must be given with select_on: lengths to choose from"
    require(options.select_on is None or lengths is not None, "attention_lengths", lengths, allowed)
    return [] if lengths is None else plan_sweep(scoring, lengths)


def split_line(split: str, result: dict[str, Any], corpus: str, lengths: str) -> str:
    """Return one line: loss with its standard error, tokens scored, lengths, and tokens left out."""
    unit, *others = shown_units(result)
    error, margin, over = result["standard_error"], "", ""
    if error[unit] is not None:
        margin, over = f" ± {error[unit]:.4f}", f"; ± over {error['units']:,} {error['over']}"
    more = "".join(f", {name} {result[name]:.4f}" for name in others)
    reasons = ", ".join(f"{n:,} {REASONS[reason]}" for reason, n in result["left_out"].items() if n)
    return (
        f"{split}: nll {result['nll']:.4f}, {unit} {result[unit]:.4f}{margin}{more} over "
        f"{result['tokens']:,} tokens of {corpus} ({lengths}; left out: {reasons}{over})"
    )


def plan_sweep(scoring: Scoring, lengths: list[int]) -> list[AtLength]:
    """Return the lengths of training and the swept ones, ascending; the model's limit replaces a longer one.

    Args:
        scoring: chosen scoring; lengths that the sweep does not vary come from it.
        lengths: attention lengths.

    Raises:
        OptionError: the model has no attention, or a length is not allowed.
    """
    limit = scoring.limit
    possible = {length if limit is None else min(length, limit) for length in lengths}
    trained = scoring.training_attention_length
    plan: list[AtLength] = [(trained if limit is None else min(trained, limit), scoring.at_training_lengths())]
    plan += [(length, scoring.at_attention_length(length)) for length in sorted(possible)]
    for _, at_length in plan:
        at_length.settings()  # raises for a length that is not allowed, before anything is scored
    return plan


def _row(at: AtLength, scores: SplitScores) -> dict[str, Any]:
    return {"attention_length": at[0], **scores.values(scores.losses(at[1])), "evaluation": at[1].settings()}


def sweep_lengths(plan: Sequence[AtLength], scores: SplitScores) -> tuple[dict[str, Any], AtLength]:
    """Score a split at every attention length: at training's, the best, and the shortest within a tolerance of it.

    The tolerance is half of the last digit printed: 0.005 ppl or 0.0005 bits.

    Args:
        plan: lengths to score, training's first.
        scores: scores of the split.

    Returns:
        The entry `sweep` of `evaluation.json`, and the best length.
    """
    unit, varied = loss_unit(scores.corpus.vocabulary.level), plan[1][1]
    tolerance = 0.5 * 10 ** -DIGITS[unit]
    rows = [_row(at_length, scores) for at_length in plan]
    best, best_length = min(zip(rows[::-1], plan[::-1], strict=True), key=lambda scored: scored[0][unit])
    entry = {
        "length_option": varied.length_option,
        "limit": varied.limit,
        "unit": unit,
        "tolerance": tolerance,
        "init": rows[0],
        "best": {**best, "below_init": scores.difference(scores.losses(plan[0][1]), scores.losses(best_length[1]))},
        "attention_length": min(row["attention_length"] for row in rows if row[unit] <= best[unit] + tolerance),
        "lengths": rows[1:],
    }
    return entry, best_length


def score_chosen(
    init: AtLength, best: AtLength, chosen_on: str, scores: SplitScores, files: Path | None
) -> dict[str, Any]:
    """Score a split at two lengths.

    Args:
        init: length of training.
        best: length with the lowest loss on the split `chosen_on`; may be `init`.
        chosen_on: name of that split.
        scores: scores of the split.
        files: folder for the losses of all tokens; None to write none.

    Returns:
        The entry `selected` of `evaluation.json`.
    """
    entry: dict[str, Any] = {"chosen_on": chosen_on, "attention_length": best[0]}
    entry |= {"init": _row(init, scores), "best": _row(best, scores)}
    entry["below_init"] = scores.difference(scores.losses(init[1]), scores.losses(best[1]))
    if files is not None:
        name = entry["init"]["losses"] = scores.write(init[1], files / f"losses_{scores.split}_init.npz")
        if scores.losses(best[1]) is not scores.losses(init[1]):
            name = scores.write(best[1], files / f"losses_{scores.split}_best.npz")
        entry["best"]["losses"] = name
    return entry


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


def write_sweeps(results: dict[str, Any], splits: list[str], directory: Path) -> list[str]:
    """Write `attention_lengths.md` and `attention_lengths.svg|png`.

    Args:
        results: contents of `evaluation.json`, with a sweep of at least one split.
        splits: names of the splits.
        directory: folder for the files.

    Returns:
        Lines to print: the table and its notes.
    """
    sweep, *_ = (results[split]["sweep"] for split in splits if "sweep" in results[split])
    unit, over = sweep["unit"], results[splits[0]]["standard_error"]["over"]
    curves = {split: [curve] for split, curve in curves_of(results, splits).items()}
    level, name = (results["corpus"][key] for key in ("level", "name"))
    figure = ("attention length (tokens)", unit_name(level), f"Loss by attention length, {name}")
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


def curves_of(results: Mapping[str, Any], splits: list[str]) -> dict[str, tuple[list[int], list[float]]]:
    """Return attention lengths, ascending, and losses of every split with a sweep."""
    curves = {}
    for split in splits:
        if sweep := results[split].get("sweep"):
            points = sorted((row["attention_length"], row[sweep["unit"]]) for row in (sweep["init"], *sweep["lengths"]))
            curves[split] = ([length for length, _ in points], [loss for _, loss in points])
    return curves


def table_6(results: Mapping[str, Any], splits: list[str]) -> Table:
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


def _with_error(row: Mapping[str, Any], unit: str, digits: int | None = None) -> str:
    digits, error = DIGITS[unit] if digits is None else digits, row["standard_error"][unit]
    return f"{row[unit]:.{digits}f}" + ("" if error is None else f" ± {error:.{digits}f}")
