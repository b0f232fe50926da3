#!/usr/bin/env bash
# tokenizers 0.23.3: tokens added to a vocabulary with gaps take ids in use.
#
# Guess: `add_tokens` numbers new tokens from the greatest id plus one.
# Instead: it numbers them from the *number* of tokens. In a vocabulary that was
#   pruned and kept its ids, the numbers run into the old tokens: two tokens share
#   an id, and the old one is lost when ids are decoded.
# Why it matters: pruned vocabularies keep their ids, so that rows of the embedding
#   still fit. After such an addition the model trains one row for two tokens;
#   nothing fails.
#
# Seen: vocabulary {[UNK]: 0, cat: 1, dog: 4}, added <a>, <b>, <c>
#   ids  <a> 3, <b> 4, <c> 5; dog is still 4
#   encode("dog <b>") gives [4, 4], decode([4]) gives "<b>"
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q tokenizers==0.23.3
"$work/venv/bin/python" - <<'PY'
from tokenizers import Tokenizer, models, pre_tokenizers

tokenizer = Tokenizer(models.WordLevel({"[UNK]": 0, "cat": 1, "dog": 4}, unk_token="[UNK]"))
tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
assert tokenizer.encode("cat dog").ids == [1, 4]
assert tokenizer.decode([4]) == "dog"

assert tokenizer.add_tokens(["<a>", "<b>", "<c>"]) == 3
vocabulary = tokenizer.get_vocab()
print(vocabulary)
assert [vocabulary[token] for token in ("<a>", "<b>", "<c>", "dog")] == [3, 4, 5, 4]

print(tokenizer.encode("dog <b>").ids, tokenizer.decode([4]))
assert tokenizer.encode("dog <b>").ids == [4, 4]
assert tokenizer.decode([4]) == "<b>"

saved = Tokenizer.from_str(tokenizer.to_str())
assert saved.encode("dog <b>").ids == [4, 4], "the file keeps the collision"
PY
