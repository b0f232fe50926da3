#!/usr/bin/env bash
# hydra-core 1.3.8, omegaconf 2.3.0: one text, two values.
#
# Guess: `x: TEXT` in a config file and `x=TEXT` on the command line give the same
#   value; at most `on` and `off` may differ.
# Instead: the file follows YAML 1.1, the command line Hydra's own grammar. A time
#   becomes a number in the file only (base 60), a leading zero means octal in the
#   file only, and no spelling of infinity is a float in both.
# Why it matters: a Slurm limit "1:30:00" moved from the command line into a file
#   becomes 5400. Clipping at `inf` given in a file is a string unless the field has
#   a type. A seed 010 is 8 in one place. Quote such values in files.
#
# Seen (file, command line):
#   1:30:00  5400, '1:30:00'    010  8, '010'     on    True, 'on'
#   inf      'inf', inf         .inf inf, '.inf'  +.5   '+.5', 0.5
#   equal: 1e-4, 1_000, true, null, 2024-01-01
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q hydra-core==1.3.8 omegaconf==2.3.0
"$work/venv/bin/python" - "$work" <<'PY'
import sys
from math import inf
from pathlib import Path

from hydra import compose, initialize_config_dir

texts = {
    "1:30:00": (5400, "1:30:00"),
    "010": (8, "010"),
    "0x10": (16, "0x10"),
    "on": (True, "on"),
    "inf": ("inf", inf),
    ".inf": (inf, ".inf"),
    "+.5": ("+.5", 0.5),
    "1e-4": (1e-4, 1e-4),
    "1_000": (1000, 1000),
    "true": (True, True),
    "null": (None, None),
    "2024-01-01": ("2024-01-01", "2024-01-01"),
}
folder = Path(sys.argv[1]) / "conf"
folder.mkdir()
for text, expected in texts.items():
    (folder / "config.yaml").write_text(f"x: {text}\n")
    with initialize_config_dir(str(folder), version_base="1.3"):
        in_file = compose("config").x
        override = compose("config", overrides=[f"x={text}"]).x
    print(f"{text:12}{in_file!r:14}{override!r}")
    for value, wanted in zip((in_file, override), expected):
        assert type(value) is type(wanted) and value == wanted, (text, value)
PY
