#!/usr/bin/env bash
# transformers 5.24.0, torch 2.13.0: positions that begin anew or jump.
#
# Guess: `use_cache` decides whether keys are returned, not the loss; `position_ids`
#   say where tokens are, and who sees whom is said by the attention mask.
# Instead: without a cache and without a mask every jump of position_ids is taken for
#   the start of another document, and attention does not cross it. With use_cache,
#   True unless one says otherwise, or with a mask of ones, attention crosses it.
# Why it matters: packed documents, whose positions begin anew, are apart only with
#   use_cache=False: an evaluation that leaves it out measures another loss than the
#   training. Positions with gaps, meant to train for longer texts, need the contrary:
#   without a cache each part is alone, and with every second position a token sees
#   nothing but itself.
#
# Seen, loss of the last document: alone 5.9308; packed 5.9308 with use_cache=False,
#   5.4701 without the argument or with a mask of ones. At every second position the
#   last logits change by 0 with use_cache=False when all earlier tokens change, by 6.6
#   without the argument.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3.11 -m venv "$work/venv"
"$work/venv/bin/pip" install -q torch==2.13.0 transformers==5.24.0
cat > "$work/packed.py" <<'PY'
import torch
from transformers import LlamaConfig, LlamaForCausalLM

LENGTHS = [20, 13, 31]
generator = torch.Generator().manual_seed(1)
documents = [torch.randint(64, (1, length), generator=generator) for length in LENGTHS]
packed = torch.cat(documents, 1)
restarting = torch.cat([torch.arange(length) for length in LENGTHS])[None]
ones = torch.ones_like(packed)

torch.manual_seed(0)
model = LlamaForCausalLM(LlamaConfig(
    vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
    num_attention_heads=4, max_position_embeddings=512, initializer_range=0.3,
)).eval()


@torch.no_grad()
def loss(tokens, **options):
    """Return the loss of the tokens of the last document, its first one excepted."""
    logits = model(tokens, **options).logits[0, -LENGTHS[-1] : -1]
    return torch.nn.functional.cross_entropy(logits, tokens[0, -LENGTHS[-1] + 1 :]).item()


alone = loss(documents[-1])
apart = loss(packed, position_ids=restarting, use_cache=False)
by_default = loss(packed, position_ids=restarting)
masked = loss(packed, position_ids=restarting, use_cache=False, attention_mask=ones)
print(f"alone {alone:.4f}, packed: use_cache=False {apart:.4f},",
      f"without the argument {by_default:.4f}, mask of ones {masked:.4f}")
assert abs(apart - alone) < 1e-4
assert abs(by_default - alone) > 1e-2 and abs(by_default - masked) < 1e-4
assert abs(loss(packed, use_cache=False) - loss(packed, use_cache=True)) < 1e-4

every_second = 2 * torch.arange(packed.shape[1])[None]
changed = packed.clone()
changed[0, :-1] = (changed[0, :-1] + 7) % 64


@torch.no_grad()
def last(tokens, **options):
    return model(tokens, position_ids=every_second, **options).logits[0, -1]


without = (last(packed, use_cache=False) - last(changed, use_cache=False)).abs().max().item()
usual = (last(packed) - last(changed)).abs().max().item()
print(f"every second position, change of the last logits: {without:.4f} and {usual:.4f}")
assert without == 0 and usual > 0.1
PY
"$work/venv/bin/python" "$work/packed.py"
