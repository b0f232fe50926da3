"""Arms of the ablation, and the training runs that several tables share."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cache
from itertools import count, takewhile
from typing import Any

import torch

import txl_lightning.model.encodings  # noqa: F401 - registers the encodings that `kind_named` knows
from experiments.engine.jobs import Job, composed
from experiments.engine.profiles import Profile, Setup
from txl_lightning.config.architecture import kind_named
from txl_lightning.config.schemas import Config, from_plain, plain
from txl_lightning.errors import require
from txl_lightning.evaluation.models import make_model

ENCODINGS = {"relative": "relative", "shaw": "Shaw", "absolute": "Vaswani", "al_rfou": "Al-Rfou"}  # others: their names
RESERVED_OPTIONS = (
    *("seed", "loss", "memory", "encoding", "encoding.name", "model.terms"),
    *("resume", "experiment", "initial_weights", "trainer.devices", "trainer.num_threads", "trainer.num_nodes"),
)
RESERVED_GROUPS = ("logger", "hydra", "profile")
ATTENTION_OPTIONS = tuple(f"evaluation.{name}" for name in ("mem_len", "ext_len", "same_length", "clamp_len"))
PLACES = ("data.root", "data.cache_dir")
CORPUS_OPTIONS = (
    *("data", "data.path", "data.level", "data.fractions", "data.newlines"),
    *("data.dtype", "data.names", "data.vocab_size"),
)
STEP = 8  # tokens by which `longest_segment` grows


@dataclass(frozen=True)
class OtherCorpus:
    """Corpus that a table uses instead of the user's.

    Args:
        name: name in words, for titles.
        overrides: Hydra overrides that choose it.
        recipe: they choose a published experiment, with its model and lengths; of the user's options only those of
            `PLACES` apply.
    """

    name: str
    overrides: tuple[str, ...]
    recipe: bool = False


@dataclass(frozen=True)
class Arm:
    """One setting of the ablation.

    Args:
        recurrence: train with memory.
        encoding: position encoding, under this project's names.
        loss: over all positions of a segment (full), its last half (half) or half of them drawn at random
            (random_half), which is evaluated as the full loss is.
        longer: the longer segments of Table 10, with as many tokens of training as the other arms.
        baseline: lstm or qrnn instead of a Transformer.
        optimizer: train with this one, where the profile has another: adam or muon.
        corpus: corpus to use instead of the user's; None for the user's.
    """

    recurrence: bool = True
    encoding: str = "relative"
    loss: str = "full"
    longer: bool = False
    baseline: str | None = None
    optimizer: str | None = None
    corpus: OtherCorpus | None = None

    @property
    def title(self) -> str:
        """Name in the report."""
        words = [self.baseline.upper()] if self.baseline else self._words(ENCODINGS.get(self.encoding, self.encoding))
        return ", ".join([*words, *([self.corpus.name] if self.corpus else [])])

    @property
    def key(self) -> str:
        """Key of its rows in tables and beginning of the names of its runs."""
        words = [self.baseline] if self.baseline else self._words(self.encoding)
        return "-".join([*([self.corpus.name] if self.corpus else []), *words]).replace(" ", "_")

    def _words(self, encoding: str) -> list[str]:
        words = ["recurrence" if self.recurrence else "no recurrence", encoding, f"{self.loss.replace('_', ' ')} loss"]
        return words + ["longer segments"] * self.longer + ([self.optimizer.capitalize()] if self.optimizer else [])

    @property
    def family(self) -> str:
        """Name of its recipe in `Profile.recipes`; the profile's own recipe is that of `recurrence`."""
        if chosen := self.baseline or self.optimizer:
            return chosen
        if kind_named(self.encoding).absolute or self.encoding == "shaw":
            return self.encoding
        return "recurrence" if self.recurrence else "no_recurrence"

    def overrides(self, profile: Profile, config: Config) -> tuple[str, ...]:
        """Return the overrides of the arm, to append to those of profile and user, which compose `config`."""
        recipe = profile.recipes.get(self.family, ())
        if self.baseline:
            return (f"model={self.baseline}", *recipe)
        words = [f"memory={'on' if self.recurrence else 'off'}", f"encoding={self.encoding}", f"loss={self.loss}"]
        words += [f"optimizer={self.optimizer}"] * bool(self.optimizer) + [*recipe]
        if self.longer:
            segment_len = profile.longer_segment or longest_segment(config)
            steps = {f"trainer.{name}": getattr(config.trainer, name) for name in ("max_steps", "val_every_n_steps")}
            steps["optimizer.warmup_steps"] = config.optimizer.warmup_steps
            share = config.data.segment_len / segment_len
            words.append(f"data.segment_len={segment_len}")
            words += [f"{option}={round(n * share)}" for option, n in steps.items() if n]
        return tuple(words)

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


