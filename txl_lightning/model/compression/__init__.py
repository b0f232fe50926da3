"""Compressed memory (Rae et al. 2019): the value, the functions that compress, and their losses."""
