"""`txl evaluate`: score a checkpoint on its corpus, the state carried or in windows; sweep its attention (Table 6)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from txl_lightning.config.schemas import check_values
from txl_lightning.data.corpus import SPLITS, WHOLE, Corpus
from txl_lightning.errors import require
from txl_lightning.files import write_json
from txl_lightning.measure.commands import (
    log_results,
    open_checkpoint,
    options_as_typed,
)
from txl_lightning.measure.dynamic_evaluation import check_dynamic, dynamic_evaluation
from txl_lightning.measure.options import OWN_SPLITS, DynamicOptions, EvaluateOptions
from txl_lightning.measure.protocols import OF_CARRIED, OF_WINDOWS, Carried, protocol_of
from txl_lightning.measure.split_scores import SplitScores, split_line
from txl_lightning.measure.sweep import Sweep, write_sweeps
from txl_lightning.measure.units import Fresh, context_of, units_of
from txl_lightning.runs.trained import checkpoint_corpus, is_other_text


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
    files = directory if options.losses else None
    sweep: Sweep | None = None
    learning: Any = None
    if options.attention_lengths is not None or chosen_on is not None:
        sweep = Sweep(shown, options.attention_lengths, chosen_on, files)
        shown = shown if chosen_on is None else sweep.init.protocol
    if options.unit_memory == "fresh":
        shown = Fresh(shown, units, str(options.per), context_of(trained.vocabulary, options.unit_context))
        read = shown.corpus(corpus)
    if options.dynamic.lr is not None:
        own = corpus if options.data_path is None else checkpoint_corpus(trained, options.checkpoint)
        learning = dynamic_evaluation(shown, own, options.dynamic)

    scored: dict[str, dict[str, Any]] = {}
    for split in sorted(splits, key=lambda split: split != chosen_on):
        scores = SplitScores(read, split, options.block_len)
        summed = isinstance(shown, Carried) and not (files or units or learning or sweep)
        result = scored[split] = scores.running(shown) if summed else scores.values(scores.losses(shown))
        if sweep is not None:
            result |= sweep.entries(scores)
        if files is not None and chosen_on is None:
            result["losses"] = scores.write(shown, files / f"losses_{split}.npz")
        if split in units:
            result["units"] = f"{options.per}s_{split}.{options.table}"
            units[split].write(scores.losses(shown), directory / result["units"])
        if learning is not None:
            result["dynamic"] = learning.scores(shown, scores, files)

    results = {
        "checkpoint": str(options.checkpoint),
        "step": trained.step,
        "corpus": corpus.facts(),
        "protocol": options.protocol,
        "evaluation": shown.settings(),
        "streams_start": shown.streams_start,
        "dynamic": None if learning is None else vars(options.dynamic),
        **scored,
    }
    write_json(directory / "evaluation.json", results)
    lengths = f"{shown.settings()['protocol']}: {shown.describe()}"
    names = {split: corpus.name + corpus.unknown_share(split) for split in scored}
    lines = [split_line(split, result, names[split], lengths) for split, result in scored.items()]
    lines += [f"{split}: {len(units[split].texts):,} {options.per}s in {scored[split]['units']}" for split in units]
    lines += learning.lines(scored, corpus.name) if learning is not None else []
    lines += write_sweeps(results, splits, directory) if sweep is not None and sweep.lengths else []
    log_results("evaluate", results, options, directory)
    return lines


def _check_options(options: EvaluateOptions) -> None:
    splits, lengths, per = options.splits or OWN_SPLITS, options.attention_lengths, options.per
    check_values(options)
    other, names = ("carried", OF_CARRIED) if options.protocol == "window" else ("window", OF_WINDOWS)
    for name in names:
        require(getattr(options, name) is None, name, getattr(options, name), f"is for protocol={other}")
    to_select = [split for split in splits if split in ("valid", "train")]
    fresh = options.unit_memory == "fresh"
    rules = [
        ("splits", set(splits) <= set(SPLITS), f"must be of {', '.join(SPLITS)}"),
        ("select_on", options.select_on in (None, *to_select), f"must be null, or valid or train and among {splits=}"),
        ("sweep_tokens", options.sweep_tokens is None or options.select_on is not None, "is for select_on=valid"),
        ("unit_memory", not fresh or per in ("line", "document"), "is for per=line or document"),
        ("unit_memory", not fresh or options.protocol == "carried", "is for protocol=carried"),
        ("unit_memory", not fresh or options.select_on is None, "is for select_on=null"),
        ("unit_context", fresh or options.unit_context is None, "is for unit_memory=fresh"),
        ("table", options.table == "tsv" or per is not None, "is for per=line, document or token"),
        ("attention_lengths", per is None or lengths is None, "must be null with per"),
    ]
    for name, right, allowed in rules:
        require(right, name, getattr(options, name), allowed)
    if options.dynamic != DynamicOptions():
        check_dynamic(options)


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
