#!/usr/bin/env bash
# datasets 5.2.0, pandas 3.1.1, polars 2.1.0: probabilities written as JSON lines.
#
# Guess: Dataset.to_json writes floats so that load_dataset gets the same ones back.
# Instead: it writes through pandas with ten decimals, except for numbers below
#   1e-15. So 1e-12 is read back as 0.0 while 1e-16 is kept, log-probabilities have
#   ten decimals, and infinity becomes null. polars writes the shortest text that
#   gives the same float.
# Why it matters: per-token probabilities saved for a later comparison give an
#   infinite loss (log 0) or a mean over fewer tokens (null), and a perplexity
#   recomputed from the file is not that of the run. Save Parquet;
#   `double_precision=15`, the most that is allowed, still loses digits.
#
# Seen: 1e-12 -> 0.0, 1e-16 -> 1e-16, 1/3 -> 0.3333333333, inf -> None
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q datasets==5.2.0 pandas==3.1.1 polars==2.1.0
export HF_HOME="$work/cache" HF_HUB_OFFLINE=1
"$work/venv/bin/python" - "$work" <<'PY'
import json
import math
import sys

import polars
from datasets import Dataset, disable_progress_bars, load_dataset

disable_progress_bars()
work = sys.argv[1]
values = [1e-12, 1e-16, 1 / 3, -0.10536051565782628, math.inf]
dataset = Dataset.from_dict({"p": values})


def written(name, **options):
    dataset.to_json(f"{work}/{name}.jsonl", **options)
    return load_dataset("json", data_files=f"{work}/{name}.jsonl", split="train")["p"][:]


ten, fifteen = written("ten"), written("fifteen", double_precision=15)
print(values, ten, fifteen, sep="\n")
assert ten == [0.0, 1e-16, 0.3333333333, -0.1053605157, None]
assert fifteen[:2] == values[:2] and fifteen[2] != 1 / 3 and fifteen[4] is None

dataset.to_parquet(f"{work}/p.parquet")
assert load_dataset("parquet", data_files=f"{work}/p.parquet", split="train")["p"][:] == values

lines = polars.DataFrame({"p": values}).write_ndjson().splitlines()
by_polars = [json.loads(line)["p"] for line in lines]
assert by_polars == [None if value == math.inf else value for value in values]
PY
