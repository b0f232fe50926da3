"""Arms (settings) compared in the ablation, and the training runs that several tables share."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from experiments.engine.jobs import Job, composed
from experiments.engine.profiles import Profile, Setup
from txl_lightning.config.schemas import Config
from txl_lightning.errors import OptionError

ENCODINGS = {
    "relative": "relative",
    "shaw": "Shaw",
    "absolute": "Vaswani",
    "al_rfou": "Al-Rfou",
}
SHUFFLED = "shuffled lines"
RESERVED_OPTIONS = (
    "seed",
    "loss",
    "memory",
    "encoding",
    "encoding.name",
    "model.terms",
    "resume",
    "experiment",
    "initial_weights",
    "trainer.num_threads",
    "trainer.num_nodes",
)
RESERVED_GROUPS = ("logger", "hydra", "profile")
ATTENTION_OPTIONS = (
    "evaluation.mem_len",
    "evaluation.ext_len",
    "evaluation.same_length",
    "evaluation.clamp_len",
)
CORPUS_OPTIONS = (
    "data",
    "data.path",
    "data.level",
    "data.fractions",
    "data.newlines",
    "data.dtype",
    "data.names",
    "data.vocab_size",
)


@dataclass(frozen=True)
class Arm:
    """One setting in the ablation.

    Args:
        recurrence: train with memory.
        encoding: position encoding, under this project's names.
        loss: over all positions of a segment (full), its last half (half) or a random half
            (random_half), which is evaluated as the full loss is.
        longer: Table 10's longer segments, with as many training tokens as the other arms.
        baseline: lstm or qrnn instead of a Transformer.
        optimizer: train with this one, where the profile has another: adam or muon.
        corpus: overrides that choose Table 7's shuffled lines; without any the user's corpus.
    """

    recurrence: bool = True
    encoding: str = "relative"
    loss: str = "full"
    longer: bool = False
    baseline: str | None = None
    optimizer: str | None = None
    corpus: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """Name in the report."""
        words = self._words(ENCODINGS.get(self.encoding, self.encoding))
        if self.baseline:
            words = [self.baseline.upper()]
        if self.corpus:
            words.append(SHUFFLED)
        return ", ".join(words)

    @property
    def key(self) -> str:
        """Key in tables, and beginning of run names."""
        words = self._words(self.encoding)
        if self.corpus:
            words.insert(0, SHUFFLED)
        return "-".join(words).replace(" ", "_")

    def _words(self, encoding: str) -> list[str]:
        if self.baseline:
            return [self.baseline]
        recurrence = "recurrence" if self.recurrence else "no recurrence"
        words = [
            recurrence,
            encoding,
            f"{self.loss.replace('_', ' ')} loss",
        ]
        if self.longer:
            words.append("longer segments")
        if self.optimizer:
            words.append(self.optimizer.capitalize())
        return words

    @property
    def family(self) -> str:
        """Name in `Profile.recipes`; `recurrence` uses the profile's recipe."""
        if self.baseline or self.optimizer:
            return self.baseline or self.optimizer or ""
        if self.encoding != "relative":
            return self.encoding
        return "recurrence" if self.recurrence else "no_recurrence"

    def overrides(self, profile: Profile, config: Config) -> list[str]:
        """Return the arm's overrides, to append to the profile's and the user's, from which `config` is composed."""
        recipe = profile.recipes.get(self.family, ())
        if self.baseline:
            return [f"model={self.baseline}", *recipe]
        memory = "on" if self.recurrence else "off"
        words = [
            f"memory={memory}",
            f"encoding={self.encoding}",
            f"loss={self.loss}",
        ]
        if self.optimizer:
            words.append(f"optimizer={self.optimizer}")
        words.extend(recipe)
        if self.longer:
            words.extend(with_longer_segments(profile, config))
        return words

    def accepts(self, override: str) -> bool:
        """Return whether a user's override applies to this arm."""
        option = override.split("=")[0]
        group = option.split(".")[0]
        if self.baseline and (group in ("model", "memory") or option in ATTENTION_OPTIONS):
            return False
        if not self.recurrence and option == "memory.mem_len":
            return False
        return not self.corpus or option not in CORPUS_OPTIONS


ON = Arm()
OFF = Arm(recurrence=False)


def check_overrides(overrides: Iterable[str]) -> None:
    """Refuse to override options that the arms and the runner set.

    Raises:
        OptionError: naming the option.
    """
    for word in overrides:
        option, _, value = word.partition("=")
        if option in RESERVED_OPTIONS or option.split(".")[0] in RESERVED_GROUPS:
            allowed = "must not be given: the experiments set it (--only chooses among them)"
            raise OptionError(option, value, allowed)


def trainings(arm: Arm, setup: Setup) -> list[Job]:
    """Return an arm's training runs, one for each seed that the profile gives it."""
    profile = setup.profile
    accepted = [word for word in setup.overrides if arm.accepts(word)]
    common = [
        f"profile={profile.name}",
        *profile.train,
        *accepted,
        *arm.corpus,
    ]
    words = (*common, *arm.overrides(profile, composed(tuple(common))))
    jobs = []
    for seed in profile.seeds_of.get(arm.key, profile.seeds):
        name = f"{arm.key}-seed{seed}"
        jobs.append(
            Job(
                name,
                "train",
                (*words, f"seed={seed}"),
                arm.title,
                seed,
            )
        )
    return jobs


def in_precision_of_training(words: Iterable[str], setup: Setup) -> list[str]:
    """Return a measurement's overrides with `precision=auto` replaced by the precision used in training.

    The precision is then in the job's key, and the user's `trainer.precision` applies to the measurements too.
    """
    precision = "32-true"
    if setup.config.trainer.precision == "bf16-mixed":
        precision = "bf16-mixed"
    return [word.replace("precision=auto", f"precision={precision}") for word in words]


def with_longer_segments(profile: Profile, config: Config) -> list[str]:
    """Return overrides for the longer segments of Table 10, and for fewer steps: the tokens stay as many."""
    segment_len = profile.longer_segment
    words = [f"data.segment_len={segment_len}"]
    steps = {
        "trainer.max_steps": config.trainer.max_steps,
        "trainer.val_every_n_steps": config.trainer.val_every_n_steps,
        "optimizer.warmup_steps": config.optimizer.warmup_steps,
    }
    share = config.data.segment_len / segment_len
    for option, n in steps.items():
        if n:
            words.append(f"{option}={round(n * share)}")
    return words
