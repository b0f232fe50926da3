"""The arms of the ablation and the training runs that several tables share."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from experiments.jobs import Job
from experiments.profiles import Profile

ENCODINGS = {"relative": "ours", "shaw": "Shaw", "absolute": "Vaswani", "al_rfou": "Al-Rfou"}


CORPUS_OPTIONS = ("data", "data.path", "data.level", "data.fractions", "data.prefix", "data.newlines")


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


@dataclass(frozen=True)
class OtherCorpus:
    """A corpus that some tables want instead of the user's.

    Args:
        name: in words.
        overrides: that choose it.
    """

    name: str
    overrides: tuple[str, ...]


@dataclass(frozen=True)
class Arm:
    """What is compared.

    Args:
        recurrence: with memory.
        encoding: position encoding, under this project's names.
        loss: over all positions of a segment or its last half.
        segment_len: of training and evaluation, if not the profile's.
        max_segments: of evaluation, with another segment.
        baseline: lstm or qrnn instead of a Transformer.
        corpus: another than the user's.
    """

    recurrence: bool = True
    encoding: str = "relative"
    loss: str = "full"
    segment_len: int | None = None
    max_segments: int | None = None
    baseline: str | None = None
    corpus: OtherCorpus | None = None

    @property
    def title(self) -> str:
        """In words."""
        if self.baseline:
            return self.baseline.upper()
        words = ["recurrence" if self.recurrence else "no recurrence", ENCODINGS[self.encoding], f"{self.loss} loss"]
        words += [f"segment {self.segment_len}"] if self.segment_len else []
        return ", ".join(words + ([self.corpus.name] if self.corpus else []))

    @property
    def tags(self) -> tuple[str, ...]:
        """Of the W&B run: what the arm is, a word each."""
        if self.baseline:
            return (self.baseline,)
        words = ("recurrence" if self.recurrence else "no_recurrence", self.encoding, f"{self.loss}_loss")
        return (*words, *([f"segment_{self.segment_len}"] if self.segment_len else []))

    def overrides(self, profile: Profile) -> tuple[str, ...]:
        """Behind `txl train`, in front of the user's."""
        words: list[str] = [
            f"memory={'on' if self.recurrence else 'off'}",
            f"encoding={self.encoding}",
            f"loss={self.loss}",
        ]
        if self.baseline:
            words = [f"model={self.baseline}", *profile.recurrent[self.baseline]]
        if self.segment_len:
            words += [f"data.segment_len={self.segment_len}"]
            words += [f"evaluation.max_segments={self.max_segments}"] if self.max_segments else []
        return tuple(words)


def training(arm: Arm, seed: int, setup: Setup) -> Job:
    """The run of an arm with a seed."""
    profile, overrides = setup.profile, setup.overrides
    if arm.corpus:
        overrides = tuple(word for word in overrides if word.split("=")[0] not in CORPUS_OPTIONS) + arm.corpus.overrides
    words = (f"profile={profile.name}", *profile.train, *arm.overrides(profile), *overrides)
    words += (f"trainer.devices={profile.devices}",) if profile.devices > 1 else ()
    name = "-".join([*([arm.corpus.name.replace(" ", "_")] if arm.corpus else []), *arm.tags, f"seed{seed}"])
    return Job(name, "train", (*words, f"seed={seed}"), arm.title, seed, arm.tags)


def trainings(arm: Arm, setup: Setup, one_seed: bool = False) -> list[Job]:
    """The runs of an arm, a seed each."""
    seeds = setup.profile.seeds[:1] if one_seed else setup.profile.seeds
    return [training(arm, seed, setup) for seed in seeds]
