"""Where caches go: XDG_CACHE_HOME, HOME, or a folder for the time of a command where neither can be written."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from txl_lightning.command_line import usable_caches
from txl_lightning.errors import notice
from txl_lightning.files import expand


@pytest.mark.parametrize(
    ("given", "caches", "expanded"),
    [
        ("~/.cache/txl_lightning/losses", "/var/caches", "/var/caches/txl_lightning/losses"),
        ("~/.cache/txl_lightning", None, "/home/me/.cache/txl_lightning"),
        ("~/.cache/txl_lightning", "relative", "/home/me/.cache/txl_lightning"),  # which the standard forbids
        ("~/data", "/var/caches", "/home/me/data"),
        ("data", "/var/caches", "data"),
    ],
)
def test_caches_are_where_the_variables_say(
    monkeypatch: pytest.MonkeyPatch, given: str, caches: str | None, expanded: str
) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    if caches is not None:
        monkeypatch.setenv("XDG_CACHE_HOME", caches)
    assert str(expand(given)) == expanded


@pytest.mark.parametrize("home", ["/proc", "/dev/null", None])
def test_a_home_that_cannot_be_written_is_said_and_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], home: str | None
) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv("MPLCONFIGDIR", raising=False)
    monkeypatch.delenv("HOME")
    if home is None:  # nor an account
        monkeypatch.setattr("pwd.getpwuid", dict[int, object]().__getitem__)
    else:
        monkeypatch.setenv("HOME", home)
    notice.cache_clear()
    before = dict(os.environ)
    with usable_caches():
        folder = Path(os.environ["XDG_CACHE_HOME"])
        expand("~/.cache/txl_lightning").mkdir()
        assert [path.name for path in folder.iterdir()] == ["txl_lightning"]
        assert os.environ["MPLCONFIGDIR"] == str(folder / "matplotlib")
    assert (folder.exists(), dict(os.environ)) == (False, before)
    said = f"{home or '/dev/null/home'}/.cache cannot be written: caches last as long as this command; XDG_CACHE_HOME="
    assert capfd.readouterr().err == f"{said}FOLDER keeps them\n"
