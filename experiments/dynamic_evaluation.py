"""Numbers of a later paper, Krause et al. 2019 (arXiv 1904.08378): dynamic evaluation of the published models.

None of them was measured by this project. The static losses of the same weights are those of `experiments/paper.py`.
"""

from __future__ import annotations

from experiments.paper import ResultRow

DYNAMIC = {
    1: ResultRow("Transformer-XL large, dynamic evaluation", 257, 16.4),
    2: ResultRow("Transformer-XL 24 layers, dynamic evaluation", 277, 0.940),
    3: ResultRow("Transformer-XL 24 layers, dynamic evaluation", 277, 1.038),
}
"""Test losses by the table of `paper.MAIN_RESULTS` that has the corpus: WikiText-103, enwik8 and text8."""
