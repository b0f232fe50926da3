"""Private parts of Hydra on which the launcher relies: a change of the library fails here first."""

import pytest
from hydra.core.singleton import Singleton
from hydra.core.utils import JobStatus

from hydra_plugins.txl_process_launcher._multirun_job import add_singletons, job_error, returned
from txl_lightning.command_line.messages import hydra_parser
from txl_lightning.errors import UserError


def test_a_failed_job_raises_its_error_and_prints_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    error, done = ValueError("of the job"), returned([], 3)
    failed = returned(["seed=1"], error)
    assert (failed.status, job_error(failed), job_error(done), done.return_value) == (JobStatus.FAILED, error, None, 3)
    with pytest.raises(ValueError, match="of the job"):
        _ = failed.return_value
    assert capsys.readouterr().err == ""


def test_singletons_are_added_to_those_that_are_there() -> None:
    class Own(metaclass=Singleton):
        pass

    before = set(Singleton.get_state()["instances"])
    own = object.__new__(Own)
    add_singletons({Own: own})
    try:
        assert Own() is own
        assert set(Singleton.get_state()["instances"]) == before | {Own}
    finally:
        del Singleton._instances[Own]


def test_the_parser_of_flags_has_those_that_are_read() -> None:
    """`hydra._internal.utils.get_args_parser`: what it reads by name, and that `error` can be replaced."""
    given = hydra_parser().parse_intermixed_args(["a=1", "--config-dir", "own", "-m", "b=2", "--experimental-rerun=f"])
    assert (given.overrides, given.config_dir, given.experimental_rerun, given.help) == (
        ["a=1", "b=2"],
        "own",
        "f",
        False,
    )
    with pytest.raises(UserError, match="--nosuch: no such flag"):
        hydra_parser().parse_intermixed_args(["--nosuch"])
