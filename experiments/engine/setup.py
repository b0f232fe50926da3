"""One reproduction: its profile, the user's overrides and where it is written."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from experiments.engine.profiles import Profile


@dataclass(frozen=True)
class Setup:
    """One reproduction.

    Args:
        profile: its numbers.
        overrides: the user's, behind every `txl train`.
        directory: where all of it is written.
        planning: nothing will be run, so a corpus may be missing, and nothing is written.
    """

    profile: Profile
    overrides: tuple[str, ...]
    directory: Path
    planning: bool = False

    @property
    def runs(self) -> Path:
        """The folder of all runs."""
        return self.directory / "runs"

    @property
    def figures(self) -> Path:
        """The folder of the report's figures."""
        return self.directory / "figures"
