#!/usr/bin/env bash
# transformers 5.24.0, torch 2.13.0: forward with the cache of the text before.
#
# Guess: tokens given with a cache are numbered on from the tokens in it, as in Llama, so
#   that position_ids need not be given.
# Instead: Bamba numbers them from 0 again. So does MiniMax, because it asks the cache of
#   its first layer, a linear one, how long the text is; from two tokens on it also
#   masks as if there were no text before, even if position_ids are given. The same
#   model with an attention layer first is right, and so is GraniteMoeHybrid.
# Why it matters: `generate` numbers the tokens itself and gives the right text, so that
#   the cache seems to be sound. Scoring with it, options after a common question or a
#   long text in parts, measures another model.
#
# Seen, 64 tokens, greatest error of the logits from token 40 on, in one part and one by
#   one, and one by one with position_ids:
#   Bamba             0.85, 0.77, 4e-06        MiniMax    3.3, 4.4, 2e-06
#   GraniteMoeHybrid  2e-06, 3e-06, 3e-06      MiniMax, attention first  1e-06, 2e-06, 2e-06
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3.11 -m venv "$work/venv"
"$work/venv/bin/pip" install -q torch==2.13.0 transformers==5.24.0
cat > "$work/positions.py" <<'PY'
import torch
from transformers import (
    BambaConfig, BambaForCausalLM, GraniteMoeHybridConfig, GraniteMoeHybridForCausalLM,
    MiniMaxConfig, MiniMaxForCausalLM,
)

COMMON = dict(
    vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
    num_attention_heads=4, num_key_value_heads=2, initializer_range=0.2,
    pad_token_id=0, bos_token_id=1, eos_token_id=2,
)
MAMBA = dict(
    mamba_n_heads=8, mamba_d_head=8, mamba_d_state=8, mamba_n_groups=1, mamba_chunk_size=8
)


def minimax(*layer_types):
    return MiniMaxForCausalLM(MiniMaxConfig(
        **COMMON, head_dim=8, block_size=8, layer_types=list(layer_types),
        num_local_experts=2, num_experts_per_tok=1,
    ))


MODELS = {
    "Bamba": lambda: BambaForCausalLM(BambaConfig(**COMMON, **MAMBA, attn_layer_indices=[1])),
    "MiniMax": lambda: minimax("linear_attention", "full_attention"),
    "GraniteMoeHybrid": lambda: GraniteMoeHybridForCausalLM(GraniteMoeHybridConfig(
        **COMMON, **MAMBA, layer_types=["mamba", "attention"], position_embedding_type="rope",
        num_local_experts=0, num_experts_per_tok=0, shared_intermediate_size=64,
    )),
    "MiniMax, attention first": lambda: minimax("full_attention", "linear_attention"),
}
tokens = torch.randint(3, 64, (1, 64), generator=torch.Generator().manual_seed(0))


@torch.no_grad()
def error(model, ends, numbered=False):
    """Return the greatest error of the logits after the first part."""
    whole, cache, parts, start = model(tokens, use_cache=False).logits, None, [], 0
    for end in ends:
        given = {"position_ids": torch.arange(start, end)[None]} if numbered else {}
        output = model(tokens[:, start:end], cache=cache, use_cache=True, **given)
        cache, start = output.cache, end
        parts.append(output.logits)
    return (torch.cat(parts, 1) - whole)[:, ends[0] :].abs().max().item()


@torch.no_grad()
def greedy(model, n):
    text = tokens[:, :40]
    for _ in range(n):
        text = torch.cat([text, model(text, use_cache=False).logits[:, -1:].argmax(-1)], 1)
    return text


for name, build in MODELS.items():
    torch.manual_seed(0)
    model = build().eval()
    one_by_one = range(40, 65)
    part, single = error(model, [40, 64]), error(model, one_by_one)
    numbered_part, numbered = error(model, [40, 64], True), error(model, one_by_one, True)
    print(f"{name}: {part:.1e}, {single:.1e},",
          f"with position_ids {numbered_part:.1e}, {numbered:.1e}")
    assert numbered < 1e-3
    assert (part > 0.1 and single > 0.1) == (name in ("Bamba", "MiniMax"))
    assert (numbered_part > 0.1) == (name == "MiniMax")

    generated = model.generate(
        tokens[:, :40], attention_mask=torch.ones_like(tokens[:, :40]), max_new_tokens=20,
        do_sample=False, eos_token_id=None,
    )
    assert torch.equal(generated, greedy(model, 20)), "generate gives the positions"
PY
"$work/venv/bin/python" "$work/positions.py" 2> "$work/log" || { cat "$work/log"; exit 1; }