ON, OFF = Arm(), Arm(False)


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


def kept(arms: Iterable[Arm], setup: Setup) -> list[Arm]:
    """Return the arms of which the profile trains a seed."""
    return [arm for arm in arms if setup.profile.seeds_of.get(arm.key, setup.profile.seeds)]


def training(arm: Arm, seed: int, setup: Setup) -> Job:
    """Return the training run of an arm with a seed."""
    profile = setup.profile
    corpus = arm.corpus.overrides if arm.corpus else ()
    words = (f"profile={profile.name}", *profile.train, *filter(arm.accepts, setup.overrides), *corpus)
    config = composed(words)
    words += (*arm.overrides(profile, config), *devices(config, profile))
    return Job(f"{arm.key}-seed{seed}", "train", (*words, f"seed={seed}"), arm.title, seed)


def trainings(arm: Arm, setup: Setup) -> list[Job]:
    """Return the training runs of an arm, one for each of its seeds in the profile."""
    profile = setup.profile
    return [training(arm, seed, setup) for seed in profile.seeds_of.get(arm.key, profile.seeds)]


def devices(config: Config, profile: Profile) -> tuple[str, ...]:
    """Return the override for as many of the profile's devices as divide the batch; none for one device."""
    n = max(n for n in range(1, profile.devices + 1) if config.data.batch_size % n == 0)
    return (f"trainer.devices={n}",) if profile.devices > 1 else ()


def memory_of_training(setup: Setup) -> int:
    """Return the memory length of training with recurrence."""
    return composed(training(ON, 1, setup).overrides).memory.mem_len


def in_precision_of_training(words: Iterable[str], setup: Setup) -> tuple[str, ...]:
    """Return the overrides of a measurement with `precision=auto` replaced by the precision of the trainings.

    The precision is then part of the job's key, and the user's `trainer.precision` applies to the measurements too.
    """
    precision = "bf16-mixed" if setup.config.trainer.precision == "bf16-mixed" else "32-true"
    return tuple(f"precision={precision}" if word == "precision=auto" else word for word in words)


def longest_segment(config: Config) -> int:
    """Return the longest segment, a multiple of 8, that takes no more memory without recurrence than `config` with it.

    It is at least as long as the segments of `config`.
    """

    def without(segment_len: int) -> Config:
        memory: Any = config.memory
        data = replace(config.data, segment_len=segment_len)
        return replace(config, data=data, memory=replace(memory, mem_len=0))

    own, available = config.data.segment_len, saved_bytes(config)
    longer = count(own // STEP * STEP + STEP, STEP)
    return max(takewhile(lambda length: saved_bytes(without(length)) <= available, longer), default=own)


def saved_bytes(config: Config) -> int:
    """Return the bytes that autograd saves for one training segment in float32: all tensors but the weights, each once.

    The memory of the model is full, and the segment has the batch of the config.
    """
    return _saved_bytes(json.dumps(plain(replace(config, seed=1))))


@cache
def _saved_bytes(config_json: str) -> int:
    config = from_plain(json.loads(config_json))
    model: Any = make_model(config, (config.data.vocab_size or 2048) if config.data.level == "bpe" else 256)
    memory = model.start_memory(config.data.batch_size, static=True)
    tokens_BT = torch.zeros(config.data.batch_size, config.data.segment_len, dtype=torch.long)
    saved: dict[int, int] = {}

    def note(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        saved[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        model.score(tokens_BT, tokens_BT, replace(memory, filled=memory.length))
    return sum(saved.values()) - sum(saved.get(p.data_ptr(), 0) for p in model.parameters())
