"""Private parts of Hydra on which the launcher relies: a change of the library fails here first."""

import pytest
from hydra.core.singleton import Singleton
from hydra.core.utils import JobReturn, JobStatus

from txl_lightning.command_line.hydra_app import read_flags
from txl_lightning.command_line.multirun import add_singletons
from txl_lightning.errors import UserError


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


def test_a_job_keeps_its_value_or_its_error() -> None:
    """`JobReturn._return_value`: `return_value` of a failed job would print a line and raise the error."""
    assert JobReturn(status=JobStatus.FAILED, _return_value="error")._return_value == "error"
    assert JobReturn(status=JobStatus.COMPLETED, _return_value=3).return_value == 3


def test_the_parser_of_flags_has_those_that_are_read() -> None:
    """`hydra._internal.utils.get_args_parser`: what it reads by name, and that `error` can be replaced."""
    given = read_flags(["a=1", "--config-dir", "own", "-m", "b=2"])
    assert (given.overrides, given.config_dir, given.help) == (["a=1", "b=2"], "own", False)
    for flag, refused in (("--nosuch", "--nosuch: no such flag"), ("--experimental-rerun=f", "is not supported")):
        with pytest.raises(UserError, match=refused):
            read_flags([flag])
