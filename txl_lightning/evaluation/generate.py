"""`txl generate`: sample text from a checkpoint and print it as it is drawn (appendix E)."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from txl_lightning.config.lengths import training_lengths
from txl_lightning.data.vocabulary import SENTENCE, StreamDecoder, Vocabulary, without_marks
from txl_lightning.errors import OptionError, UserError, require
from txl_lightning.evaluation.commands import open_checkpoint, open_text, options_as_typed
from txl_lightning.evaluation.hardware import autocast, chosen_precision
from txl_lightning.evaluation.losses import device_of
from txl_lightning.evaluation.options import GenerateOptions
from txl_lightning.evaluation.protocol import with_lengths
from txl_lightning.evaluation.texts import (
    begun_document,
    document_pattern,
    encode_open,
    last_document,
)
from txl_lightning.evaluation.trained import TrainedModel
from txl_lightning.files import write_json
from txl_lightning.model.inference.generation import GenerativeModel, Sampling
from txl_lightning.model.inference.generation import generate as draw
from txl_lightning.model.inference.sliding_window import SlidingWindow
from txl_lightning.model.transformer_xl import TransformerXL

PROMPTS = ("prompt", "prompt_ids", "context")
# Byte models can draw control characters. They are shown as a sign, so the terminal does not obey them.
CODES = (
    *range(9),
    *range(
        11,
        32,
    ),
    *range(127, 160),
)
CONTROL = str.maketrans(dict.fromkeys(CODES, "\ufffd"))

Write = Callable[[str], None]


def show(text: str) -> None:
    """Print text at once; characters that the terminal cannot encode become `?`."""
    encoding = sys.stdout.encoding or "utf-8"
    shown = text.encode(encoding, errors="replace").decode(encoding)
    print(shown, end="", flush=True)


@options_as_typed()
def run(options: GenerateOptions, directory: Path, write: Write = show) -> list[str]:
    """Draw the samples one after the other, print them as they are drawn, and write `generation.json`.

    Args:
        options: the command's options.
        directory: folder for the files.
        write: function that prints a piece of text.

    Returns:
        No lines: everything is printed already.

    Raises:
        UserError: an option, the checkpoint or the prompt is not usable.
    """
    check_options(options)
    trained = open_checkpoint(options)
    vocabulary = trained.vocabulary
    prompt = read_prompt(options, trained)
    text = vocabulary.decode(prompt.numbers)
    samples = []
    started = time.perf_counter()
    precision = chosen_precision(options.precision, options.accelerator)
    # Cached inference checks that autocast stays the same.
    with autocast(precision, device_of(trained.model)):
        model, context = with_context(trained, options)
        write(f"--- {prompt.title}\n{visible(text)}\n")
        for number in range(options.n_samples):
            write(f"--- sample {number + 1}\n")
            seed = options.seed + number
            drawn = draw_tokens(model, trained, options, prompt.tokens, seed)
            tokens = write_sample(drawn, prompt, vocabulary, options.stop, write)
            samples.append({"text": vocabulary.decode(tokens), "tokens": tokens})
    seconds = time.perf_counter() - started
    n_drawn = sum(len(sample["tokens"]) for sample in samples)
    results = {
        "checkpoint": str(options.checkpoint),
        "step": trained.step,
        "prompt": {**prompt.source, "text": text, "tokens": prompt.numbers},
        "continuation": prompt.continuation,
        "samples": samples,
        "context": context,
        "precision": precision,
        "seconds": round(seconds, 4),
    }
    write_json(directory / "generation.json", results, ensure_ascii=False)
    write(f"---\n{n_drawn:,} tokens, {n_drawn / seconds:,.0f} a second; {context}\n")
    return []


def check_options(options: GenerateOptions) -> None:
    """Refuse options that do not go together.

    Raises:
        OptionError: names the option.
    """
    given = [name for name in PROMPTS if getattr(options, name) is not None]
    name = given[-1] if given else "prompt"
    allowed = f"one of {', '.join(PROMPTS)} must be given"
    require(
        len(given) == 1,
        name,
        getattr(options, name),
        allowed,
    )
    Sampling(options.top_k, options.top_p, options.temperature).check()
    require(options.stop != "", "stop", options.stop, "must be a text, or null")


def with_context(trained: TrainedModel, options: GenerateOptions) -> tuple[GenerativeModel, str]:
    """Return the model with its samples' context, and a description of that context."""
    model = trained.model
    config = trained.config
    if not isinstance(model, TransformerXL):
        allowed = f"must be null: {config.model.name} has no such length"
        require(options.mem_len is None, "mem_len", options.mem_len, allowed)
        return model, "context carried in the recurrent state"
    reason = model.cannot.get("generation")
    allowed = f"cannot generate: {reason}"
    require(reason is None, "checkpoint", options.checkpoint, allowed)
    if config.memory.mem_len == 0 and options.mem_len is None:
        window = training_lengths(config).window
        words = f"context: the last {window} tokens, as in training, recomputed for every token"
        return SlidingWindow(model, window), words
    protocol = replace(with_lengths(trained, options, False, ext_len=0), clamped=True)
    memory = protocol.lengths.mem_len
    require(bool(memory), "mem_len", memory, "must be given: the run was evaluated without memory")
    return protocol.model(), f"memory of {memory:,} tokens"


