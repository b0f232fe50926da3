"""`txl evaluate models=[…]`: models of any origin on one text, in bits per byte, with a state carried and in windows.

`evaluation.json` holds

    models          name, checkpoint (path or reference) and kind of each
    corpus          name, sha256, level (byte)
    precision, begin_of_text
    SPLIT           bytes: those that all models scored; standard_error_over: name and number of the units
        scores      by "MODEL, PROTOCOL": bpb, its standard_error and interval (95 %), evaluation (lengths as far as the
                    model sees), tokens (scored), seconds
        differences for every two scores: score and minus (their names), bpb, standard_error, interval

A score is over bytes of text, so that models with different tokenizers are compared at equal bytes.
"""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import combinations, product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from txl_lightning.config.schemas import EvaluationConfig
from txl_lightning.data.corpus import WHOLE, Corpus
from txl_lightning.data.datamodule import evaluation_streams
from txl_lightning.data.vocabulary import Vocabulary
from txl_lightning.errors import require
from txl_lightning.files import write_json
from txl_lightning.measure.commands import check_common_options
from txl_lightning.measure.group import GroupText, group_text, load_group
from txl_lightning.measure.losses import (
    NORMAL_95,
    Array,
    Integers,
    TokenLosses,
    device_of,
    sliding_losses,
    standard_error,
    stream_losses,
    visible_window,
)
from txl_lightning.measure.models import Member, TokenizedText, checked
from txl_lightning.measure.options import OWN_SPLITS, EvaluateOptions
from txl_lightning.measure.scoring import scoring_of
from txl_lightning.runs.threads_and_precision import autocast, chosen_precision, set_threads
from txl_lightning.runs.trained import is_other_text

PROTOCOLS = {"both": ["carried", "window"]}
SEGMENT_LEN, BATCH_SIZE = 128, 10  # of a model from elsewhere, where none is given


def compare_models(options: EvaluateOptions, directory: Path) -> list[str]:
    """Score `options.models` on the splits and write `evaluation.json`.

    Args:
        options: options of the command.
        directory: folder for the file.

    Returns:
        Lines to print: one for each score and for each difference.

    Raises:
        UserError: an option, a model or the text is not usable.
    """
    check_common_options(options)
    require(options.logger.name == "none", "logger", options.logger.name, "must be none with models")
    options = replace(options, precision=chosen_precision(options.precision, options.accelerator))
    group = SimpleNamespace(**vars(options), checkpoints=[], names=None, batch_tokens=None, context_unit="byte")
    members = load_group(group)
    trained = [member.trained for member in members if member.trained]
    set_threads(options.num_threads, *trained)
    models = [{"name": one.name, "checkpoint": one.path, "kind": one.kind} for one in members]
    results: dict[str, Any] = {"models": models, **{key: vars(options)[key] for key in ("precision", "begin_of_text")}}
    lines = []
    for split in options.splits or ([WHOLE] if is_other_text(options.data_path, trained) else OWN_SPLITS):
        text = group_text(members, SimpleNamespace(**vars(group), split=split))
        results["corpus"] = text.corpus
        results[split] = _scores(members, text, split, options)
        lines += _lines(split, results[split])
    write_json(directory / "evaluation.json", results)
    return lines


def _scores(members: list[Member], text: GroupText, split: str, options: EvaluateOptions) -> dict[str, Any]:
    scores: dict[str, dict[str, Any]] = {}
    losses: dict[str, Array] = {}
    pieces: Any = text.pieces  # of a group in bytes
    for member, protocol in product(members, PROTOCOLS.get(options.protocol, [options.protocol])):
        found = _token_losses(member, text, split, replace(options, protocol=protocol))
        allowed = f"{member.path} has no state that can be carried: choose window, or both"
        require(found is not None or options.protocol == "both", "protocol", protocol, allowed)
        if found is not None:
            name, of_tokens = f"{member.name}, {protocol}", found[0]
            scores[name] = {"evaluation": found[1], "tokens": len(of_tokens.nll), "seconds": of_tokens.seconds}
            losses[name] = piece_losses(of_tokens, text.of_member[member.name], pieces)
    nll_SJ, sizes_J = np.stack(list(losses.values())), np.diff(pieces)
    kept_J = ~np.isnan(nll_SJ).any(axis=0)
    require(bool(kept_J.any()), "splits", split, "is too short: the models scored no byte in common")
    bits_SB = np.repeat(nll_SJ[:, kept_J] / sizes_J[kept_J] / math.log(2), sizes_J[kept_J], axis=1)
    units_B = np.flatnonzero(np.repeat(kept_J, sizes_J)) // options.block_len
    bits = dict(zip(losses, bits_SB, strict=True))
    pairs = [{"score": a, "minus": b, **_mean(bits[a] - bits[b], units_B)} for a, b in combinations(bits, 2)]
    scores = {name: {**_mean(bits[name], units_B), **score} for name, score in scores.items()}
    over = {"name": f"blocks of {options.block_len:,} bytes", "units": len(np.unique(units_B))}
    return {"bytes": len(units_B), "standard_error_over": over, "scores": scores, "differences": pairs}


