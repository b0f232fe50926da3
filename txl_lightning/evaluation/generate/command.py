"""`txl generate`: sample text from a checkpoint and print it as it is drawn (appendix E)."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from txl_lightning.config.lengths import clamp_untrained, evaluation_lengths, extended_context
from txl_lightning.config.schemas import TransformerXLModelConfig
from txl_lightning.data.vocabulary import SENTENCE, StreamDecoder, Vocabulary
from txl_lightning.errors import require
from txl_lightning.evaluation.generate.options import GenerateOptions
from txl_lightning.evaluation.generate.prompts import Prompt, check_prompt, read_prompts
from txl_lightning.evaluation.scoring.option_checks import (
    check_at_least_one,
    check_common_options,
    chosen_device,
    options_as_typed,
)
from txl_lightning.evaluation.scoring.token_losses import device_of
from txl_lightning.files import write_json, write_text
from txl_lightning.model.inference.cached import CachedTransformerXL, can_cache
from txl_lightning.model.inference.generation import GenerativeModel, check_sampling, continuation_losses
from txl_lightning.model.inference.generation import generate as draw
from txl_lightning.model.inference.sliding_window import SlidingWindow
from txl_lightning.model.transformer_xl import TransformerXL
from txl_lightning.runs.bfloat16 import autocast, chosen_precision
from txl_lightning.runs.threads import set_threads
from txl_lightning.runs.trained import TrainedModel, load_trained

FLOAT32_TOKENS = 50  # of the first sample, scored in float32 too, to state what bfloat16 changes
DIM, NORMAL = "\033[2m", "\033[0m"  # escape sequences of terminals
# Models of bytes can draw control characters. They are shown as a sign, so that the terminal does not obey them.
CONTROL = {code: "\ufffd" for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"}


def show(text: str) -> None:
    """Print text at once; characters that the terminal cannot encode become `?`."""
    encoding = sys.stdout.encoding or "utf-8"
    sys.stdout.write(text.encode(encoding, errors="replace").decode(encoding))
    sys.stdout.flush()


@options_as_typed()
def run(options: GenerateOptions, directory: Path, write: Callable[[str], None] = show) -> list[str]:
    """Draw and print the samples, the first one as it is drawn; write `generation.json` and `samples.txt`.

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
    device = chosen_device(options.accelerator)
    precision = chosen_precision(options.precision, options.accelerator)
    trained = load_trained(options.checkpoint)
    set_threads(options.num_threads, trained)
    trained.model.to(device)
    prompts = read_prompts(options, trained)
    with autocast(precision, device):  # cached inference checks that it is used as it was set up
        model, context = with_context(trained, options)
        tokens = draw(
            model,
            [torch.tensor(prompt.tokens, device=device) for prompt in prompts for _ in range(options.n_samples)],
            options.n_tokens,
            top_k=options.top_k,
            top_p=options.top_p,
            temperature=options.temperature,
            seed=[options.seed + sample for _ in prompts for sample in range(options.n_samples)],
            **_reading(trained),
        )
        drawn, seconds = _write_samples(tokens, prompts, trained.vocabulary, options.n_samples, write)
    results = _describe(options, precision, trained, prompts, context, drawn, seconds)
    results["float32_difference"] = difference = _float32_difference(options, precision, trained, prompts[0], drawn[0])
    write_json(directory / "generation.json", results, ensure_ascii=False)
    continued = results.get("prompts", [results])
    parts = [_layout(one, prompt.title) for one, prompt in zip(continued, prompts, strict=True)]
    write_text(directory / "samples.txt", "\n".join(parts))
    speed, n_drawn = results["tokens_per_second"], len(drawn) * options.n_tokens
    write(f"{n_drawn:,} tokens{f', {speed:,.0f} a second' if speed else ''}; {context}\n")
    if difference is not None:
        where = f"the first {difference['tokens']} tokens of sample 1"
        write(f"{precision}: nll {difference['nll']:+.5f} beside float32 on {where}\n")
    return []


def _check_options(options: GenerateOptions) -> None:
    check_prompt(options)
    check_at_least_one(options, "n_tokens", "n_samples")
    check_sampling(options.top_k, options.top_p, options.temperature)
    allowed = "must be an integer >= 1: a drawn token reads the tokens before it from the memory"
    require(options.mem_len is None or options.mem_len >= 1, "mem_len", options.mem_len, allowed)
    check_common_options(options)


def with_context(trained: TrainedModel, options: GenerateOptions) -> tuple[GenerativeModel, str]:
    """Return the model with the context of its samples, and a description of that context."""
    model, config = trained.model, trained.config
    if not isinstance(model, TransformerXL):
        require(
            options.mem_len is None, "mem_len", options.mem_len, f"must be null: {config.model.name} has no such length"
        )
        return model, "context carried in the recurrent state"
    assert isinstance(config.model, TransformerXLModelConfig)
    if config.memory.mem_len == 0 and options.mem_len is None:
        window = config.data.segment_len + extended_context(config)
        words = f"context: the last {window} tokens, as in training, recomputed for every token"
        return SlidingWindow(model, window), words
    if options.mem_len is not None:
        config.evaluation.mem_len = options.mem_len
    lengths = clamp_untrained({**evaluation_lengths(config), "ext_len": 0}, config)
    require(
        lengths["mem_len"] >= 1, "mem_len", lengths["mem_len"], "must be given: the run was evaluated without memory"
    )
    words = f"memory of {lengths['mem_len']:,} tokens"
    if can_cache(model):
        return CachedTransformerXL(model, **lengths), words
    compressed = f"{lengths['compressed_len']:,} states of {config.memory.rate} tokens each"
    return model.with_lengths(**lengths), f"{words} and {compressed}"


