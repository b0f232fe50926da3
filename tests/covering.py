"""Products of options: a few cases in which every value occurs run always, all the others with `make test-all`."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import product
from typing import Any

import pytest


def product_of(*options: Iterable[Any]) -> list[Any]:
    """Return a parameter set for every combination; those off the diagonal of the product are marked full.

    The diagonal takes the i-th value of every option. A shorter option starts again, shifted by its place in the list,
    so that options of one length meet in other pairs.

    Args:
        options: values of each parameter; a dictionary gives its keys.
    """
    lists = [list(values) for values in options]
    diagonal = set()
    for i in range(max(len(values) for values in lists)):
        places = []
        for k, values in enumerate(lists):
            round_number = i // len(values)
            places.append((i + k * round_number) % len(values))
        diagonal.add(tuple(places))
    parameters = []
    for places in product(*(range(len(values)) for values in lists)):
        chosen = [values[i] for values, i in zip(lists, places, strict=True)]
        marks = () if places in diagonal else pytest.mark.full
        name = "-".join(str(value) for value in chosen)
        parameters.append(pytest.param(*chosen, marks=marks, id=name))
    return parameters
