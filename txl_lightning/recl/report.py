"""Tables and notes for `txl recl`: for the terminal, recl.md and the page."""

from __future__ import annotations

from txl_lightning.recl.effective_context import Entries
from txl_lightning.reporting import escape, markdown_table

DEFINITIONS = (
    "Within 1 %: the first context whose mean loss is at most 1 % above the loss with the longest context.",
    "Guarded: RECL that also ends where the model's own mean loss no longer falls, over all or over hard positions.",
    "RECL: the paper's length, in a group; it ends at the first step whose relative gain is below the threshold.",
    "r = 0.1: only the hardest 10 % of the positions count; r = 1.0: all.",
)
NOTES = {
    "code_not_run": "its own code is not run; read as {}",
    "not_read": "not read: {}",
    "limit_reason": "limit: {}",
    "begin_of_text": "tokens {} are read before every window, beside its context (begin_of_text)",
    "changed_text": "its tokenizer changes the text ({}): losses are per token of the changed text",
}


def report_lines(results: Entries) -> list[str]:
    """Return recl.md as lines: the tables and their notes.

    Args:
        results: the parsed `recl.json`.
    """
    lines = []
    for table in tables(results):
        text = markdown_table(table["header"], table["rows"])
        lines += [
            escape(table["title"]),
            "",
            *text.splitlines(),
            "",
        ]
    return lines + [escape(note) for note in notes(results)]


def tables(results: Entries) -> list[Entries]:
    """Return title, header and rows of two tables.

    How far the models look: the context within 1 % of the loss, guarded RECL and RECL (Table 8). Then their losses at
    both ends of the grid.
    """
    models = results["models"]
    names = ", ".join(model["name"] for model in models)
    found = {
        f"How far does it look? Tokens of context; RECL in the group of {names}": _lengths,
        "Loss by context": _losses,
    }
    shown = []
    for title, row_of in found.items():
        rows = [row_of(model, results) for model in models]
        cells = [[*row.values()] for row in rows]
        shown.append({"title": title, "header": [*rows[0]], "rows": cells})
    return shown


def _lengths(model: Entries, results: Entries) -> dict[str, str]:
    row = {"model": model["name"], "within 1 %": str(model["within_1_percent"])}
    for kind, value, prefix in (("guarded", "guarded", "guarded_"), ("RECL", "value", "")):
        for r, length in model["recl"].items():
            cell = str(length[value])
            if length[f"{prefix}at_least"]:
                cell = f"≥ {cell}"
            if results["bootstrap"]:
                cell += f" [{length[f'{prefix}low']}, {length[f'{prefix}high']}]"
            row[f"{kind} r = {r}"] = cell
    return row


def _losses(model: Entries, results: Entries) -> dict[str, str]:
    unit = results["unit"]
    limit = str(model["limit"] or "no limit")
    row = {"model": model["name"], "kind": model["kind"], "sees at most": limit}
    errors = model[f"{unit}_standard_error"]
    for c in (0, -1):
        cell = f"{model[unit][c]:.3f} ± {errors[c]:.3f}"
        row[f"{unit} at {results['contexts'][c]} tokens"] = cell
    return row


def notes(results: Entries) -> list[str]:
    """Describe the measurement, its precision, and how each model was read."""
    positions = results["positions"]
    longest = results["contexts"][-1]
    lines = [
        f"{positions['number']:,} positions of {results['corpus']['name']} ({results['split']}) in "
        f"{positions['blocks']} blocks spread evenly over the text; ± over blocks. A step from a "
        "context of the grid to the next counts if its relative gain is at least "
        f"{results['threshold']:.3g}. ≥: steps still counted at {longest}, where the grid ends "
        "(max_context). In brackets: 95 % interval over resamples of the blocks (bootstrap); one that "
        f"ends at {longest} may reach further.",
        *DEFINITIONS,
    ]
    if positions["cut"]:
        lines.append(
            f"{positions['cut']:,} positions have fewer than {longest} tokens of context, because "
            "their document is shorter (documents=respect)."
        )
    for model in results["models"]:
        found = [words.format(model[name]) for name, words in NOTES.items() if model[name]]
        if model["scoring"] == "direct" and model["one_pass_difference"]:
            difference = f"one pass differs by up to {model['one_pass_difference']:.3g} nats"
            found.append(f"read in windows of exactly c tokens: {difference}")
        for r, length in model["recl"].items():
            if length["gains_again"]:
                steps = f"r = {r} from {length['value']} to {length['gains_again']}"
                found.append(f"RECL ends at a plateau, but later steps gain again: {steps}")
        lines += [f"{model['name']}: {note}." for note in found]
    return lines
