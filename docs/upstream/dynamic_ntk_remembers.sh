#!/usr/bin/env bash
# transformers 5.24.0, torch 2.13.0: dynamic NTK and the window read before.
#
# Guess: rope_type "dynamic" rotates a window for its own length, and a loss without a
#   key-value cache depends on nothing but the weights and the tokens.
# Instead: the model keeps the frequencies of the longest window it has read. A shorter
#   one, down to the trained length itself, is rotated for that length, until a window
#   shorter than the trained length comes between. rope_type "linear" remembers nothing.
# Why it matters: losses by length depend on the order of measuring. From long to
#   short, all lengths are rotated for the longest one; even the loss at the trained
#   length changes after a single longer window.
#
# Seen, trained length 128, loss of the same first 128 and 150 tokens:
#   read first 5.3969 and 5.3868, after a window of 240 tokens 5.1243 and 5.1653
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3.11 -m venv "$work/venv"
"$work/venv/bin/pip" install -q torch==2.13.0 transformers==5.24.0
cat > "$work/losses.py" <<'PY'
import torch
from transformers import LlamaConfig, LlamaForCausalLM

TOKENS = torch.randint(64, (1, 240), generator=torch.Generator().manual_seed(1))


@torch.no_grad()
def losses(rope_type, lengths):
    """Return the loss of the first `length` tokens for each length, in this order."""
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=2, max_position_embeddings=128, initializer_range=0.3,
        rope_parameters={"rope_type": rope_type, "factor": 2.0, "rope_theta": 10000.0},
    )).eval()
    return [
        model(TOKENS[:, :length], labels=TOKENS[:, :length], use_cache=False).loss.item()
        for length in lengths
    ]


for length in (128, 150):
    alone, again = losses("dynamic", [length, length])
    _, after_longer = losses("dynamic", [240, length])
    _, _, after_shorter = losses("dynamic", [240, 127, length])
    print(f"{length} tokens: first {alone:.4f}, after 240 {after_longer:.4f},",
          f"after 240 and 127 {after_shorter:.4f}")
    assert abs(alone - again) < 1e-5 and abs(alone - after_shorter) < 1e-5
    assert abs(alone - after_longer) > 1e-2

    alone, = losses("linear", [length])
    _, after_longer = losses("linear", [240, length])
    assert abs(alone - after_longer) < 1e-5
PY
"$work/venv/bin/python" "$work/losses.py"
