"""The arms of the ablation and the training runs that several tables share."""

from __future__ import annotations

from dataclasses import dataclass

from experiments.engine.jobs import Job, composed
from experiments.engine.profiles import Profile
from experiments.engine.setup import Setup
from txl_lightning.config.schemas import Config
from txl_lightning.errors import require

ENCODINGS = {"relative": "ours", "shaw": "Shaw", "absolute": "Vaswani", "al_rfou": "Al-Rfou"}
LONGER = {"full": 176 / 128, "half": 172 / 128}  # Table 10: what takes the memory of a GPU that recurrence takes
SET_HERE = (
    *("seed", "loss", "memory", "encoding", "encoding.name", "model.terms"),
    *("resume", "experiment", "initial_weights", "trainer.devices", "trainer.num_threads", "trainer.num_nodes"),
)
GROUPS_SET_HERE = ("logger", "hydra", "profile")
OF_ATTENTION = tuple(f"evaluation.{name}" for name in ("mem_len", "ext_len", "same_length", "clamp_len"))
CORPUS_OPTIONS = ("data", "data.path", "data.level", "data.fractions", "data.prefix", "data.newlines")


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
        longer: segments as much longer as Table 10's.
        baseline: lstm or qrnn instead of a Transformer.
        corpus: another than the user's.
    """

    recurrence: bool = True
    encoding: str = "relative"
    loss: str = "full"
    longer: bool = False
    baseline: str | None = None
    corpus: OtherCorpus | None = None

    @property
    def title(self) -> str:
        """In words."""
        if self.baseline:
            return self.baseline.upper()
        words = ["recurrence" if self.recurrence else "no recurrence", ENCODINGS[self.encoding], f"{self.loss} loss"]
        words += ["longer segments"] if self.longer else []
        return ", ".join(words + ([self.corpus.name] if self.corpus else []))

    @property
    def tags(self) -> tuple[str, ...]:
        """What the arm is, a word each; the name of its runs is made of them."""
        if self.baseline:
            return (self.baseline,)
        words = ("recurrence" if self.recurrence else "no_recurrence", self.encoding, f"{self.loss}_loss")
        return (*words, *(["longer_segments"] if self.longer else []))

    def overrides(self, profile: Profile, config: Config) -> tuple[str, ...]:
        """Behind the profile's and the user's, which `config` is composed of."""
        if self.baseline:
            return (f"model={self.baseline}", *profile.recurrent[self.baseline])
        words = [f"memory={'on' if self.recurrence else 'off'}", f"encoding={self.encoding}", f"loss={self.loss}"]
        segment_len = config.data.segment_len
        if self.longer:
            segment_len = round(segment_len * LONGER[self.loss])
            words += [f"data.segment_len={segment_len}", *scored_in(segment_len, config)]
        if self.loss == "half" and not self.recurrence:  # the first half of a segment was never trained on: context
            half = segment_len // 2
            words += [f"evaluation.ext_len={segment_len - half}", *scored_in(half, config)]
        return tuple(words)

    def is_of(self, word: str) -> bool:
        """Whether a user's override means something to this arm."""
        key = word.split("=")[0]
        if self.baseline and (key.split(".")[0] in ("model", "memory") or key in OF_ATTENTION):
            return False
        if not self.recurrence and key == "memory.mem_len":
            return False
        return not (self.corpus and key in CORPUS_OPTIONS)


def scored_in(segment_len: int, config: Config) -> list[str]:
    """Evaluation in segments of another length, over as much text."""
    evaluation = config.evaluation
    words = [f"evaluation.segment_len={segment_len}"]
    if evaluation.max_segments is not None:
        words.append(
            f"evaluation.max_segments={max(1, evaluation.max_segments * evaluation.segment_len // segment_len)}"
        )
    return words


def check_overrides(overrides: tuple[str, ...]) -> None:
    """Refuse what the arms and the runner set themselves.

    Raises:
        OptionError: naming it.
    """
    for word in overrides:
        key, _, value = word.partition("=")
        allowed = "is set by the experiments (--only chooses among them); other options of txl train may be given"
        require(key not in SET_HERE and key.split(".")[0] not in GROUPS_SET_HERE, key, value, allowed)


def training(arm: Arm, seed: int, setup: Setup) -> Job:
    """The run of an arm with a seed."""
    profile = setup.profile
    corpus = arm.corpus.overrides if arm.corpus else ()
    words = (f"profile={profile.name}", *profile.train, *filter(arm.is_of, setup.overrides), *corpus)
    config = composed(words)
    words += arm.overrides(profile, config)
    if profile.devices > 1:
        words += (f"trainer.devices={devices_for(config, profile)}",)
    name = "-".join([*([arm.corpus.name.replace(" ", "_")] if arm.corpus else []), *arm.tags, f"seed{seed}"])
    return Job(name, "train", (*words, f"seed={seed}"), arm.title, seed, arm.tags)


def devices_for(config: Config, profile: Profile) -> int:
    """As many of the profile's devices as divide the batch."""
    return max(n for n in range(1, profile.devices + 1) if config.data.batch_size % n == 0)


def trainings(arm: Arm, setup: Setup, one_seed: bool = False) -> list[Job]:
    """The runs of an arm, a seed each."""
    seeds = setup.profile.seeds[:1] if one_seed else setup.profile.seeds
    return [training(arm, seed, setup) for seed in seeds]
