"""Arms of the ablation, and the training runs that several tables share."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Literal

import txl_lightning.model.encodings  # noqa: F401 - registers the encodings that `kind_named` knows
from experiments.engine.jobs import Job, composed
from experiments.engine.profiles import Profile, Setup
from experiments.tables.memory import longest_segment
from txl_lightning.config.encoding_kinds import kind_named
from txl_lightning.config.schemas import Config
from txl_lightning.errors import require

ENCODINGS = {"relative": "relative", "shaw": "Shaw", "absolute": "Vaswani", "al_rfou": "Al-Rfou"}  # others: their names
LONGER = {"full": 176 / 128, "half": 172 / 128}  # of Table 10: segments that use the GPU memory of recurrence
RESERVED_OPTIONS = (
    *("seed", "loss", "memory", "encoding", "encoding.name", "model.terms"),
    *("resume", "experiment", "initial_weights", "trainer.devices", "trainer.num_threads", "trainer.num_nodes"),
)
RESERVED_GROUPS = ("logger", "hydra", "profile")
ATTENTION_OPTIONS = tuple(f"evaluation.{name}" for name in ("mem_len", "ext_len", "same_length", "clamp_len"))
PLACES = ("data.root", "data.cache_dir")
CORPUS_OPTIONS = (
    *("data", "data.path", "data.level", "data.fractions", "data.prefix", "data.newlines"),
    *("data.dtype", "data.names", "data.bytes", "data.vocab_size"),
)


@dataclass(frozen=True)
class OtherCorpus:
    """Corpus that a table uses instead of the user's.

    Args:
        name: name in words, for titles.
        overrides: Hydra overrides that choose it.
        recipe: they choose a published experiment, with its model and lengths; of the user's options only those of
            `PLACES` apply.
        max_tokens: of a split that are scored, at training's lengths and others; None for whole splits at training's
            lengths alone, where lines are in random order.
    """

    name: str
    overrides: tuple[str, ...]
    recipe: bool = False
    max_tokens: int | None = None


@dataclass(frozen=True)
class Variant:
    """Change of an arm that no row of the paper has: parts of the model, or another memory.

    Args:
        name: name in words, for titles and keys.
        changes: from the configuration of profile and user to the overrides that make the change.
        recipe: its recipe in `Profile.recipes`, in place of that of the arm's family; None for the family's.
        segment: length of segments, as a share of the profile's; a step has as many tokens, in fewer streams.
    """

    name: str
    changes: Callable[[Config], tuple[str, ...]] = field(compare=False)
    recipe: str | None = None
    segment: float = 1.0


ADAM = Variant("Adam", lambda config: ("optimizer=adam",), "adam")


@dataclass(frozen=True)
class Arm:
    """One setting of the ablation.

    Args:
        recurrence: train with memory.
        encoding: position encoding, under this project's names.
        loss: over all positions of a segment (full), its last half (half) or half of them drawn at random
            (random_half), which is evaluated as the full loss is.
        longer: use longer segments, as in Table 10: by the paper's factor, with as many tokens of training as the other
            arms or as many steps; or as long as the memory of training allows (`longest_segment`), with as many tokens.
        baseline: lstm or qrnn instead of a Transformer.
        corpus: corpus to use instead of the user's; None for the user's.
        variant: change beyond the paper; None for a setting of the paper.
    """

    recurrence: bool = True
    encoding: str = "relative"
    loss: str = "full"
    longer: Literal["equal tokens", "equal steps", "equal memory"] | None = None
    baseline: str | None = None
    corpus: OtherCorpus | None = None
    variant: Variant | None = None

    @property
    def title(self) -> str:
        """Name in the report."""
        if self.baseline:
            return self.baseline.upper()
        encoding = ENCODINGS.get(self.encoding, self.encoding)
        words = ["recurrence" if self.recurrence else "no recurrence", encoding, f"{self.loss.replace('_', ' ')} loss"]
        words += [f"longer segments, {self.longer}"] if self.longer else []
        return ", ".join(words + [part.name for part in (self.variant, self.corpus) if part])

    @property
    def key(self) -> str:
        """Key of its rows in tables and beginning of the names of its runs; unlike the title, it never changes."""
        words = [self.corpus.name] if self.corpus else []
        if self.baseline:
            words.append(self.baseline)
        else:
            words += ["recurrence" if self.recurrence else "no recurrence", self.encoding, f"{self.loss} loss"]
            words += [f"longer segments {self.longer}"] if self.longer else []
            words += [self.variant.name] if self.variant else []
        return "-".join(words).replace(" ", "_")

    @property
    def family(self) -> str | None:
        """Name of its recipe in `Profile.recipes`; None where the recipe is the profile's own."""
        if self.baseline:
            return self.baseline
        if self.variant and self.variant.recipe:
            return self.variant.recipe
        if kind_named(self.encoding).absolute:
            return "absolute"
        if self.encoding == "shaw":
            return "shaw"
        return None if self.recurrence else "no_recurrence"

    def overrides(self, profile: Profile, config: Config) -> tuple[str, ...]:
        """Return the overrides of the arm, to append to those of profile and user, which compose `config`."""
        recipe = profile.recipes.get(self.family or "", ())
        if self.baseline:
            return (f"model={self.baseline}", *recipe)
        words = [f"memory={'on' if self.recurrence else 'off'}", f"encoding={self.encoding}", f"loss={self.loss}"]
        words += [*(self.variant.changes(config) if self.variant else ()), *recipe]
        own, segment_len = config.data.segment_len, self.segment_len(config)
        if segment_len != own:
            words.append(f"data.segment_len={segment_len}")
            if self.longer is None:
                words.append(f"data.batch_size={max(1, config.data.batch_size * own // segment_len)}")
            elif self.longer != "equal steps":
                words += _equal_tokens(own / segment_len, config)
        # Without memory every window scores its last tokens: with the full loss a quarter, as `StateReuse` does, with
        # the half loss those that training scores.
        scored = segment_len - segment_len // 2 if self.loss == "half" else max(1, segment_len // 4)
        scored = segment_len if self.recurrence else scored
        if scored != own:
            words += [f"evaluation.ext_len={segment_len - scored}", *_evaluation_segments(scored, config)]
        return tuple(words)

    def segment_len(self, config: Config) -> int:
        """Return the length of the training segments; that of profile and user is in `config`."""
        if self.longer == "equal memory":
            return longest_segment(config)
        share = LONGER[self.loss] if self.longer else self.variant.segment if self.variant else 1.0
        return round(config.data.segment_len * share)

    def accepts(self, override: str) -> bool:
        """Return whether an override of the user's applies to this arm."""
        option = override.split("=")[0]
        if self.corpus and self.corpus.recipe:
            return option in PLACES
        if self.baseline and (option.split(".")[0] in ("model", "memory") or option in ATTENTION_OPTIONS):
            return False
        if not self.recurrence and option == "memory.mem_len":
            return False
        return not (self.corpus and option in CORPUS_OPTIONS)


