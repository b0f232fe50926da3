"""`txl_lightning.recl` where the framework cannot be imported: the example of the documentation, and arrays alone."""

import pytest

from tests.alone import printed
from tests.docs.pages import ROOT, blocks

FRAMEWORK = {
    *(
        "lightning",
        "lightning_fabric",
        "hydra",
        "omegaconf",
        "wandb",
        "torchmetrics",
        "datasets",
        "matplotlib",
    ),
    *("tokenizers", "transformers", "safetensors", "jinja2", "jsonschema", "psutil"),
}
BLOCK = (
    "import sys\nsys.modules |= dict.fromkeys({names!r})\n"  # an import of None is an ImportError
)
TRANSFORMER_XL = """
from txl_lightning import TransformerXL, TransformerXLConfig, recl

assert all(getattr(recl, name) for name in recl.__all__)
model = TransformerXL(TransformerXLConfig(8, n_layer=1, d_model=8, n_head=2, d_head=4, d_inner=8)).eval()
contexts = [24, 48, 72, 96, 120]
models = {"model": model, "function": lambda tokens: model.score(tokens[:, :-1], tokens[:, 1:])[0]}
results, page = recl.compare(models, text, contexts, 200, texts=text.astype(str))
np.testing.assert_allclose(*(found["nll"] for found in results["models"]), rtol=1e-5)
positions, blocks = recl.position_blocks(len(text), 200, contexts)
assert len(recl.context_curve(model, text, positions, contexts, blocks=blocks)["nll"]) == 5
"""
ARRAYS = """
import numpy as np
from txl_lightning.recl import EffectiveContext, relative_effective_context_lengths

losses = {"short": [[2.0] * 4, [1.9] * 4, [1.9] * 4], "long": [[2.0] * 4, [1.8] * 4, [1.6] * 4]}
lengths = relative_effective_context_lengths(losses, [8, 16, 24], fractions=[1.0], bootstrap=0)
assert isinstance(lengths["long"][1.0], EffectiveContext)
print(*((of_model[1.0].value, of_model[1.0].at_least) for of_model in lengths.values()))
"""


@pytest.mark.slow
def test_the_example_of_the_page_measures_without_the_framework() -> None:
    (example,) = (
        code
        for code in blocks(ROOT / "docs/effective-context.md", "python")
        if "txl_lightning.recl" in code
    )
    nll, lengths = printed("-c", BLOCK.format(names=FRAMEWORK) + example + TRANSFORMER_XL).split(
        "]"
    )
    assert [round(float(loss), 2) for loss in nll.strip("[").split(",")] == [2.08, *[1.57] * 4]
    assert lengths.split() == ["48", "48"]


def test_arrays_need_numpy_alone() -> None:
    blocked = BLOCK.format(names={*FRAMEWORK, "torch", "jaxtyping", "tqdm"})
    assert printed("-c", blocked + ARRAYS) == "(16, False) (24, True)\n"
