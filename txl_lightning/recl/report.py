"""Tables and notes of `txl recl`, for the terminal, recl.md and the page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from txl_lightning.reporting import escape, markdown_table

LAST_DOUBLINGS = 3  # in the table
DEFINITIONS = (
    "Within 1 %: the first context whose mean loss is at most 1 % above that with the longest context.",
    "Guarded: RECL that also ends where the model's own mean loss no longer falls, over all or over hard positions.",
    "RECL: the paper's length, in a group; it ends at the first step whose relative gain is below the threshold.",
    "r: only the share r of the positions that is hardest counts; r = 1.0 is all.",
)


@dataclass(frozen=True)
class Table:
    """A table with a title."""

    title: str
    header: list[str]
    rows: list[list[str]]


def report_lines(results: dict[str, Any]) -> list[str]:
    """Return the lines of recl.md: the tables and their notes.

    Args:
        results: contents of `recl.json`.
    """
    lines = []
    for table in tables(results):
        lines += [
            escape(table.title),
            "",
            *markdown_table(table.header, table.rows).splitlines(),
            "",
        ]
    for note in notes(results):
        lines.append(escape(note))
    return lines


def tables(results: dict[str, Any]) -> list[Table]:
    """Return how far the models look, their losses and gains by context, and the differences of every two."""
    found = [_lengths(results), _losses(results)]
    if results["differences"]:
        found.append(_differences(results))
    return found


def _lengths(results: dict[str, Any]) -> Table:
    """Return the context within 1 % of the loss, guarded RECL and RECL (Table 8), with intervals."""
    fractions = [str(float(r)) for r in results["fractions"]]
    has_interval = results["bootstrap"] > 0
    rows = []
    for model in results["models"]:
        lengths = [model["recl"][r] for r in fractions]
        row = [model["name"], str(model["within_1_percent"])]
        row += [_length(length, "guarded_", has_interval) for length in lengths]
        row += [_length(length, "", has_interval) for length in lengths]
        rows.append(row)
    header = ["model", "within 1 %"]
    header += [f"guarded r = {r}" for r in fractions]
    header += [f"RECL r = {r}" for r in fractions]
    groups = "; ".join(", ".join(group["models"]) for group in results["groups"])
    return Table(
        f"How far does it look? Tokens of context; RECL in the group of {groups}", header, rows
    )


def _length(length: dict[str, Any], prefix: str, has_interval: bool) -> str:
    """Return a length and its interval; a prefix names guarded RECL."""
    value = length["guarded" if prefix else "value"]
    text = _bounded(value, length[f"{prefix}at_least"])
    if not has_interval:
        return text
    low = length[f"{prefix}low"]
    high = _bounded(length[f"{prefix}high"], length[f"{prefix}high_at_least"])
    return f"{text} [{low}, {high}]"


def _bounded(value: int, at_least: bool) -> str:
    return f"≥ {value}" if at_least else str(value)


def _losses(results: dict[str, Any]) -> Table:
    """Return losses at both ends of the grid, and the gains of the longest doublings that begin with the first."""
    unit = results["unit"]
    contexts = results["contexts"]
    header = [
        "model",
        "kind",
        "sees at most",
        f"{unit} at {contexts[0]} tokens",
        f"{unit} at {contexts[-1]} tokens",
    ]
    rows = []
    for model in results["models"]:
        errors = model[f"{unit}_standard_error"]
        limit = "no limit" if model["limit"] is None else str(model["limit"])
        row = [model["name"], model["kind"], limit]
        row += [_value(model[unit][end], errors[end]) for end in (0, -1)]
        for doubling in _chain(model["doublings"], contexts[0]):
            row.append(_value(doubling["bits"], doubling["standard_error"]))
        rows.append(row)
    for doubling in _chain(results["models"][0]["doublings"], contexts[0]):
        header.append(f"bits {doubling['from']} → {doubling['to']}")
    return Table("Loss by context, and how many bits more context gains", header, rows)


def _chain(doublings: Sequence[dict[str, Any]], first: int) -> list[dict[str, Any]]:
    """Return the last doublings of the chain first → 2 · first → 4 · first …."""
    powers = [first << k for k in range(32)]
    return [doubling for doubling in doublings if doubling["from"] in powers][-LAST_DOUBLINGS:]


def _value(value: float, error: float) -> str:
    return f"{value:.3f} ± {error:.3f}"


def _differences(results: dict[str, Any]) -> Table:
    rows = []
    for one in results["differences"]:
        nll, low, high = (one[name][-1] for name in ("nll", "low", "high"))
        pair = f"{one['model']} − {one['minus']}"
        rows.append([pair, f"{nll:+.4f} [{low:+.4f}, {high:+.4f}]"])
    longest = results["contexts"][-1]
    header = ["difference, paired by position", f"nats at {longest} tokens, 95 % interval"]
    return Table("Differences", header, rows)


def notes(results: dict[str, Any]) -> list[str]:
    """Describe the measurement, its precision, and how each model was read."""
    positions = results["positions"]
    longest = results["contexts"][-1]
    found = [
        f"{positions['number']:,} positions of {results['corpus']['name']} ({results['split']}) "
        f"in {positions['blocks']} blocks spread evenly over the text; ± over blocks. "
        "A step from a context of the grid to the next counts if its relative gain is at least "
        f"{results['threshold']:.3g}.",
        *DEFINITIONS,
    ]
    if results["bootstrap"]:
        found.append(
            f"In brackets: 95 % interval over {results['bootstrap']:,} resamples of the blocks. ≥: steps still counted "
            f"at {longest}, where the grid ends (max_context)."
        )
    if positions["cut"]:
        found.append(
            f"{positions['cut']:,} positions have fewer than {longest} tokens of context, because their document is "
            "shorter (documents=respect)."
        )
    for model in results["models"]:
        found += [f"{model['name']}: {note}." for note in _notes_of_model(model)]
    return found


def _notes_of_model(model: dict[str, Any]) -> list[str]:
    """Describe how a model was read, and where its lengths need care."""
    found = []
    if model.get("code_not_run"):
        found.append(f"its own code is not run; read as {model['code_not_run']}")
    found += [f"not read: {part}" for part in model.get("not_read", [])]
    if model.get("limit_reason"):
        limit = "none" if model["limit"] is None else model["limit"]
        found.append(f"limit={limit}: {model['limit_reason']}")
    if model.get("begin_of_text"):
        begin = ", ".join(map(str, model["begin_of_text"]))
        found.append(
            f"token {begin} is read before every window, beside its context (begin_of_text)"
        )
    if model.get("other_tokenizer"):
        found.append(
            "tokenizer.json has other tokens than AutoTokenizer: tokenizer=json reads them"
        )
    changed = model.get("changed_text")
    if changed:
        read = f"its tokens read {changed['read']!r} for {changed['text']!r}"
        found.append(
            f"its tokenizer changes the text ({read}): losses are per token of the changed text"
        )
    if model["scoring"] == "direct" and model.get("one_pass_difference"):
        difference = f"one pass differs by up to {model['one_pass_difference']:.3g} nats"
        found.append(f"read in windows of exactly c tokens: {difference}")
    again = []
    for r, length in model["recl"].items():
        if length["gains_again"]:
            again.append(f"r = {r} from {length['value']} to {length['gains_again']}")
    if again:
        found.append(f"RECL ends at a plateau, but later steps gain again: {', '.join(again)}")
    return found
