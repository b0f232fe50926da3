"""Attention kernels: Σ_j softmax_j(A_i) value_j, for the same arguments as `attention.scores`.

cpu       in parts that stay in the caches: on a CPU, unless compiled
fused     torch's scaled_dot_product_attention: everywhere else
relative  one Triton kernel for all of it, which stores no score: with trainer.kernel=relative
"""
