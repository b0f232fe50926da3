"""Group of models that are compared: the text they read, and their scores on it in bits per byte.

`txl evaluate models=[…]` scores models of any origin with a state carried and in windows; its `evaluation.json` holds

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

import codecs
import hashlib
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce
from glob import glob
from itertools import combinations, product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from txl_lightning.config.schemas import DataConfig, EvaluationConfig, file_data
from txl_lightning.data.corpus import WHOLE, Corpus, split_bytes
from txl_lightning.data.datamodule import evaluation_streams
from txl_lightning.data.vocabulary import Vocabulary, without_marks
from txl_lightning.errors import OptionError, UserError, require
from txl_lightning.files import write_json
from txl_lightning.measure.commands import check_common_options, chosen_device
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
from txl_lightning.measure.models import (
    FUNCTION,
    HUGGING_FACE,
    OPTION,
    Member,
    TokenizedText,
    checked,
    load_function,
    load_huggingface,
    load_run,
)
from txl_lightning.measure.options import OWN_SPLITS, EvaluateOptions
from txl_lightning.measure.scoring import scoring_of
from txl_lightning.runs.threads_and_precision import autocast, chosen_precision, set_threads
from txl_lightning.runs.trained import checkpoint_corpus, is_other_text, report_if_changed

TRAINED = "txl:"
PROTOCOLS = {"both": ["carried", "window"]}
SEGMENT_LEN, BATCH_SIZE = 128, 10  # of a model from elsewhere, where none is given


def references(options: Any) -> list[str]:
    """Return the references of all models, `checkpoints` first, a pattern such as `run/step*.ckpt` as its files.

    Raises:
        OptionError: there is none, one is named twice, or a reference has no known prefix.
    """
    for model in options.models:
        known = model.startswith((TRAINED, HUGGING_FACE, FUNCTION))
        require(known, OPTION, model, "must begin with txl:, hf: or py:")
    paths = [file for path in options.checkpoints for file in _files(path)]
    named = [*(f"{TRAINED}{path}" for path in paths), *options.models]
    require(bool(named), "checkpoints", "[]", "must name at least one checkpoint")
    twice = [reference.removeprefix(TRAINED) for reference in named if named.count(reference) > 1]
    require(not twice, "checkpoints" if options.checkpoints else OPTION, twice[:1], "is named twice")
    return named


def _files(path: str) -> list[str]:
    """Return the files of a pattern, with numbers in names in their order; a path without files stays as it is."""
    found = [] if Path(path).is_file() else glob(str(Path(path).expanduser()))
    return sorted(found, key=lambda name: [(len(n), n) for n in re.findall(r"\d+|\D+", name)]) or [path]


def load_group(options: Any) -> list[Member]:
    """Load all models, in evaluation mode, on the chosen device.

    Args:
        options: models, checkpoints and names; accelerator, batch_tokens, clamp_len of Transformer-XLs, begin_of_text
            and dtype of hf: models.

    Raises:
        OptionError: a model is not usable.
    """
    named, device = references(options), chosen_device(options.accelerator)
    members = []
    for reference, name in zip(named, options.names or model_names(named), strict=True):
        if reference.startswith(TRAINED):
            option = OPTION if reference in options.models else "checkpoints"
            member = load_run(reference.removeprefix(TRAINED), name, device, options.clamp_len, option)
        elif reference.startswith(HUGGING_FACE):
            member = load_huggingface(reference, name, options.begin_of_text, options.dtype)
        else:
            member = load_function(reference, name)
        if hasattr(member.reader.model, "to"):
            member.reader.model.to(device)
        members.append(replace(member, reader=replace(member.reader, batch_tokens=options.batch_tokens)))
    return members


def model_names(named: Sequence[str]) -> list[str]:
    """Return the shortest distinct names: `txl:ours/checkpoints/best.ckpt` is `ours`, or `ours/best`; `hf:a/b` is `b`.

    The references themselves if some names are still equal.
    """
    paths = [Path(one.removeprefix(TRAINED)).resolve().with_suffix("") for one in named if one.startswith(TRAINED)]
    parts = [[part for part in path.parts[1:] if part != "checkpoints"] for path in paths]
    tries = [(start, stop) for start in range(-2, -max(map(len, parts), default=1) - 1, -1) for stop in (-1, None)]
    of_runs = (["/".join(of_path[slice(*ends)]) for of_path in parts] for ends in tries)
    short = iter(next((names for names in of_runs if all(names) and len({*names}) == len(names)), map(str, paths)))
    names = [next(short) if one.startswith(TRAINED) else one.rstrip("/").split(":")[-1].split("/")[-1] for one in named]
    return names if len({*names}) == len(names) else list(named)


@dataclass(frozen=True)
class GroupText:
    """Text of a group.

    Args:
        corpus: entry `corpus` of `recl.json`: `name`, `sha256` (of the corpus or of the text), and `level`: byte, char,
            word or token; losses are per unit of it.
        of_member: tokens of the text, by name of the model.
        pieces: bounds 0 … n of the pieces of text that models are compared on, in bytes: those at which no tokenizer
            has a token that goes on. None if all have the same tokens.
    """

    corpus: dict[str, str]
    of_member: dict[str, TokenizedText]
    pieces: Integers | None = None

    @property
    def length(self) -> int:
        """Number of positions: bytes with `pieces`, tokens without."""
        first = next(iter(self.of_member.values()))
        return len(first.tokens) if self.pieces is None else first.n_bytes


def group_text(members: Sequence[Member], options: Any) -> GroupText:
    """Load the text of all members and its tokens.

    Checkpoints bring their corpus. Without any, or with `data_path`, it is that file.

    Raises:
        UserError: the text cannot be loaded, the members have different corpora, or they have different tokenizers or
            tokens and contexts are not counted in bytes.
    """
    by_bytes = options.context_unit == "byte"
    if not by_bytes and all(member.trained for member in members):
        return _encoded_corpus(members, options)
    for member in members:
        config = None if member.trained is None else member.trained.config
        resets, ids = config and config.memory.reset == "document", config and config.data.level == "ids"
        allowed = f"was trained with {'memory.reset=document' if resets else 'data.level=ids'}: "
        member.require(not (resets or ids), f"{allowed}it can be compared by tokens alone, and with checkpoints alone")
    name, content = _content(members, options)
    corpus = {"name": name, "sha256": hashlib.sha256(content).hexdigest()}
    of_member = {member.name: member.tokenize(content) for member in members}
    texts = list(of_member.values())
    for member, text in zip(members, texts, strict=True):
        if by_bytes:
            allowed = "cannot be compared in bytes: its tokens do not give back every byte of the text"
            member.require(text.starts is not None, allowed)
        else:
            known = text.starts is not None and texts[0].starts is not None
            name_of = "known_starts" if known else "tokens"  # token numbers may differ where bytes are known
            same = np.array_equal(getattr(text, name_of), getattr(texts[0], name_of))
            allowed = f"has another tokenizer than {members[0].path}: compare them with context_unit=byte"
            member.require(same, allowed)
    if by_bytes:
        pieces = np.append(reduce(np.intersect1d, [text.known_starts for text in texts]), len(content))
        return GroupText({**corpus, "level": "byte"}, of_member, pieces)
    single_bytes = all(len(text.tokens) == text.n_bytes for text in texts)
    levels = [member.trained.vocabulary.level for member in members if member.trained]
    return GroupText({**corpus, "level": [*levels, "byte" if single_bytes else "token"][0]}, of_member)


def _encoded_corpus(members: Sequence[Member], options: Any) -> GroupText:
    """Load the corpus of all members, which are of runs, or the text `data_path`, as each member reads it.

    For a member with `memory.reset=document` the first token of every document is marked. The others get the places
    where documents begin: those of a marked text, or those that the corpus has. With `documents=ignore` neither is so.
    """
    split, respects, path = options.split, options.documents == "respect", members[0].path
    runs = [(member, member.trained) for member in members if member.trained is not None]
    corpora = [
        checkpoint_corpus(run, member.path, options.data_path, member.option, split == WHOLE) for member, run in runs
    ]
    first, of_member = corpora[0], {}
    documents = np.asarray(max((corpus.documents[split] for corpus in corpora), key=len))
    for (member, run), corpus in zip(runs, corpora, strict=True):
        level, level_of_first = corpus.vocabulary.level, first.vocabulary.level
        allowed = f"reads {level} tokens, {path} {level_of_first} tokens: use context_unit=byte"
        member.require(level == level_of_first, allowed)
        allowed = f"was trained on another corpus ({corpus.name}) than {path} ({first.name})"
        member.require(corpus.checksum == first.checksum, allowed)
        plain = without_marks(corpus.splits[split])
        same = corpus.vocabulary == first.vocabulary and np.array_equal(plain, without_marks(first.splits[split]))
        allowed = f"reads other tokens than {path}: their vocabularies, the starts of documents (data.document_start) "
        member.require(same, f"{allowed}or the marks of sentences (data.sentence_marks) differ")
        marked = run.config.memory.reset == "document"
        own = plain if marked and not respects else corpus.splits[split]
        hides = respects and not marked and len(documents) > 1
        of_member[member.name] = TokenizedText(own, None, len(own), documents if hides else None)
    return GroupText(first.facts(), of_member)


def _content(members: Sequence[Member], options: Any) -> tuple[str, bytes]:
    """Return the name and the bytes of the text; of UTF-8 text without a character that is cut at either end."""
    runs, path = [(member, member.trained) for member in members if member.trained], options.data_path
    configs = [run.config.data for _, run in runs]
    require(bool(configs) or path is not None, "data_path", path, "must be a text file: no checkpoint brings a corpus")
    if path is not None:
        configs = [file_data(configs[0] if configs else DataConfig(), path, "byte")]
    try:
        texts = [split_bytes(config, options.split) for config in configs]
    except OptionError as error:
        if path is None:
            raise UserError(f"{error}; if this corpus has moved, give data_path=") from error
        raise OptionError("data_path", path, error.allowed) from error
    name, _, content = texts[0]
    if path is None:
        for (member, run), (other_name, checksum, other) in zip(runs, texts, strict=True):
            report_if_changed(run, f"{member.option}={member.path}", other_name, checksum)
            allowed = f"was trained on another corpus ({other_name}) than {runs[0][0].path} ({name})"
            member.require(other == content, allowed)
    try:
        content = whole_characters(content).encode()
    except UserError as error:
        if any(member.path.startswith(HUGGING_FACE) for member in members):
            raise OptionError("data_path" if path else OPTION, path or name, str(error)) from error
    return name, content


def whole_characters(content: bytes) -> str:
    """Return UTF-8 text without a character that is cut at either end.

    Raises:
        UserError: the bytes are not UTF-8.
    """
    first = next((i for i, byte in enumerate(content[:4]) if byte & 0xC0 != 0x80), 0)
    try:
        return codecs.getincrementaldecoder("utf-8")().decode(content[first:])
    except UnicodeDecodeError as error:
        raise UserError(f"is not UTF-8 text (byte {first + error.start})") from error


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
