"""Checkpoints from `txl train` as a model for lm-evaluation-harness (`pip install lm-eval`).

For any task with likelihoods or texts:

    python examples/lm_eval_model.py checkpoint=runs/first/checkpoints/best.ckpt tasks=FOLDER:TASK

The model's memory carries the context, however long: nothing is cut to a window.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from lm_eval import simple_evaluate
from lm_eval.api.instance import Instance
from lm_eval.api.model import LM
from lm_eval.tasks import TaskManager

from txl_lightning import generate
from txl_lightning.data.vocabulary import END_OF_LINE
from txl_lightning.evaluation.continuations import Continuation, encode_pair, score_continuations
from txl_lightning.evaluation.options import EvaluateOptions
from txl_lightning.evaluation.protocol import Protocol, protocol_from_options
from txl_lightning.evaluation.trained import load_trained

N_GENERATED = 256  # tokens at most where a task does not say how many


class TransformerXLForHarness(LM):
    """A checkpoint as a model for lm-evaluation-harness.

    Args:
        checkpoint: checkpoint from `txl train`.
        lengths: evaluation lengths, such as `mem_len=640`; by default the run's.
    """

    def __init__(self, checkpoint: str, **lengths: Any) -> None:
        super().__init__()
        self.trained = load_trained(checkpoint)
        self.protocol: Protocol = protocol_from_options(
            self.trained, EvaluateOptions(checkpoint, **lengths), whole=True
        )

    @property
    def start(self) -> list[int]:
        """Token before a text's first one: the line end, if the vocabulary has it."""
        vocabulary = self.trained.vocabulary
        if vocabulary.level == "word":
            return [vocabulary.numbers[END_OF_LINE]]
        return vocabulary.encode(b"\n")[:1].tolist()

    def with_start(self, continuation: Continuation) -> Continuation:
        """Return a continuation whose first token can be scored."""
        if continuation.n_context > 0:
            return continuation
        return Continuation(
            [*self.start, *continuation.tokens],
            len(self.start),
        )

    def loglikelihood(
        self, requests: list[Instance], disable_tqdm: bool = False
    ) -> list[tuple[float, bool]]:
        """Return log P(continuation | context), and whether every token is the likeliest one."""
        continuations = []
        for request in requests:
            context, continuation = request.args
            pair = encode_pair(self.trained, context, continuation)
            continuations.append(self.with_start(pair))
        likelihoods = score_continuations(self.protocol, continuations)
        return [(-likelihood.nats, likelihood.greedy) for likelihood in likelihoods]

    def loglikelihood_rolling(
        self, requests: list[Instance], disable_tqdm: bool = False
    ) -> list[float]:
        """Return log P(text)."""
        pairs = []
        for request in requests:
            after_nothing = ("", request.args[0])
            pairs.append(Instance("loglikelihood", request.doc, after_nothing, 0))
        return [log_likelihood for log_likelihood, _ in self.loglikelihood(pairs)]

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """Return every context's likeliest continuation, until one of the task's texts."""
        import torch

        texts = []
        vocabulary = self.trained.vocabulary
        for request in requests:
            context, options = request.args
            tokens = self.trained.encode(context)
            if not tokens:
                tokens = self.start
            n_tokens = options.get("max_gen_toks", N_GENERATED)
            drawn: list[int] = []
            text = ""
            prompt = torch.tensor([tokens])
            for token_1 in generate(self.protocol.model(), prompt, n_tokens, top_k=1):
                drawn.append(int(token_1))
                text = vocabulary.decode(drawn)
                ends = [text.find(end) for end in options.get("until", []) if end in text]
                if ends:
                    text = text[: min(ends)]
                    break
            texts.append(text)
        return texts


def main() -> None:
    """Evaluate a checkpoint on the tasks in a folder, and print their metrics as JSON."""
    options = dict(word.split("=", 1) for word in sys.argv[1:])
    folder, _, names = options["tasks"].rpartition(":")
    path = str(Path(folder).resolve())
    found = simple_evaluate(
        TransformerXLForHarness(options["checkpoint"]),
        tasks=names.split(","),
        task_manager=TaskManager(include_path=path),
    )
    print(json.dumps(found["results"], indent=2, default=str))


if __name__ == "__main__":
    main()