def _reading(trained: TrainedModel) -> dict[str, Any]:
    """Return how prompts and drawn tokens are read: in which segments, and which token begins a document, if any."""
    resets = trained.config.memory.reset == "document" and trained.vocabulary.starts_sentences
    return {
        "segment_len": trained.config.evaluation.segment_len,
        "document_start": trained.vocabulary.numbers[SENTENCE] if resets else None,
        "closed_documents": trained.closed_sentences,
    }


def _float32_difference(
    options: GenerateOptions, precision: str, trained: TrainedModel, prompt: Prompt, drawn: list[int]
) -> dict[str, Any] | None:
    """Return by how much the precision changes the mean loss of the first drawn tokens; None with `32-true`."""
    if precision == "32-true":
        return None
    device = device_of(trained.model)
    prompt_T = torch.tensor(prompt.tokens, device=device)
    drawn_N = torch.tensor(drawn[:FLOAT32_TOKENS], device=device)
    mean = {}
    for chosen in (precision, "32-true"):
        with autocast(chosen, device):
            model, _ = with_context(trained, options)
            mean[chosen] = continuation_losses(model, prompt_T, drawn_N, **_reading(trained)).mean().item()
    return {"nll": mean[precision] - mean["32-true"], "tokens": len(drawn_N)}


def _write_samples(
    tokens: Iterator[Tensor],
    prompts: list[Prompt],
    vocabulary: Vocabulary,
    n_samples: int,
    write: Callable[[str], None],
) -> tuple[list[list[int]], tuple[float, float]]:
    """Draw the samples and write them: the first while it is drawn, the others afterwards.

    Returns:
        Tokens of every sample, prompt by prompt; seconds until the first token, and seconds after it.
    """
    decoder = StreamDecoder(vocabulary)
    dim, normal = (DIM, NORMAL) if sys.stdout.isatty() else ("", "")

    def layout(prompt: Prompt, decoder: StreamDecoder) -> str:
        return f"--- {prompt.title}\n{dim}{visible(decoder.feed(prompt.numbers))}{normal}\n"

    write(f"{layout(prompts[0], decoder)}--- sample 1\n")
    drawn: list[list[int]] = [[] for _ in range(len(prompts) * n_samples)]
    started = first = time.perf_counter()
    for i, token_B in enumerate(tokens):
        if i == 0:
            first = time.perf_counter()
        for sample, token in zip(drawn, token_B.tolist(), strict=True):
            sample.append(token)
        if piece := decoder.feed(drawn[0][-1:]):
            write(visible(piece))
    seconds = (first - started, time.perf_counter() - first)
    write(f"{visible(decoder.finish())}\n")
    for row, sample in enumerate(drawn[1:], 1):
        prompt, number = prompts[row // n_samples], row % n_samples + 1
        decoder = StreamDecoder(vocabulary)
        before = layout(prompt, decoder)
        after = f"--- sample {number}\n{visible(decoder.feed(sample) + decoder.finish())}\n"
        write(before + after if number == 1 else after)
    write("---\n")
    return drawn, seconds


def visible(text: str) -> str:
    """Replace control characters."""
    return text.translate(CONTROL)


def _describe(
    options: GenerateOptions,
    precision: str,
    trained: TrainedModel,
    prompts: list[Prompt],
    context: str,
    drawn: list[list[int]],
    seconds: tuple[float, float],
) -> dict[str, Any]:
    """Return the contents of `generation.json`; with `prompts` or `prompt_file`, a list of prompts and samples."""
    vocabulary, names = trained.vocabulary, ("n_tokens", "n_samples", "top_k", "top_p", "temperature", "seed")
    n_after_first, samples = len(drawn) * (options.n_tokens - 1), iter(drawn)
    continued = [
        {
            "prompt": {**prompt.source, "text": vocabulary.decode(prompt.numbers), "tokens": prompt.numbers},
            "continuation": None if prompt.continuation is None else vocabulary.decode(prompt.continuation),
            "samples": [
                {"text": vocabulary.decode(tokens), "tokens": tokens} for tokens in islice(samples, options.n_samples)
            ],
        }
        for prompt in prompts
    ]
    return {
        "checkpoint": str(options.checkpoint),
        "step": trained.step,
        **({"prompts": continued} if options.prompts or options.prompt_file else continued[0]),
        "options": {**{name: getattr(options, name) for name in names}, "precision": precision},
        "context": context,
        "prompt_seconds": round(seconds[0], 4),
        "tokens_per_second": n_after_first / seconds[1] if n_after_first else None,
    }


def _layout(results: dict[str, Any], title: str) -> str:
    """Format context, true continuation and samples one below the other, as in appendix E."""
    parts = [(title, results["prompt"]["text"])]
    if results["continuation"] is not None:
        parts.append(("true continuation", results["continuation"]))
    parts += [(f"sample {i}", sample["text"]) for i, sample in enumerate(results["samples"], 1)]
    return "\n".join(f"=== {name}\n{text}\n" for name, text in parts)
