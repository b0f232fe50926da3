#!/usr/bin/env bash
# triton 3.7.1 and 3.9.0, torch 2.13.0: products of bfloat16 in Triton's interpreter.
#
# Guess: TRITON_INTERPRET=1 runs a kernel with NumPy, slowly, but with the numbers that a
#   GPU gives up to rounding; a test of a kernel needs no GPU.
# Instead: NumPy has no bfloat16, so the interpreter keeps the 16 bits as unsigned integers.
#   Loads, stores and conversions know that; tl.dot multiplies the integers. Ones times ones,
#   16 columns, are 4.2e9 instead of 16. Nothing is raised and nothing is nan.
# Why it matters: bfloat16 is the type in which attention kernels are trained. A test of one
#   in the interpreter fails by 10^9 and looks like a wrong kernel; a test that compares two
#   kernels, or looks for nan and infinity alone, passes. float16 and float32 are right.
#
# Seen: float32 16.0, float16 16.0, bfloat16 4228120576.0 (= 16 · 0x3f80²), with both versions
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3.11 -m venv "$work/venv"
cat > "$work/dot.py" <<'PY'
import torch
import triton
import triton.language as tl


@triton.jit
def product(x, y, out, N: tl.constexpr):
    places = tl.arange(0, N)[:, None] * N + tl.arange(0, N)[None, :]
    tl.store(out + places, tl.dot(tl.load(x + places), tl.load(y + places)))


@triton.jit
def copied(x, out, N: tl.constexpr):
    places = tl.arange(0, N)[:, None] * N + tl.arange(0, N)[None, :]
    tl.store(out + places, tl.load(x + places).to(tl.float32))


found = {}
for dtype in (torch.float32, torch.float16, torch.bfloat16):
    ones, out = torch.ones(16, 16, dtype=dtype), torch.empty(16, 16)
    copied[(1,)](ones, out, 16)
    assert (out == 1).all()
    product[(1,)](ones, ones, out, 16)
    found[dtype] = out[0, 0].item()
    print(triton.__version__, dtype, found[dtype])
assert found[torch.float32] == found[torch.float16] == 16
assert found[torch.bfloat16] == 16 * 0x3F80**2
PY
"$work/venv/bin/pip" install -q torch==2.13.0 numpy==2.4.6
for version in 3.7.1 3.9.0; do
  "$work/venv/bin/pip" install -q --no-deps "triton==$version"
  TRITON_INTERPRET=1 "$work/venv/bin/python" "$work/dot.py"
done
