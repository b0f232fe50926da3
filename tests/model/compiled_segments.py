"""Score segments compiled and eagerly and compare; a script, since checked shapes cannot be compiled."""

import torch
from torch import Tensor
from torch._dynamo import config as dynamo

from tests.model.tiny_model import random_stream, tiny_model

T, SEGMENTS, WARM_UP = 4, 7, 3

torch.set_num_threads(1)
model = tiny_model(mem_len=6)
stream = random_stream(2, T * SEGMENTS + 1)
compiled_score = torch.compile(model.score, backend="aot_eager", fullgraph=True)


def gradients(nll: Tensor) -> list[Tensor]:
    return list(torch.autograd.grad(nll.mean(), list(model.parameters()), materialize_grads=True))


eager_memory = compiled_memory = model.start_memory(2, static=True)
for i in range(SEGMENTS):
    tokens, targets = (stream[:, T * i + shift :][:, :T] for shift in (0, 1))
    with dynamo.patch(error_on_recompile=i >= WARM_UP):
        compiled_nll, compiled_memory = compiled_score(tokens, targets, compiled_memory)
    eager_nll, eager_memory = model.score(tokens, targets, eager_memory)
    assert compiled_memory.filled == eager_memory.filled == min(6, T * (i + 1))
    torch.testing.assert_close(compiled_nll, eager_nll, rtol=0, atol=1e-12)
    torch.testing.assert_close(compiled_memory.states, eager_memory.states, rtol=0, atol=1e-12)
    for compiled, eager in zip(gradients(compiled_nll), gradients(eager_nll), strict=True):
        torch.testing.assert_close(compiled, eager, rtol=0, atol=1e-12)
