"""Position encodings: the four of the ablation (paper Table 6) and later ones; `register_encoding` adds another.

    relative   terms (a)-(d) with the sinusoid of the distance                       (section 3.3; attn_type 0)
    shaw       a trained table of distances per layer, no extrapolation              (Shaw et al. 2018; attn_type 1)
    absolute   the sinusoid of the position, added to the embedding                  (Vaswani et al. 2017; attn_type 2)
    al_rfou    a trained table of positions per layer, added to each layer's input   (Al-Rfou et al. 2018; attn_type 3)
    rope       queries and keys rotated by their positions                           (Su et al. 2021)
    alibi      a fixed penalty that grows with the distance, as term (d)             (Press et al. 2022)
    none       no positions, only the causal mask                                    (Kazemnejad et al. 2023)

Absolute positions are counted from the end of the segment: its last token has index 0. With memory every
segment uses the same positions; the memory keeps each layer's input as it was computed, so positions are
never added to it a second time (section 3.3).

Every module of this folder is imported here: adding an encoding to the package is one file with its class.
"""

from importlib import import_module
from pkgutil import iter_modules

from txl_lightning.model.encodings.base import ENCODINGS, Encoding, LayerPositions, register_encoding

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")

__all__ = ["ENCODINGS", "Encoding", "LayerPositions", "register_encoding"]
