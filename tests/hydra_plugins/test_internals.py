"""Private parts of Hydra on which the launcher relies: a change of the library fails here first."""

import pytest
from hydra.core.singleton import Singleton
from hydra.core.utils import JobReturn, JobStatus

from hydra_plugins.txl_process_launcher._multirun_job import FailedJob, add_singletons, job_error, returned


def test_a_failed_job_raises_its_error_and_prints_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    error = ValueError("of the job")
    failed = returned(["seed=1"], error)
    assert isinstance(failed, FailedJob)
    assert (failed.overrides, failed.status, job_error(failed)) == (["seed=1"], JobStatus.FAILED, error)
    with pytest.raises(ValueError, match="of the job"):
        _ = failed.return_value
    assert capsys.readouterr().err == ""


def test_a_completed_job_has_no_error() -> None:
    done = JobReturn(status=JobStatus.COMPLETED)
    done.return_value = 3
    for completed in (done, returned([], 3)):
        assert job_error(completed) is None
        assert completed.return_value == 3


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
