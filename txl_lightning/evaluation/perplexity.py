"""`txl evaluate`: score a checkpoint on its corpus or another text, sweep its attention length (Table 6)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from txl_lightning.config.lengths import Lengths
from txl_lightning.config.schemas import check_values
from txl_lightning.data.corpus import WHOLE, Corpus
from txl_lightning.errors import require
from txl_lightning.evaluation.attention_lengths import (
    Plan,
    first_tokens,
    plan_lengths,
    score_selected,
    sweep_split,
    write_sweeps,
)
from txl_lightning.evaluation.commands import log_results, open_checkpoint, options_as_typed
from txl_lightning.evaluation.continuations import score_table
from txl_lightning.evaluation.dynamic_evaluation import learning_lines, learning_protocol, score_learning
from txl_lightning.evaluation.options import OWN_SPLITS, DynamicOptions, EvaluateOptions
from txl_lightning.evaluation.protocol import LENGTHS, Protocol, protocol_from_options
from txl_lightning.evaluation.scores import SplitScores, notes, score_line
from txl_lightning.evaluation.tables import write_units
from txl_lightning.evaluation.trained import TrainedModel, checkpoint_corpus, is_other_text
from txl_lightning.files import write_json

Entries = dict[str, dict[str, Any]]
"""Entries of the splits in `evaluation.json`."""


@options_as_typed()
def run(options: EvaluateOptions, directory: Path) -> list[str]:
    """Score the splits and write `evaluation.json`; for a sweep also its table and figure.

    The file says what was scored how, and has an entry for every split with `nll` (nats per token), `ppl` or `bpc`,
    `bpt` (bits per token) for ids, `bpb` where the bytes are known, `standard_error` of these with `over` (name of a
    unit) and `units` (how many), `tokens` and `bytes` that are scored, `left_out` (tokens that are not, by reason) and
    `seconds`. By option it also has

        init        a length: the values at training's lengths, and evaluation; below_init: the difference, by token
        losses      losses=true: file with nll and positions of the scored tokens, in text order
        units       per: file of the table
        sweep       attention_lengths: length_option, limit, unit, tolerance; init, best and lengths, each with
                    attention_length, the values above and evaluation; attention_length: the shortest within tolerance
                    of the best; null for a model without attention lengths
        selected    select_on: chosen_on, attention_length, init, best; below_init: their difference, by token
        dynamic     dynamic.lr: the values above; below_static: the difference, by token

    `continuations` scores the rows of a table instead (`continuations.score_table`).

    Returns:
        Lines to print: one for each split, how they were scored, and the table of a sweep.

    Raises:
        UserError: an option, the checkpoint or the corpus is not usable.
    """
    check_options(options)
    trained = open_checkpoint(options)
    if options.continuations is not None:
        return score_table(trained, options, directory)
    evaluation = prepare(trained, options, directory)
    entries = evaluation.score()
    results = evaluation.write(entries)
    return evaluation.lines(entries, results)


def check_options(options: EvaluateOptions) -> None:
    """Refuse options that do not go together.

    Raises:
        OptionError: naming one of them.
    """
    check_values(options)
    splits = options.splits or OWN_SPLITS
    if options.select_on is None:
        require(options.sweep_tokens is None, "sweep_tokens", options.sweep_tokens, "is for select_on=valid")
    else:
        fits = options.select_on != "test" and options.select_on in splits
        allowed = f"must be null, or valid or train and among {splits=}"
        require(fits, "select_on", options.select_on, allowed)
    if options.per is not None:
        _require_default(options, "must be null with per", "attention_lengths", "select_on")
    if options.dynamic.lr is not None:
        _require_default(options, "must be null for dynamic evaluation", "attention_lengths", "select_on", "per")
    else:
        allowed = "must be given with other options of dynamic"
        require(options.dynamic == DynamicOptions(), "dynamic.lr", None, allowed)
    if options.continuations is not None:
        allowed = "must be left out with continuations"
        _require_default(options, allowed, "attention_lengths", "select_on", "per", "data_path", "splits", "losses")
        require(options.dynamic.lr is None, "dynamic.lr", options.dynamic.lr, allowed)


def _require_default(options: EvaluateOptions, allowed: str, *names: str) -> None:
    for name in names:
        value = getattr(options, name)
        require(not value, name, value, allowed)


def prepare(trained: TrainedModel, options: EvaluateOptions, directory: Path) -> Evaluation:
    """Load the corpus and choose the splits and the protocol.

    Raises:
        UserError: an option or the corpus is not usable.
    """
    if options.per is not None and trained.vocabulary.unknown >= 0:  # a log has characters that training lacked
        trained = replace(trained, vocabulary=replace(trained.vocabulary, lenient=True))
    whole = not options.splits and options.select_on is None and is_other_text(options.data_path, [trained])
    splits = options.splits or OWN_SPLITS
    if whole:
        splits = [WHOLE]
    corpus = checkpoint_corpus(trained, options.checkpoint, options.data_path, whole=whole)
    if options.select_on is not None:
        corpus = first_tokens(corpus, options.select_on, options.sweep_tokens)
    protocol = protocol_from_options(trained, options, whole)
    return Evaluation(trained, options, directory, corpus, splits, protocol)


@dataclass(frozen=True)
class Evaluation:
    """What is scored how.

    Args:
        trained: the model.
        options: options of the command.
        directory: folder for the files.
        corpus: corpus with the splits.
        splits: names of the splits to score.
        protocol: lengths, streams and precision.
    """

    trained: TrainedModel
    options: EvaluateOptions
    directory: Path
    corpus: Corpus
    splits: list[str]
    protocol: Protocol

    def score(self) -> Entries:
        """Score every split in the way that the options ask for."""
        if self.options.select_on is not None:
            return self.select_length(self.options.select_on)
        if self.options.attention_lengths is not None:
            return self.sweep_lengths()
        if self.options.dynamic.lr is not None:
            return self.score_dynamically()
        return self.score_splits(self.add_init)

    def scores(self, split: str) -> SplitScores:
        """Return the scores of a split, of which none is made yet."""
        return SplitScores(self.corpus, split, self.options.block_len)

    def score_splits(self, add: Callable[[SplitScores, dict[str, Any]], None]) -> Entries:
        """Score every split at the lengths of the command.

        Args:
            add: adds more values to the entry of a split.
        """
        entries = {}
        for split in self.splits:
            scores = self.scores(split)
            losses = scores.losses(self.protocol)
            entry = scores.values(losses)
            if self.options.losses:
                entry["losses"] = scores.write_losses(losses, "", self.directory)
            if self.options.per is not None:
                entry["units"] = write_units(self.options.per, self.corpus, split, losses, self.directory)
            add(scores, entry)
            entries[split] = entry
        return entries

    def add_init(self, scores: SplitScores, entry: dict[str, Any]) -> None:
        """Add the values at training's lengths, if the command gives others."""
        given = [name for name in LENGTHS if getattr(self.options, name) is not None]
        if not given:
            return
        init = self.protocol.at_training_lengths()
        entry["init"] = scores.row(init)
        entry["below_init"] = scores.difference(scores.losses(init), scores.losses(self.protocol))

    def sweep_lengths(self) -> Entries:
        """Score every split at the lengths of the command and at all attention lengths."""
        plan = plan_lengths(self.protocol, self.options)

        def add_sweep(scores: SplitScores, entry: dict[str, Any]) -> None:
            entry["sweep"], _ = sweep_split(plan, scores)

        return self.score_splits(add_sweep)

    def select_length(self, chosen_on: str) -> Entries:
        """Choose the attention length on one split; score all splits at training's lengths and at this length."""
        plan = plan_lengths(self.protocol, self.options)
        scores = self.scores(chosen_on)
        sweep = None
        best = plan.init
        if plan.others:
            sweep, best = sweep_split(plan, scores)
        entries = {chosen_on: self.selected_entry(plan, best, scores, chosen_on)}
        entries[chosen_on]["sweep"] = sweep
        for split in self.splits:
            if split != chosen_on:
                entries[split] = self.selected_entry(plan, best, self.scores(split), chosen_on)
        return entries

    def selected_entry(self, plan: Plan, best: Any, scores: SplitScores, chosen_on: str) -> dict[str, Any]:
        """Return the entry of a split with `selected`, its other values at training's lengths."""
        entry = scores.values(scores.losses(plan.init.protocol))
        directory = self.directory if self.options.losses else None
        entry["selected"] = {"chosen_on": chosen_on, **score_selected(plan, best, scores, directory)}
        return entry

    def score_dynamically(self) -> Entries:
        """Score every split with the trained weights, and with weights that learn from it."""
        own_corpus = self.corpus
        if self.options.data_path is not None:
            own_corpus = checkpoint_corpus(self.trained, self.options.checkpoint)
        learning = learning_protocol(self.protocol, own_corpus, self.options.dynamic)
        files = self.directory if self.options.losses else None

        def add_dynamic(scores: SplitScores, entry: dict[str, Any]) -> None:
            entry["dynamic"] = score_learning(learning, scores, files)

        return self.score_splits(add_dynamic)

    @property
    def settings(self) -> dict[str, Any]:
        """Lengths at which the values of every split are scored."""
        if self.options.select_on is not None:
            return self.protocol.at_training_lengths().settings()
        return self.protocol.settings()

    def write(self, entries: Entries) -> dict[str, Any]:
        """Write `evaluation.json` and return its contents."""
        dynamic = self.options.dynamic
        memory = Lengths(0, self.settings.get("mem_len"))
        results: dict[str, Any] = {
            "checkpoint": str(self.options.checkpoint),
            "step": self.trained.step,
            "corpus": self.corpus.facts(),
            "evaluation": self.settings,
            "streams_start": memory.streams_start(self.trained.config.memory.start),
            "dynamic": None if dynamic.lr is None else vars(dynamic),
            **entries,
        }
        write_json(self.directory / "evaluation.json", results)
        return results

    def lines(self, entries: Entries, results: dict[str, Any]) -> list[str]:
        """Return the lines to print; write the table and figure of a sweep, and log the results."""
        lines = []
        for split, entry in entries.items():
            lines.append(score_line(split, entry))
            if "dynamic" in entry:
                lines += learning_lines(split, entry["dynamic"])
        lines += notes(entries, self.corpus, self.settings)
        for split, entry in entries.items():
            if "units" in entry:
                lines.append(f"{split}: a row for each {self.options.per} in {entry['units']}")
        if any(entry.get("sweep") for entry in entries.values()):
            lines += write_sweeps(results, self.splits, self.directory)
        log_results("evaluate", results, self.options, self.directory)
        return lines
