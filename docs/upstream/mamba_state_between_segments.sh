#!/usr/bin/env bash
# transformers 5.24.0, torch 2.13.0: a text read in segments with the returned cache.
#
# Guess: the state of a recurrent model after one segment is where the next one goes
#   on, as its documentation says; how a text is cut into segments changes nothing.
# Instead: in Mamba, FalconMamba and Jamba, without their GPU kernels, a segment of two
#   or more tokens starts from a state of zeros; only the last inputs of the
#   convolution are kept. What the cache held is overwritten with this shorter past.
#   Token by token the state is used. Mamba2 is right both ways.
# Why it matters: long texts are scored in segments, prompts are given in parts, a
#   conversation goes on with its cache. The loss is that of segments without memory,
#   and nothing fails. Give the tokens one by one, or the whole text at once.
#
# Seen, 64 tokens, greatest error of the logits from token 40 on:
#   Mamba        segments 40 + 24: 0.28    40 and one by one: 2e-06
#   FalconMamba  segments 40 + 24: 0.65    40 and one by one: 2e-06
#   Jamba        segments 40 + 24: 0.42    40 and one by one: 1e-05
#   Mamba2       segments 40 + 24: 1e-06   40 and one by one: 2e-06
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3.11 -m venv "$work/venv"
"$work/venv/bin/pip" install -q torch==2.13.0 transformers==5.24.0
cat > "$work/segments.py" <<'PY'
import torch
from transformers import (
    FalconMambaConfig, FalconMambaForCausalLM, JambaConfig, JambaForCausalLM, Mamba2Config,
    Mamba2ForCausalLM, MambaConfig, MambaForCausalLM,
)

COMMON = dict(
    vocab_size=64, hidden_size=32, num_hidden_layers=2, initializer_range=0.2,
    pad_token_id=0, bos_token_id=1, eos_token_id=2,
)
STATES = dict(state_size=4, expand=2, conv_kernel=4, time_step_rank=4)
MODELS = {
    "Mamba": lambda: MambaForCausalLM(MambaConfig(**COMMON, **STATES)),
    "FalconMamba": lambda: FalconMambaForCausalLM(FalconMambaConfig(**COMMON, **STATES)),
    "Jamba": lambda: JambaForCausalLM(JambaConfig(
        **COMMON, intermediate_size=64, num_attention_heads=4, num_key_value_heads=2,
        mamba_d_state=4, mamba_dt_rank=4, attn_layer_period=2, attn_layer_offset=1,
        num_experts=2, num_experts_per_tok=1,
    )),
    "Mamba2": lambda: Mamba2ForCausalLM(Mamba2Config(
        **COMMON, state_size=8, num_heads=8, head_dim=8, n_groups=2, chunk_size=8, expand=2,
    )),
}
tokens = torch.randint(3, 64, (1, 64), generator=torch.Generator().manual_seed(0))


@torch.no_grad()
def error(model, ends):
    """Return the greatest error of the logits after the first segment."""
    whole, cache, parts, start = model(tokens, use_cache=False).logits, None, [], 0
    for end in ends:
        output = model(tokens[:, start:end], cache=cache, use_cache=True)
        cache, start = output.cache, end
        parts.append(output.logits)
    return (torch.cat(parts, 1) - whole)[:, ends[0] :].abs().max().item()


for name, build in MODELS.items():
    torch.manual_seed(0)
    model = build().eval()
    segments, one_by_one = error(model, [40, 64]), error(model, range(40, 65))
    print(f"{name}: in segments {segments:.1e}, one by one {one_by_one:.1e}")
    assert one_by_one < 1e-3
    assert (segments < 1e-3) == (name == "Mamba2"), "only Mamba2 goes on from its state"
PY
"$work/venv/bin/python" "$work/segments.py" 2> "$work/log" || { cat "$work/log"; exit 1; }
