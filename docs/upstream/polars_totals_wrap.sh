#!/usr/bin/env bash
# polars 2.1.0, pyarrow 26.0.1, numpy 2.4.6: the total of a column of lengths.
#
# Guess: sums and running sums of 32-bit integers widen to 64 bits, as in numpy.
# Instead: polars keeps 32 bits in `sum` and `cum_sum`, pyarrow in
#   `cumulative_sum` (its `sum` widens). They wrap around at 2^32 or 2^31, without
#   a warning. polars widens 8 and 16 bits, so that small tests are right.
# Why it matters: `str.len_bytes()` and `list.len()` of polars are 32-bit columns.
#   From 4.3 GB of text, or that many tokens, the total is wrong, and with it the
#   bits per byte. Offsets of documents made by a running sum go negative.
#
# Seen, 5 documents of 1,000,000,000: total 705032704 in polars, 5000000000 in numpy
#   and pyarrow; running sum 1000000000, 2000000000, -1294967296, -294967296,
#   705032704 in polars and pyarrow for int32.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q polars==2.1.0 pyarrow==26.0.1 numpy==2.4.6
"$work/venv/bin/python" - <<'PY'
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

texts = pl.DataFrame({"text": ["a", "bc"], "ids": [[1], [2, 3]]})
widths = texts.select(pl.col("text").str.len_bytes(), pl.col("ids").list.len()).schema
assert list(widths.values()) == [pl.UInt32, pl.UInt32], widths

unsigned = np.full(5, 1_000_000_000, np.uint32)
signed = unsigned.astype(np.int32)
total = pl.DataFrame({"n": unsigned}).select(pl.col("n").sum()).item()
print("total: polars", total, "pyarrow", pc.sum(pa.array(unsigned)), "numpy", unsigned.sum())
assert total == 5_000_000_000 % 2**32 == 705_032_704
assert pc.sum(pa.array(unsigned)).as_py() == unsigned.sum() == 5_000_000_000

wrapped = [1_000_000_000, 2_000_000_000, -1_294_967_296, -294_967_296, 705_032_704]
by_polars = pl.Series(signed).cum_sum().to_list()
by_pyarrow = pc.cumulative_sum(pa.array(signed)).to_pylist()
print("running sum: polars", by_polars)
assert by_polars == by_pyarrow == wrapped
assert np.cumsum(signed).tolist() == [n * 1_000_000_000 for n in range(1, 6)]

small = np.full(5, 60_000, np.uint16)
assert pl.Series(small).sum() == 300_000, "16 bits widen"
assert pl.Series(unsigned).cast(pl.UInt64).sum() == 5_000_000_000, "a cast is enough"
PY
