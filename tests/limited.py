"""Run `txl` on a full disk: no file may grow beyond FILE_SIZE bytes."""

import os
import resource

from txl_lightning import cli


def main() -> None:
    """Run the command."""
    size = int(os.environ["FILE_SIZE"])
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
    cli.main()
