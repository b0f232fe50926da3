"""Corpora, vocabularies, segment streams, and the DataModule."""
