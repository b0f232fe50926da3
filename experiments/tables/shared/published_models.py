"""Runs of the published models, `conf/experiment/paper`, with the profiles that train them."""

from __future__ import annotations

from experiments.engine.jobs import Job, at_hand, composed
from experiments.engine.setup import Setup
from experiments.tables.arms import PLACES, OtherCorpus, devices_for
from txl_lightning.config.schemas import DataConfig

PUBLISHED = {  # files of conf/experiment/paper with table and row; none is published for Penn Treebank
    "wt103_base": (1, "Transformer-XL standard"),
    "wt103_large": (1, "Transformer-XL large"),
    "enwik8_base": (2, "Transformer-XL 12 layers"),
    "enwik8_18l": (2, "Transformer-XL 18 layers"),
    "enwik8_large": (2, "Transformer-XL 24 layers"),
    "text8_base": (3, "Transformer-XL 12 layers"),
    "text8_large": (3, "Transformer-XL 24 layers"),
    "lm1b_base_paper": (4, "Transformer-XL base"),
    "lm1b_large": (4, "Transformer-XL large"),
}
STANDARD, LARGE = "wt103_base", "wt103_large"


def published_runs(setup: Setup) -> dict[str, Job]:
    """Return the published models of the profile whose corpus is the arms' own or is on this machine, by name."""
    found = {}
    for name in setup.profile.main:
        words = (*_experiment(name, setup), *_places(setup))
        config = composed(words)
        if setup.profile.devices > 1:
            words += (f"trainer.devices={devices_for(config, setup.profile)}",)
        if _is_own(config.data, setup) or at_hand(config.data):
            table, model = PUBLISHED[name]
            title = f"Table {table}: {model}"
            found[name] = Job(f"published-{name}", "train", (*words, "seed=1"), title, 1, ("published", name))
    return found


def standard_run(setup: Setup) -> Job | None:
    """Return the run of WikiText-103's standard model (151M); None if the arms have another corpus."""
    return _on_own_corpus(setup).get(STANDARD)


def largest_run(setup: Setup) -> Job | None:
    """Return the run of the largest published model on WikiText-103; None if the arms have another corpus."""
    runs = _on_own_corpus(setup)
    return runs.get(LARGE) or runs.get(STANDARD)


def one_billion_word(setup: Setup) -> OtherCorpus | None:
    """Return Table 7's corpus and model in the paper; None if the profile has none or the corpus is not here."""
    if setup.profile.table_7 is None:
        return None
    words = _experiment(setup.profile.table_7, setup)
    data = composed((*words, *_places(setup))).data
    if data.level != _own(setup).level or not at_hand(data):
        return None
    return OtherCorpus("One Billion Word", words, recipe=True)


def _on_own_corpus(setup: Setup) -> dict[str, Job]:
    return {name: run for name, run in published_runs(setup).items() if _is_own(composed(run.overrides).data, setup)}


def _experiment(name: str, setup: Setup) -> tuple[str, ...]:
    return (f"experiment=paper/{name}", *setup.profile.main_overrides)


def _places(setup: Setup) -> tuple[str, ...]:
    return tuple(word for word in setup.overrides if word.split("=")[0] in PLACES)


def _own(setup: Setup) -> DataConfig:
    return composed((f"profile={setup.profile.name}", *setup.overrides)).data


def _is_own(data: DataConfig, setup: Setup) -> bool:
    own = _own(setup)
    return (own.name, own.level) == (data.name, data.level)
