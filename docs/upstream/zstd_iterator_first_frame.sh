#!/usr/bin/env bash
# zstandard 0.25.0, pandas 3.1.1: zstd files of several frames.
#
# Guess: the ways in which one package reads a file agree, and one that cannot go on
#   behind the first frame says so.
# Instead: `stream_reader`, `copy_stream` and `open` of zstandard read all frames;
#   `read_to_iter`, its iterator over a stream, ends after the first one without an
#   error. pzstd, the parallel zstd, puts a skippable frame in front: there the
#   iterator yields nothing at all.
# Why it matters: corpora are packed with pzstd, or joined with `cat a.zst b.zst`,
#   which the format allows. A tokenizer or a line count over the iterator sees a
#   part of the corpus, or an empty one, and reports success.
#
# Seen, lines read of 30 (stream_reader, copy_stream, open, pandas; read_to_iter):
#   two frames 30, 10; skippable frame first 30, 0
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q zstandard==0.25.0 pandas==3.1.1
"$work/venv/bin/python" - "$work" <<'PY'
import io
import sys

import pandas as pd
import zstandard

path = f"{sys.argv[1]}/corpus.jsonl.zst"


def frame(lines):
    return zstandard.ZstdCompressor().compress(b'{"text": "a line"}\n' * lines)


def copied(source):
    target = io.BytesIO()
    zstandard.ZstdDecompressor().copy_stream(source, target)
    return target.getvalue()


SKIPPABLE = bytes.fromhex("502a4d18 04000000 00000000")  # magic number, length 4, content
for name, content, by_iterator in (
    ("one frame", frame(30), 30),
    ("two frames", frame(10) + frame(20), 10),
    ("skippable frame first", SKIPPABLE + frame(30), 0),
):
    with open(path, "wb") as file:
        file.write(content)
    lines = {
        "stream_reader": zstandard.ZstdDecompressor().stream_reader(open(path, "rb")).read().count(b"\n"),
        "copy_stream": copied(open(path, "rb")).count(b"\n"),
        "open": zstandard.open(path).read().count(b"\n"),
        "pandas": len(pd.read_json(path, lines=True)),
        "read_to_iter": b"".join(zstandard.ZstdDecompressor().read_to_iter(open(path, "rb"))).count(b"\n"),
    }
    print(name, lines)
    assert lines.pop("read_to_iter") == by_iterator
    assert set(lines.values()) == {30}
PY
