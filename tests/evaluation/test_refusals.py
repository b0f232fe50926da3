"""Measurements refuse what they cannot do in one line that names the option, before they write: refusals.txt."""

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from tests.data.helpers import files
from tests.evaluation.small_runs import SmallRuns
from txl_lightning.errors import UserError
from txl_lightning.evaluation import attention, generate, perplexity, speed
from txl_lightning.evaluation.options import (
    AttentionOptions,
    EvaluateOptions,
    GenerateOptions,
    SpeedOptions,
)

COMMANDS: dict[str, tuple[Any, type]] = {
    "evaluate": (perplexity, EvaluateOptions),
    "generate": (generate, GenerateOptions),
    "attention": (attention, AttentionOptions),
    "speed": (speed, SpeedOptions),
}
LISTED = Path(__file__).with_name("refusals.txt").read_text("utf-8").splitlines()[1:]


@pytest.mark.parametrize(
    ("words", "said"),
    [re.split(r"\s+\| ", row) for row in LISTED],
)
def test_what_cannot_be_done_is_refused(
    runs: SmallRuns, tmp_path: Path, words: str, said: str
) -> None:
    def written(found: re.Match[str]) -> str:
        return files(
            runs.folder,
            {"given.txt": found[1].replace("\\n", "\n")},
        )[0]

    words = re.sub(r"TEXT\((.*?)\)", written, words)
    words = re.sub(
        r"@(\w+)",
        lambda found: runs.checkpoint(found[1]),
        words,
    )
    command, *given = shlex.split(words)
    module, options = COMMANDS[command]
    dotlist = OmegaConf.from_dotlist(given)
    with pytest.raises(UserError, match=said) as caught:
        module.run(
            OmegaConf.to_object(OmegaConf.merge(options, dotlist)),
            tmp_path,
        )
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []
