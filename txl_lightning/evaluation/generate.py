"""`txl generate`: sample text from a checkpoint and print it as it is drawn (appendix E)."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from txl_lightning.config.lengths import training_lengths
from txl_lightning.config.schemas import check_values
from txl_lightning.data.vocabulary import SENTENCE, StreamDecoder, Vocabulary, without_marks
from txl_lightning.errors import OptionError, UserError, require
from txl_lightning.evaluation.commands import corpus_and_split, open_checkpoint, options_as_typed
from txl_lightning.evaluation.hardware import autocast, chosen_precision
from txl_lightning.evaluation.losses import device_of
from txl_lightning.evaluation.options import GenerateOptions
from txl_lightning.evaluation.protocol import Protocol
from txl_lightning.evaluation.texts import OpenDocument, document_pattern, encode_open, split_documents
from txl_lightning.evaluation.trained import TrainedModel
from txl_lightning.files import write_atomically, write_json
from txl_lightning.model.inference.generation import GenerativeModel, check_sampling
from txl_lightning.model.inference.generation import generate as draw
from txl_lightning.model.inference.sliding_window import SlidingWindow
from txl_lightning.model.transformer_xl import TransformerXL

MOST_SHOWN = 40  # characters of a prompt in a message
# Models of bytes can draw control characters. They are shown as a sign, so that the terminal does not obey them.
CONTROL = {code: "\ufffd" for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"}
NO_ID = -1  # in `samples.npy`

Write = Callable[[str], None]


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
    check_options(options)
    trained = open_checkpoint(options)
    samples = []
    for prompt in read_prompts(options, trained):
        for number in range(options.n_samples):
            samples.append(Sample(prompt, number + 1, Ending(options.stop, trained.vocabulary)))
    precision = chosen_precision(options.precision, options.accelerator)
    with autocast(precision, device_of(trained.model)):  # cached inference checks that autocast stays the same
        model, context = with_context(trained, options)
        speed = write_samples(draw_tokens(model, trained, options, samples), samples, trained.vocabulary, write)
    results = {
        "checkpoint": str(options.checkpoint),
        "step": trained.step,
        **entries_of_prompts(samples, options, trained.vocabulary),
        "options": sampling_facts(options, precision),
        "context": context,
        **speed,
    }
    if trained.vocabulary.level == "ids":
        write_ids([sample.tokens for sample in samples], directory / "samples.npy")
    write_json(directory / "generation.json", results, ensure_ascii=False)
    n_drawn = sum(len(sample.tokens) for sample in samples)
    rate = ""
    if speed["tokens_per_second"]:
        rate = f", {speed['tokens_per_second']:,.0f} a second"
    write(f"{n_drawn:,} tokens{rate}; {context}\n")
    return []


def check_options(options: GenerateOptions) -> None:
    """Refuse options that do not go together.

    Raises:
        OptionError: naming one of them.
    """
    names = ("prompt", "prompts", "prompt_ids", "context")
    given = [name for name in names if getattr(options, name) is not None]
    name = given[-1] if given else "prompt"
    require(len(given) == 1, name, getattr(options, name), f"one of {', '.join(names)} must be given")
    check_values(options)
    check_sampling(options.top_k, options.top_p, options.temperature)
    position = options.position
    fits = position is None or (options.context is not None and position >= 0)
    require(fits, "position", position, "must be an integer >= 0, with context=N")


def with_context(trained: TrainedModel, options: GenerateOptions) -> tuple[GenerativeModel, str]:
    """Return the model with the context of its samples, and a description of that context."""
    model = trained.model
    config = trained.config
    if not isinstance(model, TransformerXL):
        allowed = f"must be null: {config.model.name} has no such length"
        require(options.mem_len is None, "mem_len", options.mem_len, allowed)
        return model, "context carried in the recurrent state"
    reason = model.cannot.get("generation")
    require(reason is None, "checkpoint", options.checkpoint, f"cannot generate: {reason}")
    if config.memory.mem_len == 0 and options.mem_len is None:
        window = training_lengths(config).window
        words = f"context: the last {window} tokens, as in training, recomputed for every token"
        return SlidingWindow(model, window), words
    mem_len = config.evaluation.mem_len if options.mem_len is None else options.mem_len
    protocol = Protocol(trained, replace(config.evaluation, mem_len=mem_len, ext_len=0), clamped=True)
    memory = protocol.lengths.memory
    require(bool(memory), "mem_len", memory, "must be given: the run was evaluated without memory")
    return protocol.model(), f"memory of {memory:,} tokens"


@dataclass(frozen=True)
class Prompt:
    """Tokens to continue.

    Args:
        tokens: at least one; -1 - token where a document begins, for a run with `memory.reset=document`.
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
        UserError: there is no prompt, one has a symbol that is not in the vocabulary, the corpus is not usable, or the
            position is not in it.
    """
    if options.context is not None:
        return [context_prompt(options, trained)]
    if options.prompt_ids is not None:
        return [prompt_of_ids(options.prompt_ids, len(trained.vocabulary))]
    if options.prompt is not None:
        return [typed_prompt(options.prompt, trained)]
    texts = options.prompts or []
    require(bool(texts), "prompts", texts, "must have at least one prompt")
    prompts = []
    for number, text in enumerate(texts, 1):
        prompt = typed_prompt(text, trained, "prompts")
        prompts.append(replace(prompt, title=f"{prompt.title}, {number}"))
    return prompts


def typed_prompt(text: str, trained: TrainedModel, option: str = "prompt") -> Prompt:
    """Encode a text as the corpus is; words that are not in the vocabulary become `<unk>`.

    Args:
        text: the prompt.
        trained: contents of the checkpoint.
        option: option that gave it, for errors.

    Raises:
        OptionError: a byte or character is not in the vocabulary, or a word is not and there is no `<unk>`.
    """
    vocabulary = replace(trained.vocabulary, lenient=False)
    shown = f"{text!r:.{MOST_SHOWN}}"
    tokens: list[int] = []
    try:
        for document in split_documents(text, document_pattern(trained)):
            of_document = encode_open(vocabulary, document, trained.closed_sentences)
            if tokens and of_document:
                of_document[0] = -1 - of_document[0]
            tokens += of_document
    except UserError as error:
        raise OptionError(option, shown, str(error)) from error
    require(bool(tokens), option, shown, "must have at least one token of the checkpoint's vocabulary")
    unknown: list[str] = []
    if vocabulary.level == "word":
        unknown = [word for word in dict.fromkeys(text.split()) if word not in vocabulary.numbers]
    title = "prompt"
    if unknown:
        words = ", ".join(repr(word) for word in unknown)
        title += f" ({words} read as {vocabulary.symbols[vocabulary.unknown]})"
    return Prompt(tokens, title, {"prompt": text, "unknown": unknown})


def prompt_of_ids(ids: list[int], vocab_size: int) -> Prompt:
    """Return the prompt of a list of ids.

    Raises:
        OptionError: one is not in the vocabulary, or there is none.
    """
    fits = bool(ids) and all(0 <= number < vocab_size for number in ids)
    require(fits, "prompt_ids", ids, f"must be a list of ids from 0 to {vocab_size - 1}")
    return Prompt(list(ids), f"prompt of {len(ids)} ids", {"prompt_ids": list(ids)})


def context_prompt(options: GenerateOptions, trained: TrainedModel) -> Prompt:
    """Return `context` consecutive tokens of a split, and the tokens that follow."""
    corpus, split = corpus_and_split(trained, options, "test")
    tokens = corpus.splits[split]
    n_context = options.context or 0
    last = len(tokens) - n_context
    allowed = f"must be in 1 … {len(tokens)}, the tokens of {split} in {corpus.name}"
    require(last >= 0, "context", n_context, allowed)
    position = options.position
    if position is None:
        # Leave room for the whole continuation if the split is long enough.
        n_places = max(last - options.n_tokens, 0) + 1
        position = int(np.random.default_rng(options.seed).integers(n_places))
    require(position <= last, "position", position, f"must be in 0 … {last} with context={n_context}")
    end = position + n_context
    source = {
        "corpus": corpus.name,
        "sha256": corpus.checksum,
        "split": split,
        "position": position,
        "context": n_context,
    }
    title = f"context: {n_context} tokens of {corpus.name} ({split}) from token {position:,} on"
    following = without_marks(tokens[end : end + options.n_tokens])
    return Prompt(tokens[position:end].tolist(), title, source, following.tolist())


class Ending:
    """Tells whether a sample has ended: with one of the ids, or with a token that completes one of the texts.

    Args:
        stop: texts or ids, or one of them; None for neither.
        vocabulary: vocabulary of the tokens.

    Raises:
        OptionError: `stop` has something else.
    """

    def __init__(self, stop: Any, vocabulary: Vocabulary) -> None:
        stops = stop if isinstance(stop, list) else [stop]
        self.ids: list[int] = []
        self.texts: list[str] = []
        for one in stops:
            if isinstance(one, str) and one:
                self.texts.append(one)
            elif type(one) is int and 0 <= one < len(vocabulary):
                self.ids.append(one)
            elif stop is not None:
                allowed = f"must be texts, or ids from 0 to {len(vocabulary) - 1}, or one of them"
                raise OptionError("stop", stop, allowed)
        self.longest = max((len(text) for text in self.texts), default=0)
        self.decoder = StreamDecoder(vocabulary)
        self.text = ""

    def after(self, token: int) -> bool:
        """Return whether the sample ends with this token."""
        if self.texts:
            self.text = self.text[-self.longest :] + self.decoder.feed([token])
        return token in self.ids or any(text in self.text for text in self.texts)


@dataclass
class Sample:
    """Continuation of a prompt.

    Args:
        prompt: the prompt.
        number: place among the samples of the prompt, from 1.
        ending: tells where it ends.
        tokens: drawn tokens.
        ended: whether it has ended.
    """

    prompt: Prompt
    number: int
    ending: Ending
    tokens: list[int] = field(default_factory=list)
    ended: bool = False

    def add(self, token: int) -> None:
        """Add a drawn token, unless the sample has ended."""
        if not self.ended:
            self.tokens.append(token)
            self.ended = self.ending.after(token)


def draw_tokens(
    model: GenerativeModel, trained: TrainedModel, options: GenerateOptions, samples: Sequence[Sample]
) -> Iterator[Tensor]:
    """Yield the next token of every sample, [S].

    With `memory.reset=document` a sample that begins a document is continued from this document alone.
    """
    vocabulary = trained.vocabulary
    reading: dict[str, Any] = {
        "top_k": options.top_k,
        "top_p": options.top_p,
        "temperature": options.temperature,
        "seed": [torch.Generator().manual_seed(options.seed + sample.number - 1) for sample in samples],
        "segment_len": trained.config.evaluation.segment_len,
        "closed_documents": trained.closed_sentences,
    }
    if trained.config.memory.reset == "document" and vocabulary.starts_sentences:
        reading["document_start"] = vocabulary.numbers[SENTENCE]
    pattern = document_pattern(trained)
    device = device_of(trained.model)
    texts = [sample.prompt.tokens for sample in samples]
    if pattern is None:
        yield from draw(model, [torch.tensor(text, device=device) for text in texts], options.n_tokens, **reading)
        return
    documents = [OpenDocument(text, vocabulary, pattern) for text in texts]
    n_left = options.n_tokens
    while n_left > 0:
        visible = [torch.tensor(document.tokens, device=device) for document in documents]
        for token_S in draw(model, visible, n_left, **reading):
            yield token_S
            n_left -= 1
            begun = [document.add(token) for document, token in zip(documents, token_S.tolist(), strict=True)]
            if any(begun):
                break


def write_samples(
    drawn: Iterator[Tensor], samples: list[Sample], vocabulary: Vocabulary, write: Write
) -> dict[str, float | None]:
    """Draw the samples and write them: the first while it is drawn, the others afterwards.

    Returns:
        `prompt_seconds`, until the first token, and `tokens_per_second` after it.
    """
    started = time.perf_counter()
    ended_steps = []
    first = samples[0]
    decoder = write_start(first, vocabulary, write)
    for token_S in drawn:
        ended_steps.append(time.perf_counter())
        if not first.ended:
            write(visible(decoder.feed(token_S[:1].tolist())))
        for sample, token in zip(samples, token_S.tolist(), strict=True):
            sample.add(token)
        if all(sample.ended for sample in samples):
            break
    write(f"{visible(decoder.finish())}\n")
    for sample in samples[1:]:
        decoder = write_start(sample, vocabulary, write)
        write(f"{visible(decoder.feed(sample.tokens))}{visible(decoder.finish())}\n")
    write("---\n")
    n_after_first = sum(len(sample.tokens) for sample in samples) - len(samples)
    tokens_per_second = None
    if n_after_first:
        tokens_per_second = n_after_first / (ended_steps[-1] - ended_steps[0])
    return {"prompt_seconds": round(ended_steps[0] - started, 4), "tokens_per_second": tokens_per_second}


def write_start(sample: Sample, vocabulary: Vocabulary, write: Write) -> StreamDecoder:
    """Write what stands before a sample, the prompt before its first one; return the decoder after the prompt."""
    decoder = StreamDecoder(vocabulary)
    prompt = visible(decoder.feed(sample.prompt.numbers))
    heading = ""
    if sample.number == 1:
        heading = f"--- {sample.prompt.title}\n{prompt}\n"
    write(f"{heading}--- sample {sample.number}\n")
    return decoder


def visible(text: str) -> str:
    """Replace control characters."""
    return text.translate(CONTROL)


def entries_of_prompts(samples: list[Sample], options: GenerateOptions, vocabulary: Vocabulary) -> dict[str, Any]:
    """Return the entries of `generation.json`: prompt, continuation and samples; of several prompts a list of these."""
    entries = []
    for first in range(0, len(samples), options.n_samples):
        of_prompt = samples[first : first + options.n_samples]
        prompt = of_prompt[0].prompt
        continuation = None
        if prompt.continuation is not None:
            continuation = vocabulary.decode(prompt.continuation)
        entry = {
            "prompt": {**prompt.source, "text": vocabulary.decode(prompt.numbers), "tokens": prompt.numbers},
            "continuation": continuation,
            "samples": [{"text": vocabulary.decode(one.tokens), "tokens": one.tokens} for one in of_prompt],
        }
        entries.append(entry)
    if options.prompts is not None:
        return {"prompts": entries}
    return entries[0]


def sampling_facts(options: GenerateOptions, precision: str) -> dict[str, Any]:
    """Return the options of sampling as `generation.json` has them."""
    names = ("n_tokens", "top_k", "top_p", "temperature", "stop", "n_samples", "seed")
    facts = {name: getattr(options, name) for name in names}
    facts["precision"] = precision
    return facts


def write_ids(samples: list[list[int]], path: Path) -> None:
    """Write the ids of samples, [samples, n_tokens], as an array of numpy."""
    longest = max(len(tokens) for tokens in samples)
    ids = np.full((len(samples), longest), NO_ID)
    for row, tokens in enumerate(samples):
        ids[row, : len(tokens)] = tokens
    write_atomically(path, lambda file: np.save(file, ids))
