#!/usr/bin/env bash
# datasets 5.2.0, pyarrow 26.0.1, pandas 3.1.1, polars 2.1.0, orjson 3.13.0
#
# Guess: an integer in JSON is read exactly, or refused where it does not fit.
# Instead: from 2^63 on datasets (pyarrow) turns the whole column into floats, the
#   small numbers too; from 2^64 on orjson turns the number into a float. Both are
#   silent. pandas and polars read 64 unsigned bits exactly, Python's json any size.
# Why it matters: 64-bit hashes (xxhash, MinHash bands) are document ids, and half of
#   them are above 2^63. As floats, ids up to about 1,000 apart are equal: removing
#   duplicates or test documents by id removes others, or none, because they no
#   longer match the exact ids of another reader. Whether it happens depends on the
#   file: a shard without a large id stays exact. Write hashes as strings.
#
# Seen: ids 1, 2^63, 2^63 + 1: datasets [1.0, 9.223372036854775808e18, the same again];
#   ids 2^53 + 1, 2^63: the first becomes 2^53; orjson of 2^64: 18446744073709552000.0
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q datasets==5.2.0 pyarrow==26.0.1 pandas==3.1.1 \
  polars==2.1.0 orjson==3.13.0
export HF_HOME="$work/cache" HF_HUB_OFFLINE=1 HF_DATASETS_DISABLE_PROGRESS_BARS=1
"$work/venv/bin/python" - "$work" <<'PY'
import json
import sys

import orjson
import pandas as pd
import polars as pl
from datasets import load_dataset


def read(name, ids):
    path = f"{sys.argv[1]}/{name}.jsonl"
    with open(path, "w") as file:
        file.writelines(f'{{"id": {number}}}\n' for number in ids)
    by_datasets = load_dataset("json", data_files=path, split="train")["id"][:]
    print(name, by_datasets)
    assert pd.read_json(path, lines=True)["id"].tolist() == ids
    assert pl.read_ndjson(path)["id"].to_list() == ids
    return by_datasets


large = read("large", [1, 2**63, 2**63 + 1])
assert large == [1.0, float(2**63), float(2**63)] and type(large[0]) is float
assert len(set(large)) == 2, "two of three ids are equal"
mixed = read("mixed", [2**53 + 1, 2**63])
assert mixed[0] == 2**53, "a small id changes because of a large one"
assert read("small", [2**53 + 1, 2**63 - 1]) == [2**53 + 1, 2**63 - 1]

for number in (2**64 - 1, 2**64, 2**127 + 1):
    value = orjson.loads(str(number))
    print("orjson", repr(value))
    assert type(value) is (int if number < 2**64 else float)
    assert json.loads(str(number)) == number
PY