def _evaluation_segments(segment_len: int, config: Config) -> list[str]:
    """Overrides that score as many tokens of validation and test as `config` in segments of another length."""
    limits = {"evaluation.max_segments": config.evaluation.max_segments}
    limits["trainer.val_max_segments"] = config.trainer.val_max_segments
    scored = {name: max(1, n * config.evaluation.segment_len // segment_len) for name, n in limits.items() if n}
    return [f"evaluation.segment_len={segment_len}", *(f"{name}={n}" for name, n in scored.items())]


def _equal_tokens(share: float, config: Config) -> list[str]:
    """Overrides for as many tokens of training in other segments: steps, warm-up and interval of validation a share."""
    lengths = {f"trainer.{name}": getattr(config.trainer, name) for name in ("max_steps", "val_every_n_steps")}
    lengths["optimizer.warmup_steps"] = config.optimizer.warmup_steps
    return [f"{option}={round(steps * share)}" for option, steps in lengths.items() if steps]


def memory_of_training(setup: Setup) -> int:
    """Return the memory length of training with recurrence."""
    return composed(training(Arm(), setup.profile.seeds[0], setup).overrides).memory.mem_len


def in_precision_of_training(words: Iterable[str], setup: Setup) -> tuple[str, ...]:
    """Return the overrides of a measurement with `precision=auto` replaced by the precision of the trainings.

    The precision is then part of the job's key, and the user's `trainer.precision` applies to the measurements too.
    """
    precision = "bf16-mixed" if setup.config.trainer.precision == "bf16-mixed" else "32-true"
    return tuple(f"precision={precision}" if word == "precision=auto" else word for word in words)


def kept(arms: Iterable[Arm], setup: Setup) -> list[Arm]:
    """Return the arms that the profile does not leave out."""
    return [arm for arm in arms if arm.key not in setup.profile.leave_out]


def check_overrides(overrides: tuple[str, ...]) -> None:
    """Refuse overrides of options that the arms and the runner set.

    Raises:
        OptionError: naming the option.
    """
    for word in overrides:
        option, _, value = word.partition("=")
        allowed = "must not be given: the experiments set it (--only chooses among them)"
        reserved = option in RESERVED_OPTIONS or option.split(".")[0] in RESERVED_GROUPS
        require(not reserved, option, value, allowed)


def training(arm: Arm, seed: int, setup: Setup) -> Job:
    """Return the training run of an arm with a seed."""
    profile = setup.profile
    corpus = arm.corpus.overrides if arm.corpus else ()
    words = (f"profile={profile.name}", *profile.train, *filter(arm.accepts, setup.overrides), *corpus)
    config = composed(words)
    words += arm.overrides(profile, config)
    if profile.devices > 1:
        words += (f"trainer.devices={devices_for(config, profile)}",)
    return Job(f"{arm.key}-seed{seed}", "train", (*words, f"seed={seed}"), arm.title, seed)


def devices_for(config: Config, profile: Profile) -> int:
    """Return the largest number of the profile's devices that divides the batch."""
    return max(n for n in range(1, profile.devices + 1) if config.data.batch_size % n == 0)


def trainings(arm: Arm, setup: Setup, compared: bool = True) -> list[Job]:
    """Return the training runs of an arm, one per seed of the profile for arms of its kind.

    Args:
        arm: setting.
        setup: settings of the reproduction.
        compared: a claim compares its losses.
    """
    profile = setup.profile
    pair = replace(arm, recurrence=True) == Arm()
    compared_seeds = profile.seeds if pair else profile.seeds_others
    if profile.seeds_absolute is not None and not arm.baseline and kind_named(arm.encoding).absolute:
        compared_seeds = profile.seeds_absolute
    seeds = profile.seeds_of.get(arm.key) or (compared_seeds if compared else profile.seeds_uncompared)
    return [training(arm, seed, setup) for seed in seeds]
