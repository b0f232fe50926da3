#!/usr/bin/env bash
# tokenizers 0.23.3: WordPiece (and BPE with a prefix or suffix) trained twice.
#
# Guess: the same trainer on the same text gives the same tokenizer, as BPE without
#   affixes does.
# Instead: the tokens are the same, their ids are not. Single characters with the
#   continuation mark ("##a"), or with an end-of-word suffix ("a</w>"), are numbered
#   in an order that changes with every process.
# Why it matters: a data set that was encoded with the first tokenizer cannot be
#   read with one trained again by the same recipe, although size, tokens and token
#   counts agree. Keep the file; a seed does not help, there is none.
#
# Seen: 5 processes, 5 vocabularies for WordPiece and for BPE with "</w>", one for
#   plain BPE; the set of tokens and the number of ids of the text always equal.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q tokenizers==0.23.3
cat > "$work/train.py" <<'PY'
import json
import string

from tokenizers import Tokenizer, models, pre_tokenizers, trainers

letters = string.ascii_lowercase
words = [letters[i % 26] + letters[i * 7 % 26] + letters[i * 11 % 26] for i in range(200)]
text = [" ".join(words)] * 3
options = {"vocab_size": 150, "show_progress": False}
out = {}
for name, model, trainer in (
    ("WordPiece", models.WordPiece(unk_token="[UNK]"),
     trainers.WordPieceTrainer(special_tokens=["[UNK]"], **options)),
    ("BPE </w>", models.BPE(end_of_word_suffix="</w>"),
     trainers.BpeTrainer(end_of_word_suffix="</w>", **options)),
    ("BPE", models.BPE(), trainers.BpeTrainer(**options)),
):
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.train_from_iterator(text, trainer)
    out[name] = [tokenizer.get_vocab(), len(tokenizer.encode(text[0]).ids)]
print(json.dumps(out, sort_keys=True))
PY
for run in 1 2 3 4 5; do "$work/venv/bin/python" "$work/train.py" > "$work/$run.json"; done
"$work/venv/bin/python" - "$work" <<'PY'
import json
import sys

runs = [json.load(open(f"{sys.argv[1]}/{run}.json")) for run in range(1, 6)]
for name, different in (("WordPiece", True), ("BPE </w>", True), ("BPE", False)):
    vocabularies = {json.dumps(run[name][0], sort_keys=True) for run in runs}
    print(name, len(vocabularies), "vocabularies in 5 runs,", runs[0][name][1], "ids")
    assert len({run[name][1] for run in runs}) == 1
    assert len({frozenset(run[name][0]) for run in runs}) == 1
    assert (len(vocabularies) > 1) == different
PY
