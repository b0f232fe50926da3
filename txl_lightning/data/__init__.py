"""Corpora, vocabularies, ordered streams and the DataModule."""
