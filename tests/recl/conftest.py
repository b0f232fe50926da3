"""Trained runs and kept figures, as the tests of evaluation have them."""

from tests.evaluation.conftest import drawn, pictures, runs

__all__ = ["drawn", "pictures", "runs"]
