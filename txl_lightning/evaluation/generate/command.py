"""`txl generate`: text drawn from a checkpoint's model, shown as it is drawn (paper, appendix E)."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from omegaconf import OmegaConf
from torch import Tensor

from txl_lightning.config.lengths import evaluation_lengths, extended_context
from txl_lightning.config.schemas import TransformerXLModelConfig
from txl_lightning.data.vocabulary.decoding import StreamDecoder
from txl_lightning.data.vocabulary.symbols import Vocabulary
from txl_lightning.errors import require
from txl_lightning.evaluation.generate.options import GenerateOptions
from txl_lightning.evaluation.generate.prompts import Prompt, check_prompt, read_prompt
from txl_lightning.evaluation.scoring.device import chosen_device
from txl_lightning.model.inference.cached import CachedTransformerXL
from txl_lightning.model.inference.generation import GenerativeModel, check_sampling
from txl_lightning.model.inference.generation import generate as draw
from txl_lightning.model.inference.sliding_window import SlidingWindow
from txl_lightning.model.transformer_xl import TransformerXL
from txl_lightning.runs.trained import TrainedModel, load_trained

DIM, PLAIN = "\033[2m", "\033[0m"
# What moves a terminal's cursor, or rings, is shown as a sign: models of bytes draw any of them.
CONTROL = {code: "\ufffd" for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"}


def show(text: str) -> None:
    """Text on the terminal at once; what its encoding lacks becomes `?`."""
    encoding = sys.stdout.encoding or "utf-8"
    sys.stdout.write(text.encode(encoding, errors="replace").decode(encoding))
    sys.stdout.flush()


def generate(options: GenerateOptions, directory: Path, write: Callable[[str], None] = show) -> dict[str, Any]:
    """Draw the samples, the first one written as it comes, and leave `generation.json` and `samples.txt`.

    Args:
        options: what to continue, and how.
        directory: where the files go.
        write: takes the text to show, piece by piece.

    Returns:
        What `generation.json` holds.

    Raises:
        UserError: an option, the checkpoint or the prompt is not usable.
    """
    check_options(options)
    if options.num_threads is not None:
        torch.set_num_threads(options.num_threads)
    trained = load_trained(options.checkpoint)
    model, context = with_context(trained, options)
    prompt = read_prompt(options, trained)
    device = chosen_device(options.accelerator)
    trained.model.to(device)
    tokens = draw(
        model,
        torch.tensor([prompt.tokens] * options.n_samples, dtype=torch.int64, device=device),
        options.n_tokens,
        top_k=options.top_k,
        top_p=options.top_p,
        temperature=options.temperature,
        seed=options.seed,
        segment_len=trained.config.evaluation.segment_len,
    )
    drawn, seconds = stream(tokens, prompt, trained.vocabulary, options.n_samples, write)
    results = describe(options, trained, prompt, context, drawn, seconds)
    directory.mkdir(parents=True, exist_ok=True)
    # Not resolved: what looks like an interpolation in a prompt is text.
    (directory / "config.yaml").write_text(OmegaConf.to_yaml(OmegaConf.structured(options)), "utf-8")
    (directory / "generation.json").write_text(json.dumps(results, indent=2, ensure_ascii=False) + "\n", "utf-8")
    (directory / "samples.txt").write_text(layout(results, prompt.title), "utf-8")
    speed = results["tokens_per_second"]
    write(f"{options.n_samples * options.n_tokens:,} tokens{f', {speed:,.0f} a second' if speed else ''}; {context}\n")
    return results


def check_options(options: GenerateOptions) -> None:
    """Refuse what needs no checkpoint to be refused."""
    check_prompt(options)
    for name in ("n_tokens", "n_samples", "num_threads"):
        value = getattr(options, name)
        require(value is None or value >= 1, name, value, "must be an integer >= 1")
    check_sampling(options.top_k, options.top_p, options.temperature)
    require(options.seed >= 0, "seed", options.seed, "must be an integer >= 0")
    need = "must be an integer >= 1: a drawn token reads the ones before it from the memory"
    require(options.mem_len is None or options.mem_len >= 1, "mem_len", options.mem_len, need)
    chosen_device(options.accelerator)


def with_context(trained: TrainedModel, options: GenerateOptions) -> tuple[GenerativeModel, str]:
    """The model with the context that its tokens are drawn from, and that context in words."""
    model, config = trained.model, trained.config
    if not isinstance(model, TransformerXL):
        require(options.mem_len is None, "mem_len", options.mem_len, f"{config.model.name} has no such length")
        return model, "context carried in the recurrent state"
    assert isinstance(config.model, TransformerXLModelConfig)
    if config.memory.mem_len == 0 and options.mem_len is None:
        window = config.data.segment_len + extended_context(config)
        words = f"context: the last {window} tokens, as in training, computed anew for every token"
        return SlidingWindow(model, window), words
    if options.mem_len is not None:
        config.evaluation.mem_len = options.mem_len
    lengths = {**evaluation_lengths(config), "ext_len": 0}
    require(
        lengths["mem_len"] >= 1, "mem_len", lengths["mem_len"], "must be given: the run was evaluated without memory"
    )
    return CachedTransformerXL(model, **lengths), f"memory of {lengths['mem_len']:,} tokens"


def stream(
    tokens: Iterator[Tensor], prompt: Prompt, vocabulary: Vocabulary, n_samples: int, write: Callable[[str], None]
) -> tuple[list[list[int]], tuple[float, float]]:
    """Write prompt and samples, the first as it is drawn and the others when all are.

    Returns:
        The tokens of every sample, and the seconds until the first token and from then on.
    """
    decoder = StreamDecoder(vocabulary)
    dim, plain_ = (DIM, PLAIN) if sys.stdout.isatty() else ("", "")
    write(f"--- {prompt.title}\n{dim}{visible(decoder.feed(prompt.tokens))}{plain_}\n--- sample 1\n")
    drawn: list[list[int]] = [[] for _ in range(n_samples)]
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
    for number, sample in enumerate(drawn[1:], 2):
        decoder = StreamDecoder(vocabulary)
        decoder.feed(prompt.tokens)
        write(f"--- sample {number}\n{visible(decoder.feed(sample) + decoder.finish())}\n")
    write("---\n")
    return drawn, seconds


def visible(text: str) -> str:
    """Text that a terminal shows as it is."""
    return text.translate(CONTROL)


def describe(
    options: GenerateOptions,
    trained: TrainedModel,
    prompt: Prompt,
    context: str,
    drawn: list[list[int]],
    seconds: tuple[float, float],
) -> dict[str, Any]:
    """What `generation.json` holds."""
    vocabulary, names = trained.vocabulary, ("n_tokens", "n_samples", "top_k", "top_p", "temperature", "seed")
    after_the_first = len(drawn) * (options.n_tokens - 1)
    return {
        "checkpoint": str(options.checkpoint),
        "step": trained.step,
        "prompt": {**prompt.source, "text": vocabulary.decode(prompt.tokens), "tokens": prompt.tokens},
        "continuation": None if prompt.continuation is None else vocabulary.decode(prompt.continuation),
        "options": {name: getattr(options, name) for name in names},
        "context": context,
        "samples": [{"text": vocabulary.decode(tokens), "tokens": tokens} for tokens in drawn],
        "prompt_seconds": round(seconds[0], 4),
        "tokens_per_second": after_the_first / seconds[1] if after_the_first else None,
    }


def layout(results: dict[str, Any], title: str) -> str:
    """Context, true continuation and samples one below the other, as in appendix E."""
    parts = [(title, results["prompt"]["text"])]
    if results["continuation"] is not None:
        parts.append(("true continuation", results["continuation"]))
    parts += [(f"sample {i}", sample["text"]) for i, sample in enumerate(results["samples"], 1)]
    return "\n".join(f"=== {name}\n{text}\n" for name, text in parts)


def run(options: GenerateOptions, directory: Path) -> list[str]:
    """Run the command: see `generate`."""
    generate(options, directory)
    return []
