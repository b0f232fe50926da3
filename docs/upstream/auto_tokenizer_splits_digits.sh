#!/usr/bin/env bash
# transformers 5.24.0, tokenizers 0.23.3: one tokenizer.json, two loaders.
#
# Guess: AutoTokenizer gives the tokenizer that tokenizer.json describes.
# Instead: a config.json with model_type "qwen2" in the same folder makes it take only
#   vocabulary and merges from the file and Qwen2's own pre-tokenizer, which splits
#   numbers into digits. tokenizer_config.json, as save_pretrained wrote it, does not
#   prevent that. PreTrainedTokenizerFast reads the file as it is, and so does
#   AutoTokenizer beside a config of "llama".
# Why it matters: a model of Qwen2's architecture is trained on the ids of a new
#   tokenizer. An evaluation with AutoTokenizer gives it other ids: it never saw
#   numbers split so, and a text has another number of tokens. Decoding gives the same
#   text, so a round trip shows nothing.
#
# Seen, "In 2024 it sold 1000000 more than in 2023.": tokenizer.json 10 ids, beside
#   "llama" 10, beside "qwen2" 25
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q transformers==5.24.0 tokenizers==0.23.3
cat > "$work/load.py" <<'PY'
import json
import sys

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

TEXT = "In 2024 it sold 1000000 more than in 2023."
folder = sys.argv[1]

trained = Tokenizer(models.BPE())
trained.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
trained.decoder = decoders.ByteLevel()
trained.train_from_iterator([TEXT] * 9, trainers.BpeTrainer(
    vocab_size=400, show_progress=False, special_tokens=["<|endoftext|>"],
    initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
))
expected = trained.encode(TEXT)
PreTrainedTokenizerFast(
    tokenizer_object=trained, eos_token="<|endoftext|>"
).save_pretrained(folder)

for model_type in ("llama", "qwen2"):
    with open(f"{folder}/config.json", "w") as file:
        json.dump({"model_type": model_type}, file)
    fast = PreTrainedTokenizerFast.from_pretrained(folder)
    auto = AutoTokenizer.from_pretrained(folder)
    print(model_type, len(fast.encode(TEXT)), len(auto.encode(TEXT)), auto.tokenize(TEXT))
    assert fast.encode(TEXT) == expected.ids
    assert auto.get_vocab() == fast.get_vocab() == trained.get_vocab()
    assert auto.decode(auto.encode(TEXT)) == TEXT
    if model_type == "llama":
        assert auto.encode(TEXT) == expected.ids
    else:
        digits = sum(character.isdigit() for character in TEXT)
        single = [token for token in auto.tokenize(TEXT) if token.isdigit()]
        assert len(single) == digits == 15
        assert len(auto.encode(TEXT)) > 2 * len(expected.ids)
PY
"$work/venv/bin/python" "$work/load.py" "$work/tokenizer"
