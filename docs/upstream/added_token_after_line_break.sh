#!/usr/bin/env bash
# tokenizers 0.23.3: tokens added to a tokenizer with Llama 2's normalizer
#   (Prepend "▁", Replace " " by "▁").
#
# Guess: an added token is found wherever its text stands, and nothing else in the
#   text changes.
# Instead: `add_tokens` passes the new token through the normalizer too, so that it
#   is looked for with "▁" in front: it is found after a space and at the start, and
#   not after a letter or a line break. `add_special_tokens` finds it everywhere,
#   but every part after it is normalized on its own and gets a "▁": a space that
#   the text does not have.
# Why it matters: chat and tool markers stand after line breaks. Added the first way
#   the model sees them spelled out; added the second way prompts written by hand
#   and texts that were decoded and encoded again differ by spaces.
#
# Seen for "a<sep>b": add_tokens ▁a < s e p > b; add_special_tokens ▁a <sep> ▁b,
#   decoded "a<sep> b". For "a <sep> b": ▁a ▁<sep> ▁b; ▁a ▁ <sep> ▁ ▁b, decoded with
#   two spaces before b.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q tokenizers==0.23.3
"$work/venv/bin/python" - <<'PY'
from tokenizers import Tokenizer, decoders, models, normalizers

VOCABULARY = ["<unk>", "▁", "a", "b", "<", ">", "s", "e", "p", "\n", "▁a", "▁b"]


def tokens(how, text):
    model = models.BPE(
        {token: index for index, token in enumerate(VOCABULARY)},
        [("▁", "a"), ("▁", "b")],
        unk_token="<unk>",
    )
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    getattr(tokenizer, how)(["<sep>"])
    encoding = tokenizer.encode(text)
    decoded = tokenizer.decode(encoding.ids, skip_special_tokens=False)
    print(f"{how:20}{text!r:14}{' '.join(map(repr, encoding.tokens))}  {decoded!r}")
    return encoding.tokens, decoded


spelled = ["<", "s", "e", "p", ">"]
assert tokens("add_tokens", "a <sep> b") == (["▁a", "▁<sep>", "▁b"], "a <sep> b")
assert tokens("add_tokens", "a<sep>b") == (["▁a", *spelled, "b"], "a<sep>b")
assert tokens("add_tokens", "a\n<sep>") == (["▁a", "\n", *spelled], "a\n<sep>")
assert tokens("add_special_tokens", "a\n<sep>") == (["▁a", "\n", "<sep>"], "a\n<sep>")
assert tokens("add_special_tokens", "a<sep>b") == (["▁a", "<sep>", "▁b"], "a<sep> b")
assert tokens("add_special_tokens", "a <sep> b") == (
    ["▁a", "▁", "<sep>", "▁", "▁b"],
    "a <sep>  b",
)
PY
