"""Profiles of the reproduction (`profiles.yaml`) and the settings of one reproduction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from experiments.engine.jobs import composed
from txl_lightning.config.schemas import Config


@dataclass(frozen=True)
class Profile:
    """Seeds, grids, measurements and estimates of a reproduction, beside the sizes of `conf/profile/NAME.yaml`.

    Args:
        name: name of the file in `conf/profile`.
        title: title of the report.
        differences: what else differs from the paper, in words, for the report.
        note: first sentence of the report: how far its numbers can be trusted.
        needs: hardware, time and data in words, for `--plan`.
        seeds: seeds of an arm.
        attention_lengths: grid of Table 6's evaluation, in tokens.
        evaluate, recl, speed, attention: overrides of these commands.
        tokens_per_second: estimated speed of one training.
        seconds: estimated seconds of one job by command; for `train` the time outside its steps.
        seeds_of: seeds of single arms by `Arm.key`, in place of `seeds`; without a seed the arm is left out.
        recipes: overrides of the trainings of a family of arms (`Arm.family`), such as a learning rate. Those of lstm
            and qrnn have the sizes that give as many parameters as the Transformer-XL of Table 8's group 1.
        longer_segment: segments of Table 10 without recurrence, in tokens: the paper's, or the longest multiple of 8
            for which autograd saves no more for the backward pass of one segment than with recurrence.
        train: overrides of every training.
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
    """Settings of one reproduction.

    Args:
        profile: sizes, seeds and estimates.
        overrides: the user's, appended to every `txl train`.
        directory: folder of everything it writes.
        planning: only print a plan: nothing is read or written.
        sections: names of the chosen sections, in the report's order.
        parallel: jobs that run at once; None for one on each core, or one on a GPU.
        logger: wandb, csv or none.
        command: command line that makes the same report, and continues an interrupted call.
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
        """Overrides of profile and user, without an arm."""
        return (f"profile={self.profile.name}", *self.profile.train, *self.overrides)

    @property
    def config(self) -> Config:
        """Configuration of a training without an arm."""
        return composed(self.words)

    @property
    def runs(self) -> Path:
        """Folder of all runs."""
        return self.directory / "runs"

    @property
    def figures(self) -> Path:
        """Folder of the report's figures."""
        return self.directory / "figures"
