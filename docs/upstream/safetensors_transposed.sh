#!/usr/bin/env bash
# safetensors 0.8.0 (safetensors.numpy), gguf 0.19.0, numpy 2.4.6
#
# Guess: a transposed or column-sliced array is written with the values it shows,
#   or refused, as safetensors.torch refuses it.
# Instead: safetensors.numpy writes the memory that lies under the array in its
#   own order, with the shape of the view. The file is valid, the values are in the
#   wrong places. gguf's writer stores the same arrays correctly.
# Why it matters: converting weights means transposing them (a Linear kernel of JAX
#   or TensorFlow has the other order). The converted model loads without a word
#   and predicts noise. np.ascontiguousarray before saving is enough.
#
# Seen: [[0, 1, 2], [3, 4, 5]] transposed, saved and loaded:
#   safetensors [[0, 1], [2, 3], [4, 5]], gguf [[0, 3], [1, 4], [2, 5]]
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q safetensors==0.8.0 gguf==0.19.0 numpy==2.4.6
"$work/venv/bin/python" - "$work" <<'PY'
import sys

import gguf
import numpy as np
from safetensors.numpy import load_file, save_file

work = sys.argv[1]
weight = np.arange(6, dtype=np.float32).reshape(2, 3)
arrays = {"transposed": weight.T, "fortran": np.asfortranarray(weight), "columns": weight[:, :2]}

save_file(arrays, f"{work}/views.safetensors")
loaded = load_file(f"{work}/views.safetensors")
print(loaded["transposed"].tolist())
for name, array in arrays.items():
    assert loaded[name].shape == array.shape
    assert not np.array_equal(loaded[name], array), name
assert loaded["transposed"].tolist() == [[0, 1], [2, 3], [4, 5]]

save_file({name: np.ascontiguousarray(a) for name, a in arrays.items()}, f"{work}/copies.safetensors")
for name, array in load_file(f"{work}/copies.safetensors").items():
    assert np.array_equal(array, arrays[name]), name

writer = gguf.GGUFWriter(f"{work}/views.gguf", "test")
for name, array in arrays.items():
    writer.add_tensor(name, array)
writer.write_header_to_file()
writer.write_kv_data_to_file()
writer.write_tensors_to_file()
writer.close()
for tensor in gguf.GGUFReader(f"{work}/views.gguf").tensors:
    print("gguf", tensor.name, tensor.data.tolist())
    assert np.array_equal(tensor.data, arrays[tensor.name]), tensor.name
PY
