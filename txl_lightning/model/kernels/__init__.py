"""Fused relative attention: kernels that give what `Attention.attend_eager` gives, without storing the probabilities.

    eager    torch's own operations, on any device; needs [H, B, T, K] scores and probabilities at once
    triton   own kernels for a GPU, forward and backward, with dropout; needs the package triton
    flex     torch's flex_attention; without dropout of the probabilities, and on the CPU without gradients
    auto     the fastest that was measured on the device (`python -m benchmarks.kernels`), see `choice.FASTEST`

All three get the scores by distance, (q_i + v)·r, from one matrix product. The fused ones read the score of query i
and key j at column T - i + j of row i, which is distance K - T + i - j.
"""
