"""`txl card`: a model card, Markdown that begins with the metadata of model hubs."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from txl_lightning import __version__
from txl_lightning.config.lengths import extended_context
from txl_lightning.evaluation.card.options import CardOptions
from txl_lightning.evaluation.scoring.option_checks import open_checkpoint
from txl_lightning.evaluation.scoring.protocols import StateReuse
from txl_lightning.evaluation.scoring.standard_errors import NORMAL_95, standard_error, text_units
from txl_lightning.files import file_checksum, write_text
from txl_lightning.reporting.tables import markdown_table
from txl_lightning.runs.metrics import errors_by_unit, loss_metrics, loss_unit, unit_name
from txl_lightning.runs.trained import checkpoint_corpus

SPLITS = {"valid": "validation", "test": "test"}
BLOCK_LEN = 1_000  # tokens in a block, the unit of standard errors, as in `txl evaluate`


def run(options: CardOptions, directory: Path) -> list[str]:
    """Score validation and test as the run's own evaluation does, and write the card as `README.md`.

    Effective contexts are those of every `recl.json` in the run's folder that has the checkpoint.

    Raises:
        UserError: an option, the checkpoint or its corpus is not usable.
    """
    trained = open_checkpoint(options)
    corpus, config = checkpoint_corpus(trained, options.checkpoint), trained.config
    checkpoint, level = Path(options.checkpoint).resolve(), corpus.vocabulary.level
    folder = checkpoint.parents[1] if checkpoint.parent.name == "checkpoints" else checkpoint.parent
    name, protocol = options.name or folder.name, StateReuse(trained, corpus, config.evaluation)
    unit, losses, results = loss_unit(level), [], []
    for split, shown in SPLITS.items():
        value, interval, n_tokens, over = _score(protocol, split)
        losses.append([shown, f"{value:.4f}{interval}", f"{n_tokens:,}"])
        metric = {"type": unit, "name": unit_name(level), "value": round(value, 4)}
        data = {"name": corpus.name, "type": corpus.name, "split": shown}
        results.append({"task": {"type": "text-generation"}, "dataset": data, "metrics": [metric]})
    metadata: dict[str, Any] = {"license": options.license, "library_name": "txl_lightning"}
    metadata |= {"pipeline_tag": "text-generation", "tags": ["transformer-xl"]}
    metadata |= {"model-index": [{"name": name, "results": results}]}
    given = {"segment_len": config.data.segment_len, "batch_size": config.data.batch_size}
    given |= {"mem_len": config.memory.mem_len, "ext_len": extended_context(config)}
    settings = protocol.settings().items()
    lengths = [[option, given.get(option, "–"), "–" if value is None else value] for option, value in settings]
    facts = {
        "model": f"{config.model.name}, encoding {config.encoding.name}",
        "parameters": f"{sum(parameter.numel() for parameter in trained.model.parameters()):,}",
        "steps of training": f"{trained.step:,}",
        "data": f"{corpus.name}: {', '.join(f'{split} {len(of):,} tokens' for split, of in corpus.splits.items())}",
        "its SHA-256": corpus.checksum,
        "vocabulary": f"{len(corpus.vocabulary):,}, level {level}",
        "licence of the weights": options.license,
    }
    card = f"""\
---
{OmegaConf.to_yaml(OmegaConf.create(metadata))}---

# {name}

{markdown_table(["", f"written by txl card, txl_lightning {__version__}"], list(facts.items()))}
## Lengths

{markdown_table(["", "training", "evaluation"], lengths)}
## Losses

{markdown_table(["split", f"{unit} [95 % interval]", "tokens"], losses)}
{protocol.description().capitalize()}; interval over {over}.

{_effective_contexts(folder, file_checksum(checkpoint))}## Commands

```console
{_commands(folder, checkpoint.name)}
```
"""
    write_text(directory / "README.md", card)
    return [f"model card of {name}: {directory / 'README.md'}"]


def _score(protocol: StateReuse, split: str) -> tuple[float, str, int, str]:
    """Return the loss of a split in its unit, its 95 % interval, the tokens, and the units of the interval."""
    losses, level = protocol.losses(split), protocol.corpus.vocabulary.level
    units, over = text_units(losses.positions, protocol.corpus.sentences.get(split), BLOCK_LEN)
    value = loss_metrics(losses.mean, level)[loss_unit(level)]
    error = errors_by_unit(standard_error(losses.nll, units)[0], losses.mean, level)[loss_unit(level)]
    interval = "" if error is None else f" [{value - NORMAL_95 * error:.4f}, {value + NORMAL_95 * error:.4f}]"
    return value, interval, len(losses.nll), over


def _effective_contexts(folder: Path, checksum: str) -> str:
    """Return a section with the tables of `txl recl` in the run's folder that have this checkpoint; empty without."""
    found = [
        path.with_suffix(".md").read_text("utf-8").replace("\n## ", "\n### ")
        for path in sorted(folder.rglob("recl.json"))
        if checksum in (model["sha256"] for model in json.loads(path.read_text("utf-8"))["models"])
    ]
    return "\n".join(["## Effective context\n", *found, ""]) if found else ""


def _commands(folder: Path, file: str) -> str:
    """Return the command that trained the run, as Hydra recorded it, and those that use the checkpoint."""
    recorded = folder / ".hydra/overrides.yaml"
    train = "# trained with the options in config.yaml of the run"
    if recorded.is_file():
        train = shlex.join(["txl", "train", *OmegaConf.load(recorded)])
    return "\n".join([train, f"txl evaluate checkpoint={file}", f"txl generate checkpoint={file} context=100"])
