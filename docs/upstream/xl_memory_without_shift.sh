#!/usr/bin/env bash
# x-transformers 2.31.10, torch 2.13.0: Transformer-XL's memory and shift_tokens.
#
# Guess: with a memory as long as the text so far, the second segment is read as if the
#   text had not been cut: true for rotary positions, ALiBi, T5's and dynamic biases.
# Instead: with `shift_tokens` the memory holds the states before the shift, while those
#   of the segment are shifted. Each layer's keys and values of the past are made from
#   other inputs than they were in the past, for every token of the segment and also in a
#   model of one layer. The first token also loses the part of its predecessor.
# Why it matters: a model trained on whole windows gets keys it never saw as soon as it
#   is given a memory; its loss then measures that, not what the memory is worth, and it
#   depends on where the text is cut.
#
# Seen, 64 tokens read as 32 + 32 with memory, greatest change of the logits of the first
#   and the last token of the second segment (standard deviation of the logits 1.6):
#   rotary 1e-06, 3e-06; ALiBi, T5, dynamic 0, 0; rotary with shift_tokens 3.8, 1.7
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3.11 -m venv "$work/venv"
"$work/venv/bin/pip" install -q torch==2.13.0 x-transformers==2.31.10
cat > "$work/memory.py" <<'PY'
import torch
from x_transformers import Decoder, TransformerWrapper

OPTIONS = {
    "rotary": dict(rotary_pos_emb=True),
    "ALiBi": dict(alibi_pos_bias=True),
    "T5": dict(rel_pos_bias=True),
    "dynamic": dict(dynamic_pos_bias=True),
    "rotary, shifted": dict(rotary_pos_emb=True, shift_tokens=1),
}
tokens = torch.randint(64, (1, 64), generator=torch.Generator().manual_seed(0))
for name, options in OPTIONS.items():
    for depth in (1, 2):
        torch.manual_seed(0)
        model = TransformerWrapper(
            num_tokens=64, max_seq_len=64, max_mem_len=64, use_abs_pos_emb=False,
            attn_layers=Decoder(dim=64, depth=depth, heads=2, attn_dim_head=32, **options),
        ).eval()
        for weight in model.parameters():
            if weight.ndim > 1:
                torch.nn.init.normal_(weight, std=0.2)
        with torch.no_grad():
            whole = model(tokens)
            first, memory = model(tokens[:, :32], return_mems=True)
            second = model(tokens[:, 32:], mems=memory)
        change = (second - whole[:, 32:]).abs().amax(-1)[0]
        print(f"{name}, {depth} layers: {change[0]:.1e}, {change[-1]:.1e}; {whole.std():.1f}")
        assert (first - whole[:, :32]).abs().max() < 1e-3
        if "shift_tokens" in options:
            assert change.min() > 0.05
        else:
            assert change.max() < 1e-3
PY
"$work/venv/bin/python" "$work/memory.py" 2> "$work/log" || { cat "$work/log"; exit 1; }
