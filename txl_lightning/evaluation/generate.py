"""`txl generate`: sample text from a checkpoint and print it as it is drawn (appendix E)."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from txl_lightning.config.lengths import training_lengths
from txl_lightning.data.vocabulary import SENTENCE, StreamDecoder, Vocabulary, without_marks
from txl_lightning.errors import require
from txl_lightning.evaluation.commands import open_checkpoint, open_text, options_as_typed
from txl_lightning.evaluation.hardware import autocast, chosen_precision
from txl_lightning.evaluation.losses import device_of
from txl_lightning.evaluation.options import GenerateOptions
from txl_lightning.evaluation.protocol import with_lengths
from txl_lightning.evaluation.trained import TrainedModel, naming
from txl_lightning.files import write_json
from txl_lightning.model.inference.generation import GenerativeModel, Sampling
from txl_lightning.model.inference.generation import generate as draw
from txl_lightning.model.inference.sliding_window import SlidingWindow
from txl_lightning.model.transformer_xl import TransformerXL

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
    given = (options.prompt, options.prompt_ids, options.context)
    allowed = "one of prompt, prompt_ids, context must be given"
    require(given.count(None) == 2, "prompt", options.prompt, allowed)
    Sampling(options.top_k, options.top_p, options.temperature).check()
    require(options.stop != "", "stop", options.stop, "must be a text, or null")
    trained = open_checkpoint(options)
    prompt = read_prompt(options, trained)
    prompt["text"] = trained.vocabulary.decode(prompt["tokens"])
    samples = []
    started = time.perf_counter()
    precision = chosen_precision(options.precision, options.accelerator)
    # Cached inference checks that autocast stays the same.
    with autocast(precision, device_of(trained.model)):
        model, context = with_context(trained, options)
        write(f"--- prompt\n{visible(prompt['text'])}\n")
        for number in range(options.n_samples):
            write(f"--- sample {number + 1}\n")
            drawn = draw_tokens(
                model,
                trained,
                options,
                prompt["tokens"],
                options.seed + number,
            )
            tokens = write_sample(drawn, prompt["tokens"], trained, options.stop, write)
            samples.append({"text": trained.vocabulary.decode(tokens), "tokens": tokens})
    seconds = time.perf_counter() - started
    results = {
        "checkpoint": str(options.checkpoint),
        "step": trained.step,
        "prompt": prompt,
        "continuation": prompt.pop("continuation", None),
        "samples": samples,
        "context": context,
        "precision": precision,
        "seconds": round(seconds, 4),
    }
    write_json(directory / "generation.json", results, ensure_ascii=False)
    n_drawn = sum(len(sample["tokens"]) for sample in samples)
    write(f"---\n{n_drawn:,} tokens, {n_drawn / seconds:,.0f} a second; {context}\n")
    return []


def with_context(trained: TrainedModel, options: GenerateOptions) -> tuple[GenerativeModel, str]:
    """Return the model with its samples' context, and a description of that context."""
    model = trained.model
    if not isinstance(model, TransformerXL):
        allowed = f"must be null: {trained.config.model.name} has no such length"
        require(options.mem_len is None, "mem_len", options.mem_len, allowed)
        return model, "context carried in the recurrent state"
    protocol = replace(
        with_lengths(
            trained,
            options,
            False,
            ext_len=0,
        ),
        clamped=True,
    )
    if protocol.lengths.mem_len:
        return protocol.model(), f"memory of {protocol.lengths.mem_len:,} tokens"
    window = training_lengths(trained.config).window
    words = f"context: the last {window} tokens, as in training, recomputed for every token"
    return SlidingWindow(model, window), words


