"""One side of `experiments.bench`: builds one implementation, then trains it for as many steps as it is told.

Standard input takes one JSON line a turn, `{"steps": 5}`; standard output answers each with the seconds they took.
Each implementation is imported only when it is asked for, since they live in environments of their own.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

LEARNING_RATE = 0.00025
CLIP = 0.25

Forward = Callable[[Tensor, Any], tuple[Tensor, Any]]


@dataclass(frozen=True)
class Setup:
    """What is trained and how; `segment` is the length of the memory too, `steps` those of one round."""

    n_layer: int
    d_model: int
    n_head: int
    d_inner: int
    segment: int
    batch_size: int
    steps: int
    vocab_size: int = 256
    dropout: float = 0.0
    threads: int = 2
    device: str = "cpu"
    precision: str = "float32"


def ours(setup: Setup) -> tuple[nn.Module, Forward]:
    """This project's model, starting from attended zeros as the other one does."""
    from txl_lightning import TransformerXL, TransformerXLConfig

    config = TransformerXLConfig(
        vocab_size=setup.vocab_size,
        n_layer=setup.n_layer,
        d_model=setup.d_model,
        n_head=setup.n_head,
        d_head=setup.d_model // setup.n_head,
        d_inner=setup.d_inner,
        dropout=setup.dropout,
        mem_len=setup.segment,
        memory_start="zeros",
    )
    model = TransformerXL(config)

    def forward(tokens: Tensor, memory: Any) -> tuple[Tensor, Any]:
        nll, memory = model.score(tokens[:, :-1], tokens[:, 1:], memory)
        return nll.mean(), memory

    return model, forward


def huggingface(setup: Setup) -> tuple[nn.Module, Forward]:
    """Hugging Face's model. It shifts the labels itself, so it scores one token a segment less than ours."""
    from transformers import TransfoXLConfig, TransfoXLLMHeadModel

    config = TransfoXLConfig(
        vocab_size=setup.vocab_size,
        cutoffs=[],
        div_val=1,
        n_layer=setup.n_layer,
        d_model=setup.d_model,
        d_embed=setup.d_model,
        n_head=setup.n_head,
        d_head=setup.d_model // setup.n_head,
        d_inner=setup.d_inner,
        dropout=setup.dropout,
        dropatt=0.0,
        mem_len=setup.segment,
        clamp_len=-1,
        same_length=False,
        untie_r=False,
    )
    model = TransfoXLLMHeadModel(config)

    def forward(tokens: Tensor, memory: Any) -> tuple[Tensor, Any]:
        segment = tokens[:, :-1]
        output = model(segment, labels=segment, mems=memory)
        return output.loss, output.mems

    return model, forward


IMPLEMENTATIONS = {"ours": ours, "huggingface": huggingface}


class Training:
    """A model in training on random tokens, which keeps its memory and optimiser from one call to the next."""

    def __init__(self, implementation: str, setup: Setup) -> None:
        torch.set_num_threads(setup.threads)
        torch.manual_seed(0)
        self.setup = setup
        self.model, self.forward = IMPLEMENTATIONS[implementation](setup)
        self.model.to(setup.device).train()
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=LEARNING_RATE, fused=True)
        self.memory: Any = None

    def describe(self) -> dict[str, Any]:
        """The number of parameters, and what they are trained with."""
        library = sys.modules.get("transformers")
        return {
            "parameters": sum(parameter.numel() for parameter in self.model.parameters()),
            "torch": torch.__version__,
            "transformers": library.__version__ if library else None,
            "accelerator": torch.cuda.get_device_name() if self.setup.device == "cuda" else None,
        }

    def run(self, steps: int) -> dict[str, float]:
        """Seconds of so many training steps, and the loss of the last."""
        setup = self.setup
        shape = (steps, setup.batch_size, setup.segment + 1)
        tokens = torch.randint(setup.vocab_size, shape).to(setup.device)
        self.synchronize()
        start = time.perf_counter()
        for segment in tokens:
            loss = self.step(segment)
        self.synchronize()
        return {"seconds": time.perf_counter() - start, "loss": loss.item()}

    def step(self, tokens: Tensor) -> Tensor:
        """Forward, backward, clipping and update on one segment; its loss."""
        with torch.autocast(self.setup.device, torch.bfloat16, enabled=self.setup.precision == "bf16"):
            loss, self.memory = self.forward(tokens, self.memory)
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), CLIP)
        self.optimizer.step()
        return loss.detach()

    def synchronize(self) -> None:
        """Wait for the accelerator, if there is one."""
        if self.setup.device == "cuda":
            torch.cuda.synchronize()


def main() -> None:
    """Answer on what was standard output; whatever a library prints goes to standard error."""
    implementation, setup = sys.argv[1:]
    with os.fdopen(os.dup(1), "w") as answers:
        os.dup2(2, 1)
        training = Training(implementation, Setup(**json.loads(setup)))
        print(json.dumps(training.describe()), file=answers, flush=True)
        for line in sys.stdin:
            print(json.dumps(training.run(json.loads(line)["steps"])), file=answers, flush=True)


if __name__ == "__main__":
    main()
