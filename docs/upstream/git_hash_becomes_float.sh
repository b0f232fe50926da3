#!/usr/bin/env bash
# PyYAML 6.0.4, omegaconf 2.3.0, hydra-core 1.3.8: strings of digits with an "e".
#
# Guess: a string that PyYAML writes into a file is a string for OmegaConf as well.
# Instead: PyYAML puts quotes only around what PyYAML itself would take for a number.
#   1e5 without a point is none for it and is one for OmegaConf, and for Hydra's
#   command line too. The other direction is safe: OmegaConf writes the quotes.
# Why it matters: about one in fifty short git hashes has this form ("785e203").
#   Written into a file by PyYAML and read back by Hydra, the commit of a run is
#   7.85e+205, or inf, and so is `commit=785e203` on the command line. A look-up by
#   commit then fails for a few runs only.
#
# Seen: safe_dump writes `commit: 785e203`; OmegaConf reads the float 7.85e+205.
#   Of 20,000 hashes of seven digits 423 are no longer strings, 229 of them are inf.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q PyYAML==6.0.4 omegaconf==2.3.0 hydra-core==1.3.8
"$work/venv/bin/python" - "$work" <<'PY'
import hashlib
import math
import sys
from pathlib import Path

import yaml
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

text = yaml.safe_dump({"commit": "785e203"})
print(text, OmegaConf.create(text), sep="")
assert text == "commit: 785e203\n"
assert yaml.safe_load(text) == {"commit": "785e203"}
assert OmegaConf.create(text).commit == 7.85e205

quoted = OmegaConf.to_yaml(OmegaConf.create({"commit": "785e203"}))
assert quoted == "commit: '785e203'\n"
assert yaml.safe_load(quoted) == OmegaConf.create(quoted) == {"commit": "785e203"}

Path(sys.argv[1], "config.yaml").write_text("commit: null\n")
with initialize_config_dir(sys.argv[1], version_base="1.3"):
    assert compose("config", overrides=["commit=785e203"]).commit == 7.85e205

hashes = [hashlib.sha1(str(number).encode()).hexdigest()[:7] for number in range(20_000)]
read = OmegaConf.to_container(OmegaConf.create(yaml.safe_dump(hashes)))
changed = [value for value, written in zip(read, hashes) if value != written]
infinite = [value for value in changed if math.isinf(value)]
print(len(changed), "of 20,000 are floats,", len(infinite), "of them inf")
assert all(type(value) is float for value in changed)
assert (len(changed), len(infinite)) == (423, 229)
PY
