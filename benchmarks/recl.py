"""Measure `txl recl`'s windows beside two plain ways to read them, in alternating turns, each in a process.

    python -m benchmarks.recl --n-layer 12 --d-model 768 --vocab-size 50257 --positions 200 --longest 1023

    ours        windows that serve all contexts and positions with one begin, logits at the scored places alone
    loop        a window of exactly c tokens for every position and context, logits of its last token
    sliding     a window of the longest context from every token of a block of positions on, all its logits, the loss
                of a target with c tokens of context kept where position and context are asked for

The model is a GPT-2 of transformers (extra hf) with random weights. Losses are compared. `--part` scores the
first blocks alone, with about as many positions; seconds are scaled to all positions.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from statistics import median
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from txl_lightning.recl.huggingface import HuggingFaceModel
from txl_lightning.recl.positions import position_blocks
from txl_lightning.recl.windows import WindowReader, window_losses
from txl_lightning.reporting import markdown_table

WAYS = ("ours", "loop", "sliding")


def drawn(options: argparse.Namespace) -> tuple[Any, np.ndarray, list[int], np.ndarray, np.ndarray]:
    """Return model, tokens, contexts, positions and their blocks."""
    import transformers

    torch.manual_seed(0)
    sizes = {"n_layer": options.n_layer, "n_embd": options.d_model, "n_head": max(1, options.d_model // 64)}
    config = transformers.GPT2Config(vocab_size=options.vocab_size, n_positions=options.longest + 1, **sizes)
    model = transformers.GPT2LMHeadModel(config).eval().requires_grad_(False)
    tokens = np.random.default_rng(0).integers(options.vocab_size, size=100 * options.longest)
    contexts = np.linspace(0, options.longest, options.contexts + 1).astype(int)[1:].tolist()
    return model, tokens, contexts, *position_blocks(len(tokens), options.positions, contexts)


def loop(model: Any, tokens: np.ndarray, contexts: list[int], positions: np.ndarray, _: np.ndarray) -> np.ndarray:
    """Return l(c, t), [C, P], each from a window of its own."""
    losses_CP = np.zeros((len(contexts), len(positions)))
    for p, t in enumerate(positions):
        for c, context in enumerate(contexts):
            window_T = torch.from_numpy(tokens[t - context : t])
            logits_V = model(input_ids=window_T[None], logits_to_keep=1, use_cache=False).logits[0, -1]
            losses_CP[c, p] = functional.cross_entropy(logits_V, torch.tensor(tokens[t]))
    return losses_CP


def sliding(
    model: Any, tokens: np.ndarray, contexts: list[int], positions: np.ndarray, blocks: np.ndarray
) -> np.ndarray:
    """Return l(c, t), [C, P], from a window that begins at every token which has a target in reach."""
    losses_CP, longest = np.zeros((len(contexts), len(positions))), contexts[-1]
    for block in np.unique(blocks):
        here = np.flatnonzero(blocks == block)
        for begin in range(positions[here[0]] - longest, positions[here[-1]]):
            window_T = torch.from_numpy(tokens[begin : min(begin + longest, positions[here[-1]]) + 1])
            logits_TV = model(input_ids=window_T[None, :-1], use_cache=False).logits[0]
            nll_T = functional.cross_entropy(logits_TV, window_T[1:], reduction="none").numpy()
            for p in here:
                if (context := positions[p] - begin) in contexts:
                    losses_CP[contexts.index(context), p] = nll_T[context - 1]
    return losses_CP


@torch.no_grad()
def measured(way: str, options: argparse.Namespace) -> dict[str, Any]:
    """Return seconds and CPU seconds for all positions, the peak of memory in MB, and the first losses."""
    torch.set_num_threads(options.threads)
    model, tokens, contexts, positions, blocks = drawn(options)
    part = slice(None) if options.part is None else blocks <= blocks[options.part - 1]
    positions, blocks, started, cpu = positions[part], blocks[part], time.perf_counter(), time.process_time()
    if way == "ours":
        reader = WindowReader(HuggingFaceModel(model), limit=options.longest, one_pass=True)
        losses_CP = window_losses(reader, tokens, positions, contexts)
    else:
        losses_CP = (sliding if way == "sliding" else loop)(model, tokens, contexts, positions, blocks)
    scale = options.positions / len(positions)
    return {
        "seconds": (time.perf_counter() - started) * scale,
        "cpu": (time.process_time() - cpu) * scale,
        "memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "losses": losses_CP[:, :4].tolist(),
    }


def main(words: Sequence[str]) -> None:
    """Measure every way in turns and print a table."""
    parser = argparse.ArgumentParser("benchmarks.recl", description=(__doc__ or "").partition("\n")[0])
    sizes = {"n-layer": 2, "d-model": 64, "vocab-size": 1000, "positions": 100, "longest": 256, "contexts": 16}
    for name, default in {**sizes, "threads": 1, "rounds": 3}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--part", type=int, help="positions; all without it")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=WAYS, help="the first is compared with the others")
    parser.add_argument("--way", choices=WAYS, help="measure one way, and print JSON")
    options = parser.parse_args(words)
    if options.way:
        print(json.dumps(measured(options.way, options)))
        return
    found: dict[str, list[dict[str, Any]]] = {way: [] for way in options.ways}
    for i in range(options.rounds):
        for way in options.ways if i % 2 else reversed(options.ways):
            command = [sys.executable, "-m", "benchmarks.recl", *words, "--way", way]
            found[way].append(json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout))
    ours, rows = found[options.ways[0]], []
    for way, rounds in found.items():
        seconds, cpu, memory = (median(one[name] for one in rounds) for name in ("seconds", "cpu", "memory"))
        ratio = median(own["cpu"] / one["cpu"] for own, one in zip(ours, rounds, strict=True))
        difference = np.abs(np.subtract(ours[0]["losses"], rounds[0]["losses"])).max()
        rows.append([way, f"{seconds:.2f}", f"{cpu:.2f}", f"{ratio:.2f}", f"{memory:,.0f}", f"{difference:.1e}"])
    print(markdown_table(["way", "s", "CPU s", "ours / this", "MB", "largest difference, nats"], rows))


if __name__ == "__main__":
    main(sys.argv[1:])
