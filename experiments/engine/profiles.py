"""Profiles for the reproduction (`profiles.yaml`), and one reproduction's settings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from experiments.engine.jobs import composed
from txl_lightning.config.schemas import Config


@dataclass(frozen=True)
class Profile:
    """Seeds, grids, measurements and estimates for a reproduction; `conf/profile/NAME.yaml` has its sizes.

    Args:
        name: file name in `conf/profile`.
        title: the report's title.
        differences: what else differs from the paper, in words, for the report.
        note: the report's first sentence: how far its numbers can be trusted.
        needs: hardware, time and data in words, for `--plan`.
        seeds: seeds for every arm.
        attention_lengths: grid for Table 6's evaluation, in tokens.
        evaluate, recl, speed, attention: overrides for these commands.
        tokens_per_second: estimated speed when one training runs.
        seconds: estimated seconds per job, by command; for `train` the time outside its steps.
        seeds_of: other seeds for single arms, by `Arm.key`; an arm with an empty list is left out.
        recipes: training overrides for a family (`Arm.family`), such as a learning rate. For lstm and qrnn they
            set sizes with as many parameters as the Transformer-XL in Table 8's group 1.
        longer_segment: Table 10's segments without recurrence, in tokens: the paper's, or the longest multiple of 8
            for which autograd saves no more for a segment's backward pass than with recurrence.
        train: overrides for every training.
        verdicts: whether the report judges the paper's claims.
    """

    name: str
    title: str
    differences: str
    note: str
    needs: str
    seeds: Sequence[int]
    attention_lengths: Sequence[int]
    evaluate: Sequence[str]
    recl: Sequence[str]
    speed: Sequence[str]
    attention: Sequence[str]
    tokens_per_second: float
    seconds: dict[str, float]
    longer_segment: int
    seeds_of: dict[str, Sequence[int]] = field(default_factory=dict)
    recipes: dict[str, Sequence[str]] = field(default_factory=dict)
    train: Sequence[str] = ()
    verdicts: bool = True


PROFILES = {
    name: Profile(name, **values)
    for name, values in yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text()).items()
}


@dataclass(frozen=True)
class Setup:
    """Settings for one reproduction.

    Args:
        profile: sizes, seeds and estimates.
        overrides: the user's, appended to every `txl train`.
        directory: folder for everything it writes.
        planning: only print a plan: nothing is read or written.
        sections: names of chosen sections, in the report's order.
        parallel: jobs that run at once; None for one on each core, or one on a GPU.
        logger: wandb, csv or none.
        command: command line that makes the same report and continues an interrupted run.
    """

    profile: Profile
    overrides: tuple[str, ...]
    directory: Path
    planning: bool = False
    sections: tuple[str, ...] = ()
    parallel: int | None = None
    logger: str = "wandb"
    command: str = ""

    @property
    def words(self) -> tuple[str, ...]:
        """Overrides by profile and user, without an arm."""
        return (f"profile={self.profile.name}", *self.profile.train, *self.overrides)

    @property
    def config(self) -> Config:
        """Training configuration without an arm."""
        return composed(self.words)

    @property
    def runs(self) -> Path:
        """Folder with all runs."""
        return self.directory / "runs"

    @property
    def figures(self) -> Path:
        """Folder with the report's figures."""
        return self.directory / "figures"
