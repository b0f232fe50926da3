"""Commands on a machine without room: no file may grow beyond FILE_SIZE bytes, as on a full disk."""

import os
import resource
import sys
from importlib import import_module


def main() -> None:
    """Run `main()` of the module that the variable MODULE names."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(os.environ["FILE_SIZE"]), resource.RLIM_INFINITY))
    sys.exit(import_module(os.environ["MODULE"]).main())
