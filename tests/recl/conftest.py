"""Trained runs and kept figures, as the tests of evaluation have them."""

from tests.evaluation.conftest import drawn, runs

__all__ = ["drawn", "runs"]
