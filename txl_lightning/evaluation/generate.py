"""`txl generate`: sample text from a checkpoint and print it as it is drawn (appendix E)."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from txl_lightning.config.lengths import training_lengths
from txl_lightning.config.schemas import check_values
from txl_lightning.data.vocabulary import SENTENCE, StreamDecoder, Vocabulary, close_sentences, without_marks
from txl_lightning.errors import OptionError, UserError, require
from txl_lightning.evaluation.commands import corpus_and_split, open_checkpoint, options_as_typed
from txl_lightning.evaluation.losses import device_of
from txl_lightning.evaluation.options import GenerateOptions
from txl_lightning.evaluation.protocols import Carried
from txl_lightning.files import not_special, write_atomically, write_json
from txl_lightning.model.inference.generation import GenerativeModel, check_sampling
from txl_lightning.model.inference.generation import generate as draw
from txl_lightning.model.inference.sliding_window import SlidingWindow
from txl_lightning.model.transformer_xl import TransformerXL
from txl_lightning.runs.hardware import autocast, chosen_precision
from txl_lightning.runs.trained import TrainedModel

MOST_SHOWN = 40  # characters of a prompt in a message
# Models of bytes can draw control characters. They are shown as a sign, so that the terminal does not obey them.
CONTROL = {code: "\ufffd" for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"}

Write = Callable[[str], None]
Stops = list[int | str]
NO_ID = -1  # of `samples.npy`


def show(text: str) -> None:
    """Print text at once; characters that the terminal cannot encode become `?`."""
    encoding = sys.stdout.encoding or "utf-8"
    print(text.encode(encoding, errors="replace").decode(encoding), end="", flush=True)


@options_as_typed()
def run(options: GenerateOptions, directory: Path, write: Write = show) -> list[str]:
    """Draw and print the samples, the first one as it is drawn; write `generation.json`.

    For ids write `samples.npy` too: [samples, n_tokens], prompt by prompt; -1 after the end of a sample that stopped.

    Args:
        options: options of the command.
        directory: folder for the files.
        write: function that prints a piece of text.

    Returns:
        No lines: everything is printed already.

    Raises:
        UserError: an option, the checkpoint or the prompt is not usable.
    """
    _check_options(options)
    trained = open_checkpoint(options)
    device, precision = device_of(trained.model), chosen_precision(options.precision, options.accelerator)
    prompts, vocabulary = read_prompts(options, trained), trained.vocabulary
    stops = _stops(options.stop, vocabulary)
    repeated = [torch.tensor(prompt.tokens, device=device) for prompt in prompts for _ in range(options.n_samples)]
    sampling = {name: getattr(options, name) for name in ("n_tokens", "top_k", "top_p", "temperature")}
    as_given = {name: getattr(options, name) for name in ("stop", "n_samples", "seed")}
    seeds = [options.seed + sample for _ in prompts for sample in range(options.n_samples)]
    resets = trained.config.memory.reset == "document" and vocabulary.starts_sentences
    document_start = vocabulary.numbers[SENTENCE] if resets else None
    reading: dict[str, Any] = {"document_start": document_start, "closed_documents": trained.closed_sentences}
    reading["segment_len"] = trained.config.evaluation.segment_len
    with autocast(precision, device):  # cached inference checks that it is used as it was set up
        model, context = with_context(trained, options)
        tokens = draw(model, repeated, **sampling, seed=seeds, **reading)
        drawn, times = _write_samples(tokens, prompts, vocabulary, options.n_samples, stops, write)
    samples, entries = iter(drawn), []
    for prompt in prompts:
        true = None if prompt.continuation is None else vocabulary.decode(prompt.continuation)
        listed = [{"text": vocabulary.decode(one), "tokens": one} for one in islice(samples, options.n_samples)]
        told = {**prompt.source, "text": vocabulary.decode(prompt.numbers), "tokens": prompt.numbers}
        entries.append({"prompt": told, "continuation": true, "samples": listed})
    n_drawn, longest = sum(map(len, drawn)), max(map(len, drawn))
    n_after_first = n_drawn - len(drawn)
    speed = n_after_first / (times[-1] - times[1]) if n_after_first else None
    several = options.prompts or options.prompt_file or len(prompts) > 1
    results: dict[str, Any] = {"checkpoint": str(options.checkpoint), "step": trained.step}
    results |= {"prompts": entries} if several else entries[0]
    results |= {"options": {**sampling, **as_given, "precision": precision}, "context": context}
    results |= {"prompt_seconds": round(times[1] - times[0], 4), "tokens_per_second": speed}
    if vocabulary.level == "ids":
        padded = [one + [NO_ID] * (longest - len(one)) for one in drawn]
        write_atomically(directory / "samples.npy", lambda path: np.save(path, padded))
    write_json(directory / "generation.json", results, ensure_ascii=False)
    write(f"{n_drawn:,} tokens{f', {speed:,.0f} a second' if speed else ''}; {context}\n")
    return []


def _check_options(options: GenerateOptions) -> None:
    names = ("prompt", "prompts", "prompt_file", "prompt_ids", "context")
    given = [name for name in names if getattr(options, name) is not None] or ["prompt"]
    chosen = getattr(options, given[-1])
    require(len(given) == 1 and chosen is not None, given[-1], chosen, f"one of {', '.join(names)} must be given")
    check_values(options)
    check_sampling(options.top_k, options.top_p, options.temperature)
    at_a_position = options.position is None or (options.context is not None and options.position >= 0)
    require(at_a_position, "position", options.position, "must be an integer >= 0, with context=N")


def with_context(trained: TrainedModel, options: GenerateOptions) -> tuple[GenerativeModel, str]:
    """Return the model with the context of its samples, and a description of that context."""
    model, config, mem_len = trained.model, trained.config, options.mem_len
    if not isinstance(model, TransformerXL):
        require(mem_len is None, "mem_len", mem_len, f"must be null: {config.model.name} has no such length")
        return model, "context carried in the recurrent state"
    why = model.cannot.get("generation")
    require(why is None, "checkpoint", options.checkpoint, f"cannot generate: {why}")
    if config.memory.mem_len == 0 and mem_len is None:
        window = training_lengths(config).window
        words = f"context: the last {window} tokens, as in training, recomputed for every token"
        return SlidingWindow(model, window), words
    own = config.evaluation
    evaluation = replace(own, mem_len=own.mem_len if mem_len is None else mem_len, ext_len=0)
    carried = Carried(trained, evaluation, clamped=True)
    memory, given = carried.lengths.memory, "must be given: the run was evaluated without memory"
    require(bool(memory), "mem_len", memory, given)
    return carried.model(), f"memory of {memory:,} tokens"


def _write_samples(
    tokens: Iterator[Tensor], prompts: list[Prompt], vocabulary: Vocabulary, n_samples: int, stops: Stops, write: Write
) -> tuple[list[list[int]], list[float]]:
    """Draw the samples and write them: the first while it is drawn, the others afterwards.

    Returns:
        Tokens of every sample, prompt by prompt; times, in seconds, before the first and after every token.
    """
    drawn: list[list[int]] = [[] for _ in range(len(prompts) * n_samples)]
    times, ends = [time.perf_counter()], [Ending(vocabulary, stops) for _ in drawn]
    for row, sample in enumerate(drawn):
        prompt, number = prompts[row // n_samples], row % n_samples + 1
        decoder = StreamDecoder(vocabulary)
        before = f"--- {prompt.title}\n{visible(decoder.feed(prompt.numbers))}\n"
        write(f"{before if number == 1 else ''}--- sample {number}\n")
        if row > 0:
            write(visible(decoder.feed(sample)))
        for token_B in tokens:  # in the first row; it has ended in the others
            times.append(time.perf_counter())
            if not ends[row].reached:
                write(visible(decoder.feed(token_B[:1].tolist())))
            for of_row, end, token in zip(drawn, ends, token_B.tolist(), strict=True):
                if not end.reached:
                    of_row.append(token)
                    end.feed(token)
            if all(end.reached for end in ends):
                break
        write(f"{visible(decoder.finish())}\n")
    write("---\n")
    return drawn, times


class Ending:
    """Whether a sample has ended: with one of the ids, or with a token that completes one of the texts."""

    def __init__(self, vocabulary: Vocabulary, stops: Stops) -> None:
        self.stops, self.texts = stops, [stop for stop in stops if isinstance(stop, str)]
        self.decoder, self.tail, self.reached = StreamDecoder(vocabulary), "", False

    def feed(self, token: int) -> None:
        """Read the next token."""
        self.tail += self.decoder.feed([token]) if self.texts else ""
        self.reached = token in self.stops or any(text in self.tail for text in self.texts)
        self.tail = self.tail[-max(map(len, self.texts), default=0) :]


def _stops(given: Any, vocabulary: Vocabulary) -> Stops:
    """Return the ids and texts of `stop`.

    Raises:
        OptionError: it has something else.
    """
    stops: list[Any] = given if isinstance(given, list) else [] if given is None else [given]
    allowed = f"must be texts, or ids from 0 to {len(vocabulary) - 1}, or one of them"
    for one in stops:
        good = bool(one) if isinstance(one, str) else type(one) is int and 0 <= one < len(vocabulary)
        require(good, "stop", given, allowed)
    return stops


def visible(text: str) -> str:
    """Replace control characters."""
    return text.translate(CONTROL)


@dataclass(frozen=True)
class Prompt:
    """Tokens to continue.

    Args:
        tokens: tokens, at least one; marked where a document begins, for a run with `memory.reset=document`.
        title: description, for printing.
        source: origin of the tokens, as `generation.json` states it.
        continuation: tokens that follow in the corpus; None for a typed text.
    """

    tokens: list[int]
    title: str
    source: dict[str, Any]
    continuation: list[int] | None = None

    @property
    def numbers(self) -> list[int]:
        """Token numbers without marks."""
        return without_marks(np.array(self.tokens)).tolist()


def read_prompts(options: GenerateOptions, trained: TrainedModel) -> list[Prompt]:
    """Return the tokens to continue, of one prompt or several.

    Raises:
        UserError: `prompt_file` cannot be read or has no prompt, a prompt has a symbol that is not in the vocabulary,
            the corpus is not usable, or the position is not in it.
    """
    if options.context is not None:
        return [_context_prompt(options, trained)]
    vocabulary, closed = trained.vocabulary, trained.closed_sentences
    if options.prompt_ids is not None:
        return _prompts_of_ids(options.prompt_ids, len(vocabulary))
    if options.prompt is not None:
        return [typed_prompt(options.prompt, vocabulary, closed=closed)]
    option, texts = "prompts", options.prompts
    if texts is None:
        option, path = "prompt_file", str(options.prompt_file)
        try:
            texts = [line for line in not_special(path).read_text(encoding="utf-8-sig").split("\n") if line]
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "not UTF-8 text"
            raise OptionError(option, path, f"cannot be read ({reason})") from error
    require(bool(texts), option, getattr(options, option), "must have at least one prompt")
    prompts = [typed_prompt(text, vocabulary, option, closed) for text in texts]
    return [replace(prompt, title=f"{prompt.title}, {number}") for number, prompt in enumerate(prompts, 1)]


def typed_prompt(text: str, vocabulary: Vocabulary, option: str = "prompt", closed: bool = False) -> Prompt:
    """Encode a text; words that are not in the vocabulary become `<unk>`.

    Args:
        text: the prompt.
        vocabulary: vocabulary of the checkpoint.
        option: option that gave it, for errors.
        closed: put `<S>` at the ends of sentences too. The last one is continued, unless a line break ends it.

    Raises:
        OptionError: a byte or character is not in the vocabulary, or a word is not and there is no `<unk>`.
    """
    shown = f"{text!r:.{MOST_SHOWN}}"
    try:
        tokens = replace(vocabulary, lenient=False).encode(text.encode())
    except UserError as error:
        raise OptionError(option, shown, str(error)) from error
    if closed:
        tokens, _ = close_sentences(tokens, vocabulary.numbers[SENTENCE])
    ended = closed or (vocabulary.level == "word" and not vocabulary.starts_sentences)
    if ended and not text.endswith("\n"):
        tokens = tokens[:-1]  # drop the end of the line, which the sample continues
    require(len(tokens) >= 1, option, shown, "must have at least one token of the checkpoint's vocabulary")
    words = dict.fromkeys(text.split()) if vocabulary.level == "word" else ()
    unknown = [word for word in words if word not in vocabulary.numbers]
    named = f" ({', '.join(map(repr, unknown))} read as {vocabulary.symbols[vocabulary.unknown]})" if unknown else ""
    return Prompt(tokens.tolist(), f"prompt{named}", {"prompt": text, "unknown": unknown})


def _prompts_of_ids(given: Any, vocab_size: int) -> list[Prompt]:
    """Return the ids of a list or of a `.npy` file: of one prompt, or of one in each row.

    Raises:
        OptionError: these are no ids of the vocabulary, or none at all.
    """
    is_file = isinstance(given, str) and given.endswith(".npy")
    try:
        ids = np.load(not_special(given)).tolist() if is_file else given
    except (OSError, ValueError, EOFError) as error:
        raise OptionError("prompt_ids", given, f"cannot be read ({error})") from error
    rows = ids if isinstance(ids, list) and ids and isinstance(ids[0], list) else [ids]
    for row in rows:
        good = isinstance(row, list) and bool(row) and all(isinstance(n, int) and 0 <= n < vocab_size for n in row)
        require(good, "prompt_ids", given, f"must be a list or a .npy file of ids from 0 to {vocab_size - 1}")
    return [Prompt(row, f"prompt of {len(row)} ids, {i}", {"prompt_ids": given}) for i, row in enumerate(rows, 1)]


def _context_prompt(options: GenerateOptions, trained: TrainedModel) -> Prompt:
    """Return `context` consecutive tokens of a split, and the tokens that follow."""
    corpus, split = corpus_and_split(trained, options, "test")
    tokens, n = corpus.splits[split], options.context or 0
    allowed = f"must be in 1 … {len(tokens)}, the tokens of {split} in {corpus.name}"
    require(n <= len(tokens), "context", n, allowed)
    last = len(tokens) - n
    position = options.position
    if position is None:
        # Leave room for the whole continuation if the split is long enough.
        position = int(np.random.default_rng(options.seed).integers(max(last - options.n_tokens, 0) + 1))
    require(position <= last, "position", position, f"must be in 0 … {last} with context={n}")
    source = {"corpus": corpus.name, "sha256": corpus.checksum, "split": split, "position": position, "context": n}
    title = f"context: {n} tokens of {corpus.name} ({split}) from token {position:,} on"
    following = without_marks(tokens[position + n : position + n + options.n_tokens])
    return Prompt(tokens[position : position + n].tolist(), title, source, following.tolist())
