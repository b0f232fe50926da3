"""`txl evaluate`: score a checkpoint on its corpus or another text, choose its attention length (Table 6)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from txl_lightning.config.lengths import Lengths
from txl_lightning.config.schemas import check_values
from txl_lightning.data.corpus import WHOLE, Corpus
from txl_lightning.errors import require
from txl_lightning.evaluation.attention_lengths import (
    draw_sweep,
    first_tokens,
    lengths_to_try,
    score_selected,
    sweep_split,
)
from txl_lightning.evaluation.commands import log_results, open_checkpoint, options_as_typed
from txl_lightning.evaluation.continuations import score_table
from txl_lightning.evaluation.options import OWN_SPLITS, EvaluateOptions
from txl_lightning.evaluation.protocol import LENGTHS, Protocol, protocol_from_options
from txl_lightning.evaluation.scores import SplitScores, notes, score_line
from txl_lightning.evaluation.tables import write_units
from txl_lightning.evaluation.trained import TrainedModel, checkpoint_corpus, is_other_text
from txl_lightning.files import write_json

Entries = dict[str, dict[str, Any]]
"""Entries of the splits in `evaluation.json`."""


@options_as_typed()
def run(options: EvaluateOptions, directory: Path) -> list[str]:
    """Score the splits and write `evaluation.json`; for attention lengths also a figure.

    The file says what was scored how, and has an entry for every split with `nll` (nats per token), `ppl` or `bpc`,
    `bpt` (bits per token) for ids, `bpb` where the bytes are known, `standard_error` of these with `over` (name of a
    unit) and `units` (how many), `tokens` and `bytes` that are scored, `left_out` (tokens that are not, by reason) and
    `seconds`. By option it also has

        init        a length: the values at training's lengths, and evaluation
        losses      losses=true: file with nll and positions of the scored tokens, in text order
        units       per: file of the table
        sweep       of the split that chooses: unit, tolerance; init, best and lengths, each with attention_length,
                    the values above and evaluation; attention_length: the shortest within tolerance of the best;
                    null for a model without attention lengths
        selected    select_on: chosen_on, attention_length, init and best

    `continuations` scores the rows of a table instead (`continuations.score_table`).

    Returns:
        Lines to print: one for each split, and how they were scored.

    Raises:
        UserError: an option, the checkpoint or the corpus is not usable.
    """
    if options.attention_lengths is not None and options.select_on is None:
        options = replace(options, select_on="valid")
    check_options(options)
    trained = open_checkpoint(options)
    if options.continuations is not None:
        return score_table(trained, options, directory)
    evaluation = prepare(trained, options, directory)
    entries = evaluation.score()
    evaluation.write(entries)
    return evaluation.lines(entries)


def check_options(options: EvaluateOptions) -> None:
    """Refuse options that do not go together.

    Raises:
        OptionError: naming one of them.
    """
    check_values(options)
    splits = options.splits or OWN_SPLITS
    if options.select_on is None:
        require(
            options.sweep_tokens is None,
            "sweep_tokens",
            options.sweep_tokens,
            "is for select_on=valid",
        )
    else:
        fits = options.select_on != "test" and options.select_on in splits
        allowed = f"must be null, or valid or train and among {splits=}"
        require(fits, "select_on", options.select_on, allowed)
    if options.per is not None:
        refuse_others(options, "per", ("attention_lengths", "select_on"))
    if options.continuations is not None:
        others = ("attention_lengths", "select_on", "per", "data_path", "splits", "losses")
        refuse_others(options, "continuations", others)


def refuse_others(options: EvaluateOptions, kind: str, others: Sequence[str]) -> None:
    """Refuse options that ask for another kind of scores."""
    for name in others:
        value = getattr(options, name)
        require(not value, name, value, f"must be left out with {kind}")


def prepare(trained: TrainedModel, options: EvaluateOptions, directory: Path) -> Evaluation:
    """Load the corpus and choose the splits and the protocol.

    Raises:
        UserError: an option or the corpus is not usable.
    """
    if (
        options.per is not None and trained.vocabulary.unknown >= 0
    ):  # a log has characters that training lacked
        trained = replace(trained, vocabulary=replace(trained.vocabulary, lenient=True))
    whole = (
        not options.splits
        and options.select_on is None
        and is_other_text(options.data_path, [trained])
    )
    splits = options.splits or OWN_SPLITS
    if whole:
        splits = [WHOLE]
    corpus = checkpoint_corpus(trained, options.checkpoint, options.data_path, whole=whole)
    if options.select_on is not None:
        corpus = first_tokens(corpus, options.select_on, options.sweep_tokens)
    protocol = protocol_from_options(trained, options, whole)
    scores = {split: SplitScores(corpus, split, options.block_len) for split in splits}
    return Evaluation(trained, options, directory, corpus, scores, protocol)


@dataclass(frozen=True)
class Evaluation:
    """What is scored how.

    Args:
        trained: the model.
        options: options of the command.
        directory: folder for the files.
        corpus: corpus with the splits.
        scores: scores of the splits, made as they are asked for.
        protocol: lengths, streams and precision.
    """

    trained: TrainedModel
    options: EvaluateOptions
    directory: Path
    corpus: Corpus
    scores: dict[str, SplitScores]
    protocol: Protocol

    def score(self) -> Entries:
        """Score every split in the way that the options ask for."""
        if self.options.select_on is not None:
            return self.select_length(self.options.select_on)
        return {split: self.score_split(scores) for split, scores in self.scores.items()}

    @property
    def files(self) -> Path | None:
        """Folder for the losses of all tokens, if they are written."""
        if self.options.losses:
            return self.directory
        return None

    def score_split(self, scores: SplitScores) -> dict[str, Any]:
        """Score a split at the lengths of the command, and at training's if the command gives others."""
        losses = scores.losses(self.protocol)
        entry = scores.values(losses)
        if self.files is not None:
            entry["losses"] = scores.write_losses(losses, "", self.files)
        if self.options.per is not None:
            entry["units"] = write_units(
                self.options.per, self.corpus, scores.split, losses, self.directory
            )
        given = [name for name in LENGTHS if getattr(self.options, name) is not None]
        if given:
            entry["init"] = scores.row(self.protocol.at_training_lengths())
        return entry

    def select_length(self, chosen_on: str) -> Entries:
        """Choose the attention length on one split; score all splits at training's lengths and at this length."""
        tried = lengths_to_try(self.protocol, self.options)
        init = tried[0]
        best = init
        sweep = None
        if len(tried) > 1:
            sweep, best = sweep_split(tried, self.scores[chosen_on])
        entries = {}
        for split, scores in self.scores.items():
            entry = scores.values(scores.losses(init.protocol))
            entry["selected"] = {
                "chosen_on": chosen_on,
                **score_selected(init, best, scores, self.files),
            }
            entries[split] = entry
        entries[chosen_on]["sweep"] = sweep
        return entries

    @property
    def settings(self) -> dict[str, Any]:
        """Lengths at which the values of every split are scored."""
        if self.options.select_on is not None:
            return self.protocol.at_training_lengths().settings()
        return self.protocol.settings()

    def write(self, entries: Entries) -> None:
        """Write `evaluation.json` and the figure of attention lengths, and log them."""
        memory = Lengths(0, self.settings.get("mem_len"))
        results: dict[str, Any] = {
            "checkpoint": str(self.options.checkpoint),
            "step": self.trained.step,
            "corpus": self.corpus.facts(),
            "evaluation": self.settings,
            "streams_start": memory.streams_start(self.trained.config.memory.start),
            **entries,
        }
        write_json(self.directory / "evaluation.json", results)
        chosen_on = self.options.select_on
        if chosen_on is not None and entries[chosen_on]["sweep"] is not None:
            draw_sweep(results, chosen_on, self.directory)
        log_results("evaluate", results, self.options, self.directory)

    def lines(self, entries: Entries) -> list[str]:
        """Return the lines to print: the loss of every split, and how it was scored."""
        lines = []
        for split, entry in entries.items():
            length = entry.get("selected", {}).get("attention_length")
            if length is None:
                lines.append(score_line(split, entry))
            else:
                values = {**entry["selected"]["best"], "init": entry["selected"]["init"]}
                lines.append(score_line(f"{split}, attention length {length}", values))
        chosen_on = self.options.select_on
        if chosen_on is not None and entries[chosen_on]["sweep"] is not None:
            sweep = entries[chosen_on]["sweep"]
            shortest = f"within {sweep['tolerance']:g} {sweep['unit']} of the best"
            lines.append(f"shortest attention length {shortest}: {sweep['attention_length']}")
        lines += notes(entries, self.corpus, self.settings)
        for split, entry in entries.items():
            if "units" in entry:
                lines.append(f"{split}: a row for each {self.options.per} in {entry['units']}")
        return lines
