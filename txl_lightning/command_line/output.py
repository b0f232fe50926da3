"""Printing of texts that a user pipes into another command."""

from __future__ import annotations

import os
import sys


def show(text: str) -> None:
    """Print a text at once. A reader that stops reading, such as `head`, is no error."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else Python complains when it ends