@dataclass(frozen=True)
class Prompt:
    """Tokens to continue.

    Args:
        title: description, for printing.
        source: where the tokens come from, as `generation.json` states it.
        numbers: all tokens, at least one.
        tokens: the tokens that the model reads: with `memory.reset=document` from the last document start on.
        continuation: text that follows in the corpus; None for a typed text.
    """

    title: str
    source: dict[str, Any]
    numbers: list[int]
    tokens: list[int]
    continuation: str | None = None


def read_prompt(options: GenerateOptions, trained: TrainedModel) -> Prompt:
    """Return the tokens to continue.

    Raises:
        UserError: the prompt has a symbol that is not in the vocabulary, the corpus is not usable, or the position is
            not in it.
    """
    if options.context is not None:
        return context_prompt(options, trained, options.context)
    if options.prompt_ids is None:
        return typed_prompt(options.prompt or "", trained)
    ids = list(options.prompt_ids)
    vocab_size = len(trained.vocabulary)
    fits = bool(ids) and min(ids) >= 0 and max(ids) < vocab_size
    require(fits, "prompt_ids", ids, f"must be a list of ids from 0 to {vocab_size - 1}")
    return Prompt(
        f"prompt of {len(ids)} ids",
        {"prompt_ids": ids},
        ids,
        ids,
    )


def typed_prompt(text: str, trained: TrainedModel) -> Prompt:
    """Encode a text as the corpus is; words that are not in the vocabulary become `<unk>`, which the title shows.

    Raises:
        OptionError: a byte or character is not in the vocabulary, or a word is not and there is no `<unk>`.
    """
    vocabulary = replace(trained.vocabulary, lenient=False)
    shown = f"{text!r:.40}"
    last = last_document(text, document_pattern(trained))
    try:
        numbers = encode_open(vocabulary, text, trained.closed_sentences)
        tokens = encode_open(vocabulary, last, trained.closed_sentences)
    except UserError as error:
        raise OptionError("prompt", shown, str(error)) from error
    allowed = "must have at least one token of the checkpoint's vocabulary"
    require(bool(tokens), "prompt", shown, allowed)
    return Prompt("prompt", {"prompt": text}, numbers, tokens)


def context_prompt(options: GenerateOptions, trained: TrainedModel, n_context: int) -> Prompt:
    """Return consecutive tokens from a split, and the text that follows."""
    corpus, (split,) = open_text(trained, options, options.split, ["test"])
    tokens = corpus.splits[split]
    last = len(tokens) - n_context
    allowed = f"must be in 1 … {len(tokens)}, the tokens of {split} in {corpus.name}"
    require(last >= 0, "context", n_context, allowed)
    position = options.position
    allowed = f"must be in 0 … {last} with context={n_context}"
    require(position <= last, "position", position, allowed)
    end = position + n_context
    context = np.asarray(tokens[position:end])
    numbers = without_marks(context).tolist()
    begin = 0
    if document_pattern(trained) is not None:
        begin = int(
            max(
                np.flatnonzero(context < 0),
                default=0,
            )
        )  # document marks
    source = {
        "corpus": corpus.name,
        "sha256": corpus.checksum,
        "split": split,
        "position": position,
        "context": n_context,
    }
    title = f"context: {n_context} tokens of {corpus.name} ({split}) from token {position:,} on"
    following = without_marks(tokens[end : end + options.n_tokens])
    continuation = trained.vocabulary.decode(following)
    return Prompt(title, source, numbers, numbers[begin:], continuation)


def draw_tokens(
    model: GenerativeModel,
    trained: TrainedModel,
    options: GenerateOptions,
    tokens: list[int],
    seed: int,
) -> Iterator[int]:
    """Yield a sample's tokens; where a document begins, the model goes on from this document alone."""
    vocabulary = trained.vocabulary
    reading: dict[str, Any] = {
        "top_k": options.top_k,
        "top_p": options.top_p,
        "temperature": options.temperature,
        "seed": torch.Generator().manual_seed(seed),
        "segment_len": trained.config.evaluation.segment_len,
        "closed_documents": trained.closed_sentences,
    }
    if trained.config.memory.reset == "document" and vocabulary.starts_sentences:
        reading["document_start"] = vocabulary.numbers[SENTENCE]
    pattern = document_pattern(trained)
    document = list(tokens)
    n_left = options.n_tokens
    while n_left > 0:
        read_1T = torch.tensor([document], device=device_of(trained.model))
        for token_1 in draw(model, read_1T, n_left, **reading):
            token = int(token_1)
            yield token
            n_left -= 1
            document.append(token)
            begun = begun_document(document, vocabulary, pattern)
            if begun:
                document = begun
                break


def write_sample(
    drawn: Iterator[int], prompt: Prompt, vocabulary: Vocabulary, stop: str | None, write: Write
) -> list[int]:
    """Write a sample while it is drawn, up to the token that completes the stop; return its tokens."""
    decoder = StreamDecoder(vocabulary)
    decoder.feed(prompt.numbers)
    tokens = []
    text = ""
    for token in drawn:
        tokens.append(token)
        piece = decoder.feed([token])
        write(visible(piece))
        text += piece
        if stop is not None and stop in text:
            break
    write(f"{visible(decoder.finish())}\n")
    return tokens


def visible(text: str) -> str:
    """Replace control characters."""
    return text.translate(CONTROL)
