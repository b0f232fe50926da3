"""Both ways to read windows of a model give equal losses."""

import argparse

import numpy as np
import pytest
import torch

from benchmarks.recl import WAYS, measured

pytest.importorskip("transformers", reason="needs the extra hf", minversion="5")


@pytest.mark.filterwarnings("default")
def test_every_way_gives_the_same_losses() -> None:
    sizes = {
        "n_layer": 1,
        "d_model": 8,
        "vocab_size": 20,
        "positions": 9,
        "longest": 16,
        "contexts": 4,
    }
    options = argparse.Namespace(**sizes, threads=torch.get_num_threads())
    ours, loop = (measured(way, options)["losses"] for way in WAYS)
    assert np.shape(ours) == (4, 4)
    np.testing.assert_allclose(loop, ours, rtol=1e-5)