def read_prompt(options: GenerateOptions, trained: TrainedModel) -> dict[str, Any]:
    """Return the `tokens` to continue, and where they come from; unknown words become `<unk>`.

    Raises:
        UserError: the prompt has a symbol that is not in the vocabulary, the corpus is not usable, or the position is
            not in it.
    """
    if options.context is not None:
        return context_prompt(options, trained, options.context)
    if options.prompt_ids is not None:
        ids = options.prompt_ids
        last = len(trained.vocabulary) - 1
        fits = bool(ids) and min(ids) >= 0 and max(ids) <= last
        require(fits, "prompt_ids", ids, f"must be a list of ids from 0 to {last}")
        return {"tokens": ids}
    text = options.prompt or ""
    shown = f"{text!r:.40}"
    with naming("prompt", shown):
        vocabulary = replace(trained.vocabulary, lenient=False)
        tokens = replace(trained, vocabulary=vocabulary).encode(text)
    allowed = "must have at least one token of the checkpoint's vocabulary"
    require(bool(tokens), "prompt", shown, allowed)
    return {"tokens": tokens}


def context_prompt(
    options: GenerateOptions, trained: TrainedModel, n_context: int
) -> dict[str, Any]:
    """Return consecutive tokens from a split, and the text that follows as their `continuation`."""
    corpus, (split,) = open_text(
        trained,
        options,
        options.split,
        ["test"],
    )
    tokens = without_marks(corpus.splits[split])
    last = len(tokens) - n_context
    allowed = f"must be in 1 … {len(tokens)}, the tokens of {split} in {corpus.name}"
    require(last >= 0, "context", n_context, allowed)
    allowed = f"must be in 0 … {last} with context={n_context}"
    require(options.position <= last, "position", options.position, allowed)
    end = options.position + n_context
    return {
        "corpus": corpus.facts(),
        "split": split,
        "position": options.position,
        "tokens": tokens[options.position : end].tolist(),
        "continuation": trained.vocabulary.decode(tokens[end : end + options.n_tokens]),
    }


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
    if trained.marks_documents and vocabulary.starts_sentences:
        reading["document_start"] = vocabulary.numbers[SENTENCE]
    document = last_document(trained, tokens)
    n_left = options.n_tokens
    while n_left > 0:
        read_1T = torch.tensor([document], device=device_of(trained.model))
        document = list(document)
        for token_1 in draw(model, read_1T, n_left, **reading):
            document.append(int(token_1))
            yield document[-1]
            n_left -= 1
            if ends_line(vocabulary, document[-1]):
                begun = last_document(trained, document)
                if len(begun) < len(document):
                    document = begun
                    break


def ends_line(vocabulary: Vocabulary, token: int) -> bool:
    """Return whether a token ends what `data.document_start` is compared with: a line, or at level ids an id."""
    return vocabulary.level == "ids" or vocabulary.decode([token]).endswith("\n")


def last_document(trained: TrainedModel, tokens: list[int]) -> list[int]:
    """Return the tokens from the last document on, for a run with `memory.reset=document`.

    A line that matches `data.document_start` begins a document; at level ids an id does, by its number or name.
    """
    start = trained.config.data.document_start
    if not trained.marks_documents or start is None:
        return tokens
    vocabulary = trained.vocabulary
    pattern = re.compile(start.encode(), re.MULTILINE)
    document = 0
    line = 0
    for end, token in enumerate(tokens, 1):
        if end < len(tokens) and not ends_line(vocabulary, token):
            continue
        text = vocabulary.decode(tokens[line:end]).encode()
        match = pattern.search(text)
        if vocabulary.level == "ids":
            match = pattern.fullmatch(text) or pattern.fullmatch(b"%d" % token)
        if match is not None:
            document = line
        line = end
    return tokens[document:]


def write_sample(
    drawn: Iterable[int], prompt: list[int], trained: TrainedModel, stop: str | None, write: Write
) -> list[int]:
    """Write a sample while it is drawn, up to the token that completes the stop; return its tokens."""
    decoder = StreamDecoder(trained.vocabulary)
    decoder.feed(prompt)
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
    """Replace control characters, which byte models can draw: the terminal must not obey them."""
    return re.sub(r"[^\n\t\x20-\x7e\xa0-\U0010ffff]", "\ufffd", text)
