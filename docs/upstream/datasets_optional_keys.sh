#!/usr/bin/env bash
# datasets 5.2.0, pyarrow 26.0.1: rows in which a key is optional.
#
# Guess: a key that only some rows have becomes a column, with None elsewhere, as
#   when the same rows are read from JSON lines; streaming reads the same rows.
# Instead: Dataset.from_list, Dataset.from_generator and Dataset.map take the
#   columns from the first row alone. A key that the first row lacks is dropped from
#   all rows, without a word. Streaming keeps it, but only until the same generator
#   has once been built without streaming: from then on a later process that
#   streams it drops the key as well, as long as the cache is there.
# Why it matters: "system", "tools" or a loss mask exist in some conversations only.
#   Whether the model sees them depends on which row comes first and on what ran
#   before on this machine. Give `features`, or the key in every row.
#
# Seen: rows {n: 0}, {n: 1, mask: [1]}
#   from_list, from_generator, map   columns [n]; JSON lines: mask of row 1 is [1]
#   second row streamed: {n: 1, mask: [1]}; after from_generator: {n: 1}
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q datasets==5.2.0 pyarrow==26.0.1
export HF_HOME="$work/cache" HF_HUB_OFFLINE=1 HF_DATASETS_DISABLE_PROGRESS_BARS=1
cat > "$work/stream.py" <<'PY'
import json
import sys

from datasets import Dataset, IterableDataset


def generate():
    yield {"n": 0}
    yield {"n": 1, "mask": [1]}


if sys.argv[1] == "build":
    print(json.dumps(Dataset.from_generator(generate).column_names))
else:
    print(json.dumps(list(IterableDataset.from_generator(generate))[1]))
PY
run() { "$work/venv/bin/python" "$work/stream.py" "$1"; }
before=$(run stream) columns=$(run build) after=$(run stream)
printf 'streamed %s, columns %s, streamed %s\n' "$before" "$columns" "$after"
[[ $before == '{"n": 1, "mask": [1]}' ]]
[[ $columns == '["n"]' ]]
[[ $after == '{"n": 1}' ]]
"$work/venv/bin/python" - "$work" <<'PY'
import json
import sys

from datasets import Dataset, load_dataset

path = f"{sys.argv[1]}/rows.jsonl"
rows = [{"n": 0}, {"n": 1, "mask": [1]}]
with open(path, "w") as file:
    file.writelines(json.dumps(row) + "\n" for row in rows)

assert load_dataset("json", data_files=path, split="train")[1] == rows[1]
assert Dataset.from_list(rows).column_names == ["n"]
assert Dataset.from_list(rows[::-1])[0] == rows[1], "kept when the first row has it"
mapped = Dataset.from_dict({"i": [0, 1]}).map(lambda row: rows[row["i"]])
assert mapped.column_names == ["i", "n"], mapped.column_names
PY
