#!/usr/bin/env bash
# polars 2.1.0, pyarrow 26.0.1, pandas 3.1.1: JSON lines whose first lists are empty.
#
# Guess: the reader takes the type of a list from the first one with content, or
#   stops with an error if it has settled on another.
# Instead: after 100 lines with `[]` polars has settled on "list of null", and every
#   later token id becomes null. The lists keep their lengths and are not null
#   themselves, so row counts, lengths and null counts of the column look right.
#   For a plain null followed by a value the same reader does raise an error.
# Why it matters: optional lists of ids (a prompt's prefix, rejected answers, tool
#   calls) are empty in most lines. `infer_schema_length=None` or a schema helps.
#
# Seen: 100 lines {"ids": []}, then {"ids": [5, 6]}: the last row is [None, None] in
#   polars (read_ndjson and scan_ndjson), [5, 6] in pyarrow and pandas.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q polars==2.1.0 pyarrow==26.0.1 pandas==3.1.1
"$work/venv/bin/python" - "$work" <<'PY'
import sys

import pandas as pd
import polars as pl
import pyarrow.json

path = f"{sys.argv[1]}/documents.jsonl"
with open(path, "w") as file:
    file.write('{"ids": []}\n' * 100 + '{"ids": [5, 6]}\n')

for frame in (pl.read_ndjson(path), pl.scan_ndjson(path).collect()):
    print("polars", frame.schema, frame["ids"][-1].to_list())
    assert frame["ids"][-1].to_list() == [None, None]
    assert frame["ids"].null_count() == 0
    assert frame["ids"].list.len().sum() == 2, "the lengths are right"

assert pl.read_ndjson(path, infer_schema_length=None)["ids"][-1].to_list() == [5, 6]
assert pyarrow.json.read_json(path)["ids"][-1].as_py() == [5, 6]
assert pd.read_json(path, lines=True)["ids"].iloc[-1] == [5, 6]

with open(path, "w") as file:
    file.write('{"ids": null}\n' * 100 + '{"ids": [5, 6]}\n')
try:
    pl.read_ndjson(path)
except pl.exceptions.ComputeError as error:
    print("after nulls:", error)
else:
    raise AssertionError("null, then a list: no error any more")
PY
