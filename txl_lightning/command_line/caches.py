"""Folder for caches of this package and of libraries, also where HOME cannot be written."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from tempfile import TemporaryDirectory

from txl_lightning.errors import notice
from txl_lightning.files import expand


@contextmanager
def usable_caches() -> Iterator[None]:
    """Use a temporary folder in the block, and say so, if HOME and XDG_CACHE_HOME name none that can be written."""
    before = dict(os.environ)
    if os.path.expanduser("~") == "~":  # a user id without an account, as in containers: libraries would fail
        os.environ["HOME"] = f"{os.devnull}/home"
    caches = expand("~/.cache/txl_lightning").parent
    with ExitStack() as stack:
        with suppress(OSError):
            caches.mkdir(parents=True, exist_ok=True)
        if lost := not os.access(caches, os.W_OK):
            folder = TemporaryDirectory(prefix="txl_lightning-", ignore_cleanup_errors=True)
            os.environ["XDG_CACHE_HOME"] = stack.enter_context(folder)
            notice(f"{caches} cannot be written: caches last as long as this command; XDG_CACHE_HOME=FOLDER keeps them")
        if lost or not os.access(os.path.expanduser("~"), os.W_OK):  # which Matplotlib reports in two long lines
            os.environ.setdefault("MPLCONFIGDIR", str(expand("~/.cache/matplotlib")))
        try:
            yield
        finally:
            os.environ.clear()
            os.environ.update(before)
