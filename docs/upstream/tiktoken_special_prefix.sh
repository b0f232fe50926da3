#!/usr/bin/env bash
# tiktoken 0.14.0, tokenizers 0.23.3: special tokens that begin alike.
#
# Guess: where several special tokens match, the longest is taken, by both.
# Instead: tokenizers takes the longest. tiktoken tries them in an order of its own,
#   which neither the ids nor the order given decide, and takes the first that
#   matches: a longer token may never be found at all.
# Why it matters: code vocabularies (CodeGen, Phi) hold runs of 2 to 31 spaces as
#   added tokens. The same table of tokens gives other ids and, in indented text,
#   several times as many tokens.
#
# Seen, with tokens for runs of 2 to 24 spaces (ids 256 to 278), number of tokens
#   for a run of 8 and of 24 spaces: tiktoken 4 and 2, tokenizers 1 and 1.
#   With "User:" = 256 and "User: " = 257, "User: x" begins with 256, 32 in
#   tiktoken and with 257 in tokenizers.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q tiktoken==0.14.0 tokenizers==0.23.3
"$work/venv/bin/python" - <<'PY'
import tiktoken
from tokenizers import Tokenizer, models, pre_tokenizers

BYTES = pre_tokenizers.ByteLevel.alphabet()


def by_tiktoken(special, text):
    encoding = tiktoken.Encoding(
        "t",
        pat_str=r"\S+|\s+",
        mergeable_ranks={bytes([value]): value for value in range(256)},
        special_tokens={token: 256 + index for index, token in enumerate(special)},
    )
    return encoding.encode(text, allowed_special="all")


def by_tokenizers(special, text):
    tokenizer = Tokenizer(models.BPE({char: rank for rank, char in enumerate(BYTES)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.add_special_tokens(special)
    return tokenizer.encode(text).ids


runs = [" " * length for length in range(2, 25)]
for length, expected in ((8, [256] * 4), (24, [276, 256])):
    theirs = by_tiktoken(runs, " " * length)
    print(length, "spaces:", theirs, by_tokenizers(runs, " " * length))
    assert theirs == expected
    assert by_tokenizers(runs, " " * length) == [254 + length]

for special in (["User:", "User: "], ["User: ", "User:"]):
    short, long = 256 + special.index("User:"), 256 + special.index("User: ")
    print(special, by_tiktoken(special, "User: x")[:2], by_tokenizers(special, "User: x")[:1])
    assert by_tiktoken(special, "User: x")[:2] == [short, ord(" ")]
    assert by_tokenizers(special, "User: x")[0] == long
PY
