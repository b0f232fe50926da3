"""Options of `txl generate`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from omegaconf import MISSING


@dataclass
class GenerateOptions:
    """Options of `txl generate`: continue prompts, or tokens of a corpus.

    Args:
        checkpoint: checkpoint of `txl train`.
        prompt: text to continue; null to continue tokens of a corpus.
        prompts: several texts to continue, of any lengths: each as it is continued alone; instead of `prompt`.
        prompt_file: text file with a prompt on every line that is not empty; instead of `prompt`.
        prompt_ids: token ids to continue, a list or a `.npy` file: one prompt, or one in each row; instead of `prompt`.
        context: number of consecutive tokens of the corpus to continue; instead of `prompt`.
        position: position in the split of the first of these tokens; null for a random one.
        split: train, valid or test, for `context`; null for test, or for the whole of another text (`data_path`).
        n_tokens: tokens to generate.
        n_samples: samples to generate of every prompt.
        top_k: draw from the k most probable tokens; null for all.
        top_p: draw from the most probable tokens whose probabilities sum to top_p.
        temperature: divisor of the logits.
        seed: seed of the first sample of every prompt, and of `position`; the next sample has seed + 1.
        mem_len: memory length in tokens; null for the length of the run's own evaluation. A run without recurrence
            then recomputes a window of its training segment for every token. Distances beyond the longest of training
            are clamped.
        data_path: the run's own files where they have moved, or others, for `context`, in the vocabulary of the
            checkpoint.
        accelerator: cpu or gpu.
        precision: 32-true; bf16-mixed for products in bfloat16 with losses in float32; auto for the faster of both
            on this machine.
        num_threads: CPU threads; null for as many as training such a model pays for.
    """

    checkpoint: str = MISSING
    prompt: str | None = None
    prompts: list[str] | None = None
    prompt_file: str | None = None
    prompt_ids: Any = None
    context: int | None = None
    position: int | None = None
    split: str | None = None
    n_tokens: int = 500
    n_samples: int = 1
    top_k: int | None = 40
    top_p: float = 1.0
    temperature: float = 1.0
    seed: int = 1
    mem_len: int | None = None
    data_path: Any = None
    accelerator: str = "cpu"
    precision: str = "32-true"
    num_threads: int | None = None
