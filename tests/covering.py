"""Products of options: a few cases in which every value occurs run always, all the others with `make test-all`."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import product
from typing import Any

import pytest


def product_of(*options: Iterable[Any]) -> list[Any]:
    """Return a parameter set for every combination; those off the diagonal of the product are marked slow.

    The diagonal takes the i-th value of every option. A shorter option starts again, shifted by its place in the list,
    so that options of one length meet in other pairs.

    Args:
        options: values of each parameter; a dictionary gives its keys.
    """
    values = [list(one) for one in options]
    diagonal = {
        tuple((i + k * (i // len(one))) % len(one) for k, one in enumerate(values))
        for i in range(max(map(len, values)))
    }
    return [
        pytest.param(
            *(one[i] for one, i in zip(values, places, strict=True)),
            marks=() if places in diagonal else pytest.mark.full,
            id="-".join(str(one[i]) for one, i in zip(values, places, strict=True)),
        )
        for places in product(*(range(len(one)) for one in values))
    ]
