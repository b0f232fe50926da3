"""Weights of a checkpoint for a run that starts from them or resumes, also with another vocabulary."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from txl_lightning.config.architecture import LENGTHS
from txl_lightning.config.schemas import from_plain
from txl_lightning.data.vocabulary import Vocabulary
from txl_lightning.errors import OptionError, UserError, require
from txl_lightning.runs.models import Model, architecture
from txl_lightning.runs.trained import model_weights

NON_ARCHITECTURE_FIELDS = {  # may differ between a checkpoint and the model that takes its weights
    *("dropout", "attention_dropout", "hidden_dropout", "weight_dropout", "init_std"),
    *LENGTHS,
    "vocab_size",
}
MOST_SHOWN = 8


def check_weights(
    path: str | None, option: str, checkpoint: dict[str, Any], model: Model, vocabulary: Vocabulary
) -> dict[str, torch.Tensor]:
    """Return the weights of a checkpoint under the names of the model.

    Initial weights may be of another vocabulary: known tokens keep their rows, new ones have those of `model`.

    Args:
        path: path of the checkpoint, for messages.
        option: option that named it: `resume` or `initial_weights`.
        checkpoint: contents of the checkpoint.
        model: model that takes the weights.
        vocabulary: vocabulary of the corpus.

    Raises:
        OptionError: the checkpoint has another architecture, or a vocabulary that cannot be used.
    """
    record = checkpoint["txl_lightning"]
    theirs = architecture(from_plain(record["config"]), len(vocabulary))
    for name, value in vars(theirs).items():
        if name in NON_ARCHITECTURE_FIELDS or not hasattr(model.config, name):
            continue
        if value != getattr(model.config, name):
            needed = getattr(model.config, name)
            raise OptionError(option, path, f"is of another model: {name} is {value}, this model needs {needed}")
    weights = model_weights(checkpoint)
    trained_on = Vocabulary.from_state_dict(record["vocabulary"])
    if trained_on != vocabulary:
        require(option != "resume", option, path, "was trained on another vocabulary than this corpus has")
        try:
            weights = keep_known_tokens(weights, trained_on, vocabulary, model)
        except UserError as error:
            raise OptionError(option, path, str(error)) from error
    has = {name: list(tensor.shape) for name, tensor in weights.items()}
    needs = {name: list(tensor.shape) for name, tensor in model.state_dict().items()}
    for name in sorted(has.keys() | needs.keys()):
        if has.get(name) != needs.get(name):
            shapes = f"{name} is {has.get(name, 'absent')}, this model needs {needs.get(name, 'none')}"
            raise OptionError(option, path, f"is of another model: {shapes}")
    return weights


def keep_known_tokens(
    weights: dict[str, Tensor], before: Vocabulary, after: Vocabulary, model: Model
) -> dict[str, Tensor]:
    """Return weights for another vocabulary.

    A token is known if both vocabularies have it, in the same cluster of the adaptive softmax: it keeps its row of the
    embedding, which the softmax shares, and its bias. The rows of new tokens are those of `model`, as initialized.

    Args:
        weights: weights of a model with the same architecture and cut-offs, by name.
        before: vocabulary of `weights`.
        after: vocabulary of the result.
        model: new model with `after`.

    Raises:
        UserError: the levels have no tokens in common, such as bytes and characters, or sizes differ.
    """
    known = known_tokens(before, after, model)
    new = np.flatnonzero(known >= 0)
    old = known[new]
    result = dict(weights)
    bias = model.softmax.bias.detach().clone()
    bias[new] = weights["softmax.bias"][old]
    result["softmax.bias"] = bias
    edges = model.embedding.edges if model.embedding.div_val > 1 else (0, len(after))
    for cluster, table in enumerate(model.embedding.tables):
        name = f"embedding.tables.{cluster}"
        rows = table.detach().clone()
        if name not in weights or weights[name].shape[1:] != rows.shape[1:]:
            raise UserError(f"is of another model: the embedding {name} has another width")
        inside = (new >= edges[cluster]) & (new < edges[cluster + 1])
        rows[new[inside] - edges[cluster]] = weights[name][old[inside] - edges[cluster]].to(rows)
        result[name] = rows
    return result


def known_tokens(before: Vocabulary, after: Vocabulary, model: Model) -> np.ndarray:
    """Return the number that every token of `after` has in `before`, -1 for new tokens, [V].

    Raises:
        UserError: the levels have no tokens in common.
    """
    if before.level != after.level and not (before.consists_of_bytes and after.consists_of_bytes):
        raise UserError(f"was trained at level {before.level}: none of its tokens is one of level {after.level}")
    numbers = {symbol: number for number, symbol in enumerate(_symbols(before))}
    found = np.array([numbers.get(symbol, -1) for symbol in _symbols(after)], dtype=np.int64)
    firsts = model.embedding.edges[1:-1]
    cluster_before, cluster_after = (np.searchsorted(firsts, n, side="right") for n in (found, np.arange(len(after))))
    return np.where(cluster_before == cluster_after, found, -1)


def describe_change(before: Vocabulary, after: Vocabulary, model: Model) -> str | None:
    """Describe in one line how many tokens are known, and name some new ones; None if the vocabularies are equal."""
    if before == after:
        return None
    new = np.flatnonzero(known_tokens(before, after, model) < 0)
    shown = ", ".join(repr(after.decode([token])) for token in new[:MOST_SHOWN].tolist())
    names = f": {shown}{', …' if len(new) > MOST_SHOWN else ''}" if len(new) else ""
    known = len(after) - len(new)
    return f"{known:,} of {len(after):,} tokens are known and keep their weights, {len(new):,} are new{names}"


def _symbols(vocabulary: Vocabulary) -> tuple[str, ...]:
    return vocabulary.symbols or tuple(map(chr, range(len(vocabulary))))
