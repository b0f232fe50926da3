#!/usr/bin/env bash
# transformers 5.24.0, tokenizers 0.23.3: what save_pretrained writes.
#
# Guess: calling a tokenizer does not change it; tokenizer.json is the same before and
#   after.
# Instead: truncation and padding of the last call stay in the tokenizer, and
#   save_pretrained writes them into tokenizer.json. AutoTokenizer sets both anew with
#   every call and never shows them; Tokenizer.from_file keeps to them.
# Why it matters: a tokenizer is saved beside the checkpoint after it was used, mostly
#   for a batch with truncation=True. A fast preparation with the tokenizers package then
#   cuts every document to the length of that batch, or fills short ones with padding,
#   without a word. Which of the two, if any, depends on the last call before saving.
#
# Seen, 6 words, after a call with truncation to 2: Tokenizer 2 ids, AutoTokenizer 6;
#   after a padded batch, two texts of 1 and 3 words: Tokenizer 3 and 3 ids,
#   AutoTokenizer 1 and 3; before any call: 6 and 6
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q transformers==5.24.0 tokenizers==0.23.3
export HF_HOME="$work/cache" HF_HUB_OFFLINE=1
cat > "$work/save.py" <<'PY'
import sys

from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

TEXT = "a b a b a b"
words = Tokenizer(models.WordLevel({"[UNK]": 0, "[PAD]": 1, "a": 2, "b": 3}, unk_token="[UNK]"))
words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, unk_token="[UNK]", pad_token="[PAD]")


def saved(name):
    """Return the tokenizers that the two packages load from what is saved now."""
    folder = f"{sys.argv[1]}/{name}"
    tokenizer.save_pretrained(folder)
    return Tokenizer.from_file(f"{folder}/tokenizer.json"), AutoTokenizer.from_pretrained(folder)


def lengths(texts, by_tokenizers, by_transformers):
    return (
        [len(encoding.ids) for encoding in by_tokenizers.encode_batch(texts)],
        [len(ids) for ids in by_transformers(texts)["input_ids"]],
    )


assert lengths([TEXT], *saved("new")) == ([6], [6])

tokenizer(TEXT, truncation=True, max_length=2)
cut = lengths([TEXT], *saved("cut"))
print("after truncation: Tokenizer and AutoTokenizer", *cut)
assert cut == ([2], [6])

tokenizer(["a", "a b"], padding=True)
padded = lengths(["a", "a b a"], *saved("padded"))
print("after padding: Tokenizer and AutoTokenizer", *padded)
assert padded == ([3, 3], [1, 3])

tokenizer(TEXT)
assert lengths([TEXT, "a"], *saved("plain")) == ([6, 1], [6, 1])
PY
"$work/venv/bin/python" "$work/save.py" "$work" 2> "$work/log" || { cat "$work/log"; exit 1; }
