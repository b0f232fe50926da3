"""Private parts of Hydra on which the launcher relies: a change of the library fails here first."""

import pytest
from hydra.core.singleton import Singleton
from hydra.core.utils import JobStatus

from hydra_plugins.txl_process_launcher._multirun_job import add_singletons, job_error, returned


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
