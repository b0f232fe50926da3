"""The code of docs/models.md, and that what it exports computes the model's function for any number of streams.

In a process of its own: checks of shapes, which tests of the model have, would fix the number of streams.
"""

from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.alone import printed
from tests.docs.pages import ROOT, blocks

*_, EXPORTED, ONNX = blocks(ROOT / "docs/models.md", "python")
COMPARE = """
def compare(model, run, tolerance):
    for B in (1, 3):
        exported, memory = start(B), None
        for tokens in torch.randint(256, (B, 5 * T)).split(T, dim=1):  # the memory is full after two segments
            with torch.no_grad():
                hidden, memory = model(tokens, memory)
                expected = model.log_probabilities(hidden)
                found, *exported = run(tokens, *exported)
            torch.testing.assert_close(found, expected, atol=tolerance, rtol=0)
            torch.testing.assert_close(exported[0][:, :, -memory.filled :], memory.states, atol=tolerance, rtol=0)
"""
OF_PAGE = "torch.manual_seed(0)\ncompare(model, step, 1e-5)"
OF_OTHERS = """
for encoding in ("alibi", "rope", "none", "shaw"):
    config = TransformerXLConfig(vocab_size=256, encoding=encoding, table_len=64, **sizes)
    model = TransformerXL(config).eval()
    for weight in model.parameters():
        nn.init.normal_(weight, std=0.2)
    compare(model, torch.export.export(Step(model), example, dynamic_shapes=shapes).module(), 1e-5)
"""


def run(*parts: str, directory: Path) -> None:
    printed("-W", "ignore", "-c", "\n".join(parts), directory=directory)


@pytest.mark.slow
def test_an_exported_model_carries_its_memory_for_any_number_of_streams(tmp_path: Path) -> None:
    run(EXPORTED, COMPARE, OF_PAGE, directory=tmp_path)


@pytest.mark.full
def test_every_encoding_can_be_exported(tmp_path: Path) -> None:
    run(EXPORTED, COMPARE, OF_OTHERS, directory=tmp_path)


OF_ONNX = """
def run(*inputs):
    arrays = [tensor.numpy() for tensor in inputs]
    return [torch.from_numpy(array) for array in session.run(None, dict(zip(names["input_names"], arrays)))]
compare(model, run, 1e-4)
"""


@pytest.mark.skipif(
    not all(map(find_spec, ("onnx", "onnxscript", "onnxruntime"))),
    reason="onnx, onnxscript and onnxruntime are no dependency",
)
def test_an_onnx_file_carries_its_memory_for_any_number_of_streams(tmp_path: Path) -> None:
    run(EXPORTED, ONNX, COMPARE, OF_ONNX, directory=tmp_path)
