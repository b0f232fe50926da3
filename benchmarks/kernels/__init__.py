"""Attention kernels beside eager attention: `python -m benchmarks.kernels`."""
