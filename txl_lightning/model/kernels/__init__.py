"""Attention by torch's scaled_dot_product_attention: (b), (d) and the mask are its bias."""
