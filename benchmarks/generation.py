"""Compare generation with an equally large GPT-2 that caches keys and values, in alternating turns.

    python -m benchmarks.generation [--rounds N] [--threads N]        (needs the extra hf)

Both draw 200 tokens for 4 prompts with 64 tokens each, from a vocabulary with 256. GPT-2 is the
class in transformers with random weights, and its `generate` keeps keys and values. Transformer-XL
has a memory for 264 tokens, so both attend to the whole text. Ratios are medians over rounds.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from statistics import median

import torch

from txl_lightning import TransformerXL, TransformerXLConfig, generate
from txl_lightning.reporting import processor

VOCABULARY = 256
N_PROMPTS = 4
PROMPT = 64
DRAWN = 200
SIZES = {"small": (4, 128, 8), "medium": (6, 256, 8), "base": (12, 512, 8)}
"""Layers, width and heads."""


def ours(n_layer: int, d_model: int, n_head: int) -> Callable[[], float]:
    """Return a function that generates with Transformer-XL and returns the seconds."""
    config = TransformerXLConfig(
        vocab_size=VOCABULARY,
        n_layer=n_layer,
        d_model=d_model,
        n_head=n_head,
        d_head=d_model // n_head,
        d_inner=4 * d_model,
        mem_len=PROMPT + DRAWN,
    )
    model = TransformerXL(config).eval()
    prompt_BT = torch.randint(VOCABULARY, (N_PROMPTS, PROMPT))

    def turn() -> float:
        started = time.perf_counter()
        tokens = list(generate(model, prompt_BT, DRAWN, top_k=None))
        assert len(tokens) == DRAWN
        return time.perf_counter() - started

    return turn


def gpt2(n_layer: int, d_model: int, n_head: int) -> Callable[[], float]:
    """Return a function that generates with GPT-2 and returns the seconds."""
    import transformers

    config = transformers.GPT2Config(
        vocab_size=VOCABULARY,
        n_positions=PROMPT + DRAWN,
        n_layer=n_layer,
        n_embd=d_model,
        n_head=n_head,
        bos_token_id=0,
        eos_token_id=None,
        pad_token_id=0,
    )
    model = transformers.GPT2LMHeadModel(config).eval()
    prompt_BT = torch.randint(VOCABULARY, (N_PROMPTS, PROMPT))
    mask_BT = torch.ones_like(prompt_BT)

    @torch.no_grad()
    def turn() -> float:
        started = time.perf_counter()
        tokens_BT = model.generate(
            prompt_BT,
            attention_mask=mask_BT,
            max_new_tokens=DRAWN,
            do_sample=True,
            top_k=0,
            use_cache=True,
        )
        assert tokens_BT.shape == (N_PROMPTS, PROMPT + DRAWN)
        return time.perf_counter() - started

    return turn


def main(words: Sequence[str] | None = None) -> None:
    """Print a table with both models at every size."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args(words)
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    print(
        f"{processor()}, {options.threads} threads, {options.rounds} rounds, torch {torch.__version__}"
    )
    print("| size | ours, tokens/s | GPT-2, tokens/s | GPT-2's time / ours (min–max) |")
    print("| --- | ---: | ---: | ---: |")
    for name, size in SIZES.items():
        turns = (ours(*size), gpt2(*size))
        for turn in turns:
            turn()
        seconds = [(turns[0](), turns[1]()) for _ in range(options.rounds)]
        ratios = sorted(theirs / own for own, theirs in seconds)
        speeds = [N_PROMPTS * DRAWN / median(column) for column in zip(*seconds, strict=True)]
        print(
            f"| {name} | {speeds[0]:,.0f} | {speeds[1]:,.0f} "
            f"| {median(ratios):.2f} ({ratios[0]:.2f}–{ratios[-1]:.2f}) |",
            flush=True,
        )


if __name__ == "__main__":
    main()
