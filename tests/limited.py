"""`txl` on a machine without room: no file may grow beyond FILE_SIZE bytes, as on a full disk."""

import os
import resource

from txl_lightning import cli


def main() -> None:
    """Run the command."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(os.environ["FILE_SIZE"]), resource.RLIM_INFINITY))
    cli.main()
