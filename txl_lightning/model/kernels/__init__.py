"""Attention kernels: Σ_j softmax_j(A_i) value_j.

fused     torch's scaled_dot_product_attention, (b), (d) and the mask its bias: on a GPU, compiled, mostly in evaluation
relative  one Triton kernel for all of it, which stores no score: with trainer.kernel=relative
"""
