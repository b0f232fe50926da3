#!/usr/bin/env bash
# tokenizers 0.23.3, tiktoken 0.14.0: `\p{N}{1,3}+` means two things.
#
# Guess: the expression that tiktoken splits with can be given to tokenizers'
#   Split(Regex(...)), and both cut a text at the same places.
# Instead: tiktoken reads `{1,3}+` as a possessive "one to three digits". The
#   engine of tokenizers reads it as "groups of one to three digits, one or more
#   times", so that a number of any length stays in one piece. There is no
#   warning. Without the plus the two agree.
# Why it matters: with the same vocabulary and the same merges, numbers get other
#   ids. A model trained with one of the two sees unknown spellings of numbers
#   from the other, and its loss on digits is not comparable.
#
# Seen: pieces of "In 1234567 words"
#   possessive: 'In', ' ', '1234567', ' ', 'words'
#   plain:      'In', ' ', '123', '456', '7', ' ', 'words'
#   ids of "1234567": tiktoken [13, 14, 7], tokenizers [13, 11, 12]
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q tokenizers==0.23.3 tiktoken==0.14.0
"$work/venv/bin/python" - <<'PY'
import tiktoken
from tokenizers import Regex, Tokenizer, models, pre_tokenizers

POSSESSIVE = r"\p{N}{1,3}+|\p{L}+| "
PLAIN = r"\p{N}{1,3}|\p{L}+| "


def pieces(pattern):
    split = pre_tokenizers.Split(Regex(pattern), "isolated")
    return [piece for piece, _ in split.pre_tokenize_str("In 1234567 words")]


print("possessive", pieces(POSSESSIVE))
print("plain     ", pieces(PLAIN))
assert pieces(POSSESSIVE) == ["In", " ", "1234567", " ", "words"]
assert pieces(PLAIN) == ["In", " ", "123", "456", "7", " ", "words"]

merges = [("2", "3"), ("4", "5"), ("6", "7"), ("1", "23"), ("45", "6")]
vocabulary = {str(digit): digit for digit in range(10)}
vocabulary |= {left + right: 10 + rank for rank, (left, right) in enumerate(merges)}
ranks = {token.encode(): rank for token, rank in vocabulary.items()}


def ids(pattern):
    theirs = tiktoken.Encoding("t", pat_str=pattern, mergeable_ranks=ranks, special_tokens={})
    tokenizer = Tokenizer(models.BPE(vocabulary, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(pattern), "isolated")
    return theirs.encode("1234567"), tokenizer.encode("1234567").ids


print("possessive", ids(POSSESSIVE))
print("plain     ", ids(PLAIN))
assert ids(POSSESSIVE) == ([13, 14, 7], [13, 11, 12])
assert ids(PLAIN) == ([13, 14, 7], [13, 14, 7])
PY
