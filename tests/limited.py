"""Commands on a machine without room: no file may grow beyond FILE_SIZE bytes, as on a full disk."""

import os
import resource
from importlib import import_module


def main() -> int | None:
    """Run `main()` of the module that the variable MODULE names."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(os.environ["FILE_SIZE"]), resource.RLIM_INFINITY))
    return import_module(os.environ["MODULE"]).main()
