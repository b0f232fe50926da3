"""Bad options of every command: each is refused soon, in one line that names the option, without a traceback."""

import re
import shlex
from pathlib import Path

import pytest

from tests.in_process import refusal
from tests.training.small_run import trained

LISTED = Path(__file__).with_name("bad_options.txt").read_text("utf-8")
ALWAYS, OTHERS = (
    [re.split(r"\s+\| ", line) for line in part.splitlines() if line[0] != "#"] for part in LISTED.split("\n\n")
)


@pytest.mark.parametrize(
    ("words", "said"), [*ALWAYS, *(pytest.param(*case, marks=pytest.mark.slow, id=case[0]) for case in OTHERS)]
)
def test_it_is_refused_in_one_line_that_names_it(tmp_path: Path, words: str, said: str) -> None:
    (tmp_path / "empty.txt").touch()
    (tmp_path / "short.txt").write_text("too short for sixteen streams\n")
    (tmp_path / "old/checkpoints").mkdir(parents=True)
    (tmp_path / "old/checkpoints/last.ckpt").touch()
    if "CKPT" in words:
        words = words.replace("CKPT", str(trained() / "run/checkpoints/best.ckpt"))
    given = shlex.split(words.replace("TINY", "data=recall profile=smoke logger=none"))
    assert said in refusal(*given, directory=tmp_path)
    assert not list(tmp_path.rglob("metrics.json"))
