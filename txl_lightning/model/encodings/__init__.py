"""Position encodings: the four of the ablation (paper Table 6), and how to add one's own (`register_encoding`).

Each is a module that the model asks for positions.

    relative   terms (a)-(d) with the sinusoid of the distance                       (section 3.3; attn_type 0)
    shaw       a trained table of distances per layer, no extrapolation              (Shaw et al. 2018; attn_type 1)
    absolute   the sinusoid of the position, added to the embedding                  (Vaswani et al. 2017; attn_type 2)
    al_rfou    a trained table of positions per layer, added to each layer's input   (Al-Rfou et al. 2018; attn_type 3)

Absolute positions are counted from the end of the segment: its last token has index 0. With memory each
segment uses the same positions; the memory keeps every layer's input as it was computed, with the positions
it had then, and positions are never added to it again (section 3.3).

Every module of this folder is imported here, so that a new encoding is a file with its class.
"""

from importlib import import_module
from pkgutil import iter_modules

from txl_lightning.model.encodings.base import ENCODINGS, Encoding, LayerPositions, register_encoding

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")

__all__ = ["ENCODINGS", "Encoding", "LayerPositions", "register_encoding"]
