"""Program for a further training rank: `python -m txl_lightning.training.rank FILE`, started by rank 0."""

import pickle
import sys
import time
from pathlib import Path

from txl_lightning.config.schemas import from_plain
from txl_lightning.errors import Stopped, UserError
from txl_lightning.ranks import keep_freed_memory, leaving
from txl_lightning.training.run import train

# The first rank may have failed in the same way, or was stopped: it speaks first, and ends this one.
SECONDS_TO_SPEAK = 2.0


def main() -> None:
    """Train with the config in rank 0's file."""
    keep_freed_memory()
    config, directory = pickle.loads(Path(sys.argv[1]).read_bytes())
    try:
        with leaving():
            train(from_plain(config), directory)
    except Stopped as stopped:
        sys.exit(128 + stopped.signum)
    except RuntimeError:  # from a lost connection
        time.sleep(SECONDS_TO_SPEAK)
        raise
    except (UserError, OSError) as error:
        time.sleep(SECONDS_TO_SPEAK)
        sys.exit(f"txl train, a further rank: {error}")


if __name__ == "__main__":
    main()
