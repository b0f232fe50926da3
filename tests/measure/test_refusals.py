"""Commands on a checkpoint refuse what they cannot do in one line that names the option, before they write a file."""

from pathlib import Path
from typing import Any

import pytest

from tests.measure.small_runs import SmallRuns
from txl_lightning.config.schemas import LoggerConfig
from txl_lightning.errors import UserError
from txl_lightning.measure import attention, generate, perplexity, speed
from txl_lightning.measure.options import (
    AttentionOptions,
    DynamicOptions,
    EvaluateOptions,
    GenerateOptions,
    SpeedOptions,
)

DYNAMIC, FRESH = {"dynamic": DynamicOptions(lr=1e-3)}, {"unit_memory": "fresh"}
KEYS = r"checkpoint=.*: is txl_smoke; must be a Transformer-XL whose keys are its tokens"
NO_PROMPT = "prompt=None: one of prompt, prompts, prompt_file, prompt_ids, context must be given"
SLIDING = {"protocol": "window"}
Refusal = tuple[str, dict[str, Any], str]
EVALUATE: list[Refusal] = [
    ("characters", {"splits": ["tets"]}, r"splits=\['tets'\]: must be of train, valid, test"),
    ("characters", {"mem_len": -3}, "^mem_len=-3"),
    ("characters", {"clamp_len": -2}, "^clamp_len=-2"),
    ("characters", {"protocol": "vanilla"}, "^protocol=vanilla: must be carried or window"),
    ("characters", {"precision": "16-mixed"}, "precision=16-mixed: must be one of 32-true, bf16-mixed, auto"),
    ("characters", {"window": 8}, "^window=8: is for protocol=window"),
    ("characters", {**SLIDING, "mem_len": 8}, "^mem_len=8: is for protocol=carried"),
    ("characters", {**SLIDING, "window": 4, "stride": 5}, "^stride=5: must be in 1 … 4"),
    ("characters", {**SLIDING, "window": 0}, "^window=0"),
    ("lstm", {"ext_len": 2}, "^ext_len=2: must be null: lstm has no such length"),
    ("lstm", {"attention_lengths": [8]}, "^attention_lengths=.*lstm has no attention; protocol=window varies"),
    ("extended", {"segment_len": 12}, r"^segment_len=12: segment_len \+ ext_len = 14 must be at most 10"),
    ("characters", {"data_path": "/nowhere.txt"}, "^data_path=/nowhere.txt: cannot be read"),
    ("characters", {"select_on": "test"}, "^select_on=test: must be null, or valid or train"),
    ("characters", {"select_on": "train", "attention_lengths": [4]}, r"^select_on=train: .* among splits=\['valid'"),
    ("characters", {"select_on": "valid"}, "^attention_lengths=None: must be given with select_on"),
    ("characters", {"sweep_tokens": 9}, "^sweep_tokens=9: is for select_on=valid"),
    ("relative", {"per": "word"}, "per=word: must be null, line, document or token"),
    ("relative", FRESH, "unit_memory=fresh: is for per=line or document"),
    ("relative", {**FRESH, "per": "line", **SLIDING}, "unit_memory=fresh: .*protocol=carried"),
    ("lstm", {**FRESH, "per": "line", "select_on": "valid"}, "unit_memory=fresh: is for select_on=null"),
    ("relative", {"per": "line", "attention_lengths": [4]}, "attention_lengths=.*must be null with per"),
    ("relative", {"per": "line", **DYNAMIC}, "per=line: must be null for dynamic"),
    ("characters", {"dynamic": DynamicOptions(lr=-1.0)}, "^dynamic.lr=-1.0: must be >= 0"),
    ("characters", {"dynamic": DynamicOptions(lr=1e-3, segments=0)}, "^dynamic.segments=0: must be an integer >= 1"),
    ("characters", {"dynamic": DynamicOptions(decay=0.1)}, "^dynamic.lr=None: must be given with other options"),
    ("characters", {**DYNAMIC, **SLIDING}, "^protocol=window: must be carried for dynamic evaluation"),
    ("characters", {**DYNAMIC, "attention_lengths": [8]}, r"^attention_lengths=\[8\]: must be null for dynamic"),
]
GENERATE: list[Refusal] = [
    ("relative", {"prompt": None}, NO_PROMPT),
    ("relative", {"prompt": ""}, "prompt='': must have at least one token"),
    ("relative", {"context": 3}, "context=3: one of prompt"),
    ("relative", {"prompt": None, "prompt_file": "/dev/null"}, r"prompt_file=/dev/null: cannot be read \(neither"),
    ("characters", {"prompt": "line ☃:"}, r"prompt='line ☃:': '☃' is not among the \d+ symbols"),
    ("relative", {"prompt": None, "context": 10**6}, r"context=1000000: must be in 1 … \d+, the tokens of test"),
    ("relative", {"prompt": None, "context": 10, "position": 10**6}, "position=1000000: must be in 0 …"),
    ("relative", {"position": 3}, r"position=3: must be .* with context=N"),
    ("relative", {"top_k": 0}, "top_k=0: must be"),
    ("relative", {"mem_len": 0}, "mem_len=0: must be an integer >= 1"),
]
ATTENTION: list[Refusal] = [
    ("lstm", {}, r"checkpoint=.*: is lstm; must be a Transformer-XL"),
    ("compressive", {}, KEYS),
    ("tokens", {}, KEYS),
    ("relative", {"mem_len": 60, "max_segments": 7}, "mem_len=60: must be shorter: no query sees 60 keys"),
    ("relative", {"heads": ["1:1", "0:1"]}, "heads=0:1: must be LAYER:HEAD, layers 1 … 2 and heads 1 …"),
    ("relative", {"text_position": 2}, "text_position=2: must be in"),
    ("relative", {"mem_len": 0, "segment_len": 1}, "text_tokens=1: must be in 1 … 0"),
]
SPEED: list[Refusal] = [
    ("", {"attention_lengths": [0, 5]}, r"attention_lengths=\[0, 5\]: must be integers >= 1"),
    ("", {"n_head": 3, "d_model": 8}, "n_head=3: must divide d_model, which is 8"),
]
OPTIONS: dict[Any, Any] = {
    perplexity: EvaluateOptions,
    generate: lambda *given, **options: GenerateOptions(*given, **{"prompt": "a", **options}),
    attention: lambda *given, **options: AttentionOptions(*given, logger=LoggerConfig(name="none"), **options),
    speed: SpeedOptions,
}
CASES = zip(OPTIONS, (EVALUATE, GENERATE, ATTENTION, SPEED), strict=True)


@pytest.mark.parametrize(("command", "refusal"), [(command, one) for command, listed in CASES for one in listed])
def test_what_cannot_be_done_is_refused(runs: SmallRuns, tmp_path: Path, command: Any, refusal: Refusal) -> None:
    kind, options, words = refusal
    checkpoint = [runs.checkpoint(kind)] if kind else []
    with pytest.raises(UserError, match=words) as caught:
        command.run(OPTIONS[command](*checkpoint, **options), tmp_path)
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []
