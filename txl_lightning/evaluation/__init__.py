"""Measure trained models."""
