"""Bad options of every command: each is refused soon, in one line that names the option, without a traceback."""

import re
import shlex
from pathlib import Path

import pytest

from tests.data.helpers import files
from tests.in_process import refusal
from tests.training.small_run import TINY, trained

PRINT = "{_target_: hydra.utils.get_method, path: builtins.print}"
WORDS = {"TINY": "data=recall profile=smoke logger=none", "PL.": "lightning.pytorch.callbacks.", "PRINT": PRINT}
WORDS["FILE"] = "data=file data.cache_dir=cache profile=smoke logger=none"
FILES = "data.path=FOLDER/text.txt data.cache_dir=FOLDER/cache resume=FOLDER/run/checkpoints/last.ckpt"
RESUMED = f"{' '.join(TINY)} {FILES} trainer.max_steps=20"
LISTED = Path(__file__).with_name("bad_options.txt").read_text("utf-8")
ROWS = [[line for line in part.splitlines() if line[0] != "#"] for part in LISTED.split("\n\n")]
ALWAYS, OTHERS = ([re.split(r"\s+\| ", row) for row in rows] for rows in ROWS)


@pytest.mark.parametrize(
    ("words", "said"), [*ALWAYS, *(pytest.param(*case, marks=pytest.mark.full, id=case[0]) for case in OTHERS)]
)
def test_it_is_refused_in_one_line_that_names_it(tmp_path: Path, words: str, said: str) -> None:
    short = {"empty.txt": "", "short.txt": "too short for sixteen streams\n", "old/checkpoints/last.ckpt": ""}
    files(tmp_path, {**short, "text.txt": "text" * 50, "latin.txt": b"caf\xe9 " * 50})
    if re.search("CKPT|RESUMED", words):
        words = words.replace("RESUMED", RESUMED.replace("FOLDER", str(trained())))
        words = words.replace("CKPT", f"{trained()}/run/checkpoints/best.ckpt")
    for name, text in WORDS.items():
        words = words.replace(name, text)
    assert said in refusal(*shlex.split(words), directory=tmp_path)
    assert not [*tmp_path.rglob("metrics.json"), *tmp_path.rglob("made"), *tmp_path.rglob("cache/*")]
