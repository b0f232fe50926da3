"""Corpora, vocabularies, streams of segments, and the DataModule."""