def _token_losses(
    member: Member, text: GroupText, split: str, options: EvaluateOptions
) -> tuple[TokenLosses, dict[str, Any]] | None:
    """Return the losses of a split and the lengths; None if there is no state to carry."""
    tokens, trained = text.of_member[member.name], member.trained
    member = checked(member, tokens)
    reader = member.reader
    # Only the tokens of this corpus are read, whatever their vocabulary is.
    corpus = Corpus(text.corpus["name"], {split: tokens.tokens}, Vocabulary("byte"), text.corpus["sha256"])
    if trained is not None:  # the whole split, whatever its run evaluates
        evaluation = replace(trained.config.evaluation, max_segments=None)
        trained = replace(trained, config=replace(trained.config, evaluation=evaluation))
        scoring = scoring_of(trained, corpus, options)
        return scoring.losses(split), scoring.settings()
    precision = autocast(options.precision, device_of(reader.model))
    if options.protocol == "window":
        window = reader.limit if options.window is None else options.window
        require(window is not None, "window", None, f"must be given: {member.path} sees any number of tokens")
        window = reader.visible(window)  # type: ignore[arg-type]
        stride = max(1, window // 2) if options.stride is None else options.stride
        lengths: dict[str, Any] = {"window": visible_window(reader, window, stride), "stride": stride}
        with precision:
            return sliding_losses(reader, tokens.tokens, window, stride), lengths
    given = EvaluationConfig(options.batch_size or BATCH_SIZE, reader.visible(options.segment_len or SEGMENT_LEN))
    lengths = {"segment_len": given.segment_len, "batch_size": given.batch_size, "limit": reader.limit}
    if not member.carries:
        return None
    with precision:
        return stream_losses(reader.model, evaluation_streams(corpus, split, given)), lengths


def piece_losses(losses: TokenLosses, text: TokenizedText, pieces: Integers) -> Array:
    """Return the loss of every piece of a text, [J], in nats: the sum over its tokens; nan if one is not scored.

    Args:
        losses: losses of some tokens.
        text: the tokens, with known starts.
        pieces: bounds of the pieces, [J + 1], at which no token goes on.
    """
    nll_K = np.full(len(text.tokens), np.nan)
    nll_K[losses.positions] = losses.nll
    return np.asarray(np.add.reduceat(nll_K, np.searchsorted(text.known_starts, pieces[:-1])))


def _mean(bits_B: Array, units_B: Integers) -> dict[str, Any]:
    """Return the mean of values of bytes, its standard error over units, and the 95 % interval."""
    mean, error = float(bits_B.mean()), standard_error(bits_B, units_B)[0]
    interval = None if error is None else [mean - NORMAL_95 * error, mean + NORMAL_95 * error]
    return {"bpb": mean, "standard_error": error, "interval": interval}


def _lines(split: str, result: dict[str, Any]) -> list[str]:
    def margin(values: dict[str, Any]) -> str:
        return "" if values["standard_error"] is None else f" ± {values['standard_error']:.4f}"

    over, lines = result["standard_error_over"], []
    for name, score in result["scores"].items():
        lengths = ", ".join(f"{key} {value}" for key, value in score["evaluation"].items() if value is not None)
        lines.append(f"{split}: {name}: bpb {score['bpb']:.4f}{margin(score)} ({lengths})")
    for pair in result["differences"]:
        lines.append(f"{split}: {pair['score']}, minus {pair['minus']}: bpb {pair['bpb']:+.4f}{margin(pair)}")
    return [*lines, f"{split}: over the same {result['bytes']:,} bytes; ± over {over['units']:,} {over['name']}"]
