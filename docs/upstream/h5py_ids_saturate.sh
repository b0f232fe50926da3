#!/usr/bin/env bash
# h5py 3.16.0, zarr 3.1.6, numpy 2.4.6: ids and labels that a 16-bit array cannot hold.
#
# Guess: assigning them to a dataset of uint16 does what numpy does (the low 16 bits),
#   or fails.
# Instead: HDF5 takes the nearest value of the type. Every id from 65,536 on becomes
#   65,535, and every negative number becomes 0: -100, the label that losses ignore, is
#   token 0, which counts. So do `create_dataset(data=..., dtype=...)` and reading with
#   `dataset.astype`. zarr does as numpy does.
# Why it matters: a vocabulary a little above 65,536, or labels with -100 beside the
#   ids, written to the compact type. A check for ids above the vocabulary or for -100
#   finds nothing; one token is suddenly frequent, and prompts and padding are learned.
#
# Seen: 5, 65536, 70000, -100, -1 become 5, 65535, 65535, 0, 0 in h5py and
#   5, 0, 4464, 65436, 65535 in zarr and numpy
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q h5py==3.16.0 zarr==3.1.6 numpy==2.4.6
"$work/venv/bin/python" - "$work" <<'PY'
import sys

import h5py
import numpy as np
import zarr

ids = np.array([5, 65536, 70000, -100, -1])
nearest, low_bits = [5, 65535, 65535, 0, 0], [5, 0, 4464, 65436, 65535]

with h5py.File(f"{sys.argv[1]}/ids.h5", "w") as file:
    assigned = file.create_dataset("assigned", len(ids), "uint16")
    assigned[:] = ids
    given = file.create_dataset("given", data=ids, dtype="uint16")
    wide = file.create_dataset("wide", data=ids)
    print("h5py", assigned[:].tolist())
    assert assigned[:].tolist() == given[:].tolist() == nearest
    assert wide.astype("uint16")[:].tolist() == nearest
    assert wide[:].astype("uint16").tolist() == low_bits, "numpy's astype, after reading"

array = zarr.create_array(f"{sys.argv[1]}/ids.zarr", shape=len(ids), dtype="uint16")
array[:] = ids
compact = np.zeros(len(ids), np.uint16)
compact[:] = ids
print("zarr", array[:].tolist(), "numpy", compact.tolist())
assert array[:].tolist() == compact.tolist() == low_bits
PY
