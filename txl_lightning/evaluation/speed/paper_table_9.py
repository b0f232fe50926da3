"""Figures of the paper that a command sets its own beside; `experiments.paper` has them too, and all others.

Nothing here was measured by us.
"""

from __future__ import annotations

TABLE_9 = {800: 363, 1800: 773, 2800: 1409, 3800: 1874}
"""How many times slower than Transformer-XL the vanilla model is per token, by attention length (enwik8)."""
