#!/usr/bin/env bash
# Show what a GPU does with this project, in seven minutes: speeds, the most deciding first, then its tests.
#   benchmarks/gpu.sh                    on one GPU; TXL_DATA: folder with enwik8 (otherwise the source code of Python)
#   benchmarks/gpu.sh --dry-run          the same parts on the CPU, at tiny sizes
set -euo pipefail
cd "$(dirname "$0")/.."
python=.venv/bin/python
[ -x "$python" ] || python=python3
exec "$python" -m benchmarks.gpu_session "$@"
