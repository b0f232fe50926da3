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
        lines += [escape(table["title"]), "", *text.splitlines(), ""]
    return lines + [escape(note) for note in notes(results)]


def tables(results: Entries) -> list[Entries]:
    """Return how far the models look, their losses, and pairwise differences: each table's title, header and rows."""
    found = [_lengths(results), _losses(results)]
    if results["differences"]:
        found.append(_differences(results))
    return found


def _lengths(results: Entries) -> Entries:
    """Return the context within 1 % of the loss, guarded RECL and RECL (Table 8), with intervals."""
    fractions = [float(r) for r in results["fractions"]]
    header = ["model", "within 1 %"]
    header += [f"guarded r = {r}" for r in fractions]
    header += [f"RECL r = {r}" for r in fractions]
    rows = []
    for model in results["models"]:
        row = [model["name"], str(model["within_1_percent"])]
        for value, prefix in (("guarded", "guarded_"), ("value", "")):
            for length in model["recl"].values():
                cell = _bounded(length[value], length[f"{prefix}at_least"])
                if results["bootstrap"]:
                    high = _bounded(length[f"{prefix}high"], length[f"{prefix}high_at_least"])
                    cell += f" [{length[f'{prefix}low']}, {high}]"
                row.append(cell)
        rows.append(row)
    groups = "; ".join(", ".join(group["models"]) for group in results["groups"])
    title = f"How far does it look? Tokens of context; RECL in the group of {groups}"
    return {"title": title, "header": header, "rows": rows}


def _bounded(value: int, at_least: bool) -> str:
    return f"≥ {value}" if at_least else str(value)


def _losses(results: Entries) -> Entries:
    """Return losses at both ends of the grid."""
    unit = results["unit"]
    contexts = results["contexts"]
    header = ["model", "kind", "sees at most"]
    header += [f"{unit} at {context} tokens" for context in (contexts[0], contexts[-1])]
    rows = []
    for model in results["models"]:
        row = [model["name"], model["kind"], str(model["limit"] or "no limit")]
        for c in (0, -1):
            row.append(f"{model[unit][c]:.3f} ± {model[f'{unit}_standard_error'][c]:.3f}")
        rows.append(row)
    return {"title": "Loss by context", "header": header, "rows": rows}


def _differences(results: Entries) -> Entries:
    header = [
        "difference, paired by position",
        f"nats at {results['contexts'][-1]} tokens, 95 % interval",
    ]
    rows = []
    for difference in results["differences"]:
        nll, low, high = (difference[name][-1] for name in ("nll", "low", "high"))
        pair = f"{difference['model']} − {difference['minus']}"
        rows.append([pair, f"{nll:+.4f} [{low:+.4f}, {high:+.4f}]"])
    return {"title": "Differences", "header": header, "rows": rows}


def notes(results: Entries) -> list[str]:
    """Describe the measurement, its precision, and how each model was read."""
    positions = results["positions"]
    longest = results["contexts"][-1]
    n_positions = positions["number"]
    corpus = results["corpus"]["name"]
    text = f"{n_positions:,} positions of {corpus} ({results['split']})"
    lines = [
        f"{text} in {positions['blocks']} blocks spread evenly over the text; ± over blocks. "
        "A step from a context of the grid to the next counts if its relative gain is at least "
        f"{results['threshold']:.3g}.",
        *DEFINITIONS,
    ]
    if results["bootstrap"]:
        lines.append(
            f"In brackets: 95 % interval over {results['bootstrap']:,} resamples of the blocks. "
            f"≥: steps still counted at {longest}, where the grid ends (max_context)."
        )
    if positions["cut"]:
        lines.append(
            f"{positions['cut']:,} positions have fewer than {longest} tokens of context, because "
            "their document is shorter (documents=respect)."
        )
    for model in results["models"]:
        for note in _notes_of_model(model):
            lines.append(f"{model['name']}: {note}.")
    return lines


def _notes_of_model(model: Entries) -> list[str]:
    """Describe how a model was read, and where its lengths need care."""
    lines = [words.format(model[name]) for name, words in NOTES.items() if model[name]]
    if model["scoring"] == "direct" and model["one_pass_difference"]:
        difference = f"one pass differs by up to {model['one_pass_difference']:.3g} nats"
        lines.append(f"read in windows of exactly c tokens: {difference}")
    steps = []
    for r, length in model["recl"].items():
        if length["gains_again"]:
            steps.append(f"r = {r} from {length['value']} to {length['gains_again']}")
    if steps:
        lines.append(f"RECL ends at a plateau, but later steps gain again: {', '.join(steps)}")
    return lines
