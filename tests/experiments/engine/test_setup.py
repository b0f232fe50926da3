"""Settings of a reproduction: the command line, and the GPUs of jobs that run at once."""

from pathlib import Path

import pytest

from experiments.engine.profiles import PROFILES
from experiments.engine.setup import Setup, default_parallel, make_slots, parse
from txl_lightning.errors import UserError

SECTIONS = ("table_6", "table_7")


def test_the_command_line_becomes_a_setup(tmp_path: Path) -> None:
    words = ["--only", "table_7", "profile=smoke", "--prefix", "srun -n 2", "--logger", "csv", "seed=3", "--plan"]
    setup = parse([*words, "--directory", str(tmp_path), "--parallel", "3"], SECTIONS, "")
    assert setup == Setup(
        PROFILES["smoke"],
        ("seed=3",),
        tmp_path,
        planning=True,
        sections=("table_7",),
        parallel=3,
        logger="csv",
        prefix=("srun", "-n", "2"),
        command="make reproduce PROFILE=smoke ARGS='--only=table_7 --logger=csv seed=3'",
    )
    default = parse([], SECTIONS, "")
    assert (default.sections, default.command, default.parallel) == (SECTIONS, "make reproduce", None)
    assert default.directory == Path("reports/laptop").resolve()
    assert parse([], SECTIONS, "", on_request=("table_7",)).sections == ("table_6",)
    assert parse(["--only", "table_7"], SECTIONS, "", on_request=("table_7",)).sections == ("table_7",)


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--only", "table_99"], "--only table_99: must be of table_6, table_7"),
        (["profile=huge"], "profile=huge: must be one of smoke"),
        (["--parallel", "0"], "--parallel 0: must be an integer >= 1"),
        (["--prefix", "srun 'a"], "--prefix srun 'a: "),
    ],
)
def test_a_bad_command_line_is_named(words: list[str], named: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parse(words, SECTIONS, "")
    assert ended.value.code == 2
    assert named in capsys.readouterr().err


def test_jobs_at_once_have_gpus_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5,7")
    gpu, smoke = PROFILES["gpu"], PROFILES["smoke"]
    assert default_parallel(gpu) == 3
    assert make_slots(gpu, 2) == [{"CUDA_VISIBLE_DEVICES": "3"}, {"CUDA_VISIBLE_DEVICES": "5"}]
    assert make_slots(gpu, 1) == [{}]
    assert make_slots(smoke, 5) == [{}] * 5
    with pytest.raises(UserError, match="--parallel 4: needs 4 GPUs, 3 are visible"):
        make_slots(gpu, 4)
