"""Tables and notes for `txl recl`: for the terminal, recl.md and the page."""

from __future__ import annotations

from txl_lightning.recl.effective_context import Entries
from txl_lightning.reporting import escape, markdown_table

MEASUREMENT = (
    "{positions[number]:,} positions of {corpus[name]} ({split}) in {positions[blocks]} blocks spread evenly over the "
    "text; threshold {threshold:.3g}.",
    "Within 1 %: the first context whose mean loss is at most 1 % above the loss with the longest context.",
    "Guarded: RECL that also ends where the model's own mean loss no longer falls, over all or over hard positions.",
    "RECL: the paper's length, in a group; it ends at the first step whose relative gain is below the threshold.",
    "r = 0.1: only the hardest 10 % of the positions count; r = 1.0: all.",
    "In brackets: 95 % interval over resamples of the blocks (bootstrap); at the grid's end it may reach further.",
    "≥: steps still counted where the grid ends (max_context). ±: standard error over blocks.",
)
CUT = (
    "{positions[cut]:,} positions have less context than the longest, because their document is shorter "
    "(documents=respect)."
)
NOTES = {
    "code_not_run": "{name}: its own code is not run; read as {code_not_run}.",
    "not_read": "{name}: not read: {not_read}.",
    "limit_reason": "{name}: limit: {limit_reason}.",
    "begin_of_text": "{name}: tokens {begin_of_text} are read before every window, beside its context (begin_of_text).",
    "changed_text": (
        "{name}: its tokenizer changes the text ({changed_text}): losses are per token of the changed text."
    ),
}
DIRECT = "{name}: read in windows of exactly c tokens: one pass differs by up to {one_pass_difference:.3g} nats."
PLATEAU = "{name}: RECL ends at a plateau, but later steps gain again: r = {r} from {value} to {gains_again}."


def report_lines(results: Entries) -> list[str]:
    """Return recl.md as lines: the tables and their notes.

    Args:
        results: the parsed `recl.json`.
    """
    lines = []
    for title, rows in tables(results).items():
        cells = [[*row.values()] for row in rows]
        table = markdown_table([*rows[0]], cells)
        lines += [escape(title), "", *table.splitlines(), ""]
    return lines + [escape(note) for note in notes(results)]


def tables(results: Entries) -> dict[str, list[Entries]]:
    """Return two tables by title, a row of cells a model.

    How far the models look: the context within 1 % of the loss, guarded RECL and RECL (Table 8). Then their losses at
    both ends of the grid.
    """
    lengths = []
    losses = []
    for model in results["models"]:
        lengths.append(_lengths(model, results["bootstrap"] > 0))
        losses.append(_losses(model, results))
    names = ", ".join(model["name"] for model in results["models"])
    title = f"How far does it look? Tokens of context; RECL in the group of {names}"
    return {title: lengths, "Loss by context": losses}


def _lengths(model: Entries, has_intervals: bool) -> Entries:
    row = {"model": model["name"], "within 1 %": model["within_1_percent"]}
    for kind, value, prefix in (("guarded", "guarded", "guarded_"), ("RECL", "value", "")):
        for r, length in model["recl"].items():
            cell = str(length[value])
            if length[f"{prefix}at_least"]:
                cell = f"≥ {cell}"
            if has_intervals:
                cell += f" [{length[f'{prefix}low']}, {length[f'{prefix}high']}]"
            row[f"{kind} r = {r}"] = cell
    return row


def _losses(model: Entries, results: Entries) -> Entries:
    unit = results["unit"]
    row = {
        "model": model["name"],
        "kind": model.get("kind", ""),
        "sees at most": model.get("limit") or "no limit",
    }
    errors = model[f"{unit}_standard_error"]
    for c in (0, -1):
        title = f"{unit} at {results['contexts'][c]} tokens"
        row[title] = f"{model[unit][c]:.3f} ± {errors[c]:.3f}"
    return row


def notes(results: Entries) -> list[str]:
    """Describe the measurement, its precision, and how each model was read."""
    lines = [words.format(**results) for words in MEASUREMENT]
    if results["positions"]["cut"]:
        lines.append(CUT.format(**results))
    for model in results["models"]:
        for name, words in NOTES.items():
            if model.get(name):
                lines.append(words.format(**model))
        if model.get("scoring") == "direct" and "one_pass_difference" in model:
            lines.append(DIRECT.format(**model))
        for r, length in model["recl"].items():
            if length["gains_again"]:
                lines.append(
                    PLATEAU.format(
                        name=model["name"],
                        r=r,
                        **length,
                    )
                )
    return lines
