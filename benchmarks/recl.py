"""Compare `txl recl`'s windows with a plain way to read them, in alternating turns, each in a process.

    python -m benchmarks.recl --n-layer 12 --d-model 768 --vocab-size 50257 --positions 200 --longest 1023

    ours        windows that serve all contexts and positions with one start, logits at the scored places alone
    loop        a window with exactly c tokens for every position and context, logits for its last token

The model is transformers' GPT-2 (extra hf) with random weights. Losses are compared.
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

WAYS = ("ours", "loop")
SIZES = {
    "n-layer": 2,
    "d-model": 64,
    "vocab-size": 1000,
    "positions": 100,
    "longest": 256,
    "contexts": 16,
    "threads": 1,
    "rounds": 3,
}


def random_gpt2(options: argparse.Namespace) -> Any:
    """Return a GPT-2 with random weights."""
    import transformers

    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=options.vocab_size,
        n_positions=options.longest + 1,
        n_layer=options.n_layer,
        n_embd=options.d_model,
        n_head=max(1, options.d_model // 64),
    )
    model = transformers.GPT2LMHeadModel(config).eval()
    return model.requires_grad_(False)


def loop(model: Any, tokens: np.ndarray, contexts: list[int], positions: np.ndarray) -> np.ndarray:
    """Return l(c, t), [C, P], each from a separate window."""
    losses_CP = np.zeros((len(contexts), len(positions)))
    for p, t in enumerate(positions):
        for c, context in enumerate(contexts):
            window_T = torch.from_numpy(tokens[t - context : t])
            output = model(input_ids=window_T[None], logits_to_keep=1, use_cache=False)
            losses_CP[c, p] = functional.cross_entropy(
                output.logits[0, -1], torch.tensor(tokens[t])
            )
    return losses_CP


@torch.no_grad()
def measured(way: str, options: argparse.Namespace) -> dict[str, Any]:
    """Return seconds and CPU seconds for all positions, peak memory in MB, and the first losses."""
    torch.set_num_threads(options.threads)
    model = random_gpt2(options)
    tokens = np.random.default_rng(0).integers(options.vocab_size, size=100 * options.longest)
    steps = np.linspace(0, options.longest, options.contexts + 1).astype(int)
    contexts = steps[1:].tolist()
    positions, _ = position_blocks(len(tokens), options.positions, contexts)
    started = time.perf_counter()
    cpu = time.process_time()
    if way == "ours":
        reader = WindowReader(HuggingFaceModel(model), limit=options.longest, one_pass=True)
        losses_CP = window_losses(reader, tokens, positions, contexts)
    else:
        losses_CP = loop(model, tokens, contexts, positions)
    return {
        "seconds": time.perf_counter() - started,
        "cpu": time.process_time() - cpu,
        "memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "losses": losses_CP[:, :4].tolist(),
    }


def main(words: Sequence[str]) -> None:
    """Measure both ways in turns and print a table."""
    parser = argparse.ArgumentParser("benchmarks.recl", description="ours beside a loop")
    for name, default in SIZES.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--way", choices=WAYS, help="measure one way, and print JSON")
    options = parser.parse_args(words)
    if options.way:
        print(json.dumps(measured(options.way, options)))
        return
    rounds: dict[str, list[dict[str, Any]]] = {way: [] for way in WAYS}
    for _ in range(options.rounds):
        for way in WAYS:
            command = [sys.executable, "-m", "benchmarks.recl", *words, "--way", way]
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            rounds[way].append(json.loads(done.stdout))
    ours = rounds["ours"]
    rows = []
    for way, of_way in rounds.items():
        ratios = [own["cpu"] / other["cpu"] for own, other in zip(ours, of_way, strict=True)]
        difference = np.abs(np.subtract(ours[0]["losses"], of_way[0]["losses"])).max()
        row = [way, f"{median(ratios):.2f}", f"{difference:.1e}"]
        for name in ("seconds", "cpu", "memory"):
            row.append(f"{median(one[name] for one in of_way):.2f}")
        rows.append(row)
    header = ["way", "ours / this", "largest difference, nats", "s", "CPU s", "MB"]
    print(markdown_table(header, rows))


if __name__ == "__main__":
    main(sys.argv[1:])
