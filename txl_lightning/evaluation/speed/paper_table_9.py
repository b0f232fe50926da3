"""Table 9 of the paper, copied from it: nothing here was measured by this project."""

from __future__ import annotations

TABLE_9 = {800: 363, 1800: 773, 2800: 1409, 3800: 1874}
"""Time per token of the vanilla model over that of Transformer-XL, by attention length (enwik8)."""
