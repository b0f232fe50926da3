"""Text as GitHub Markdown: nothing that comes from results can become markup."""

from __future__ import annotations

import re
from collections.abc import Sequence

from markupsafe import Markup

from experiments.report.view import TableView
from txl_lightning.reporting.tables import markdown_table

# Brackets are markup only before these, underscores only at the end of a word; left alone elsewhere, so that intervals
# and names can be read in the source.
MARKUP = re.compile(r"[\\`*|~$]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])|\](?=[(\[:])|\[(?=[\^!])")
LINE_STARTS = re.compile(r"^([-+#=]+|\d+(?=[.)]))(?=[.)]?(\s|$))")  # of lists, headings and rules
ENTITIES = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}


def escape(value: object) -> str:
    """One line of text that Markdown shows as it is; what is `Markup` already stays."""
    if isinstance(value, Markup):
        return str(value)
    text = "".join(ENTITIES.get(sign, sign) for sign in str(value))
    line = " ".join(MARKUP.sub(r"\\\g<0>", text).split())
    return LINE_STARTS.sub(lambda found: f"{found[0]}\\" if found[0].isdigit() else f"\\{found[0]}", line)


def linked(value: object) -> Markup:
    """Text between the brackets of a link or an image."""
    return Markup(re.sub(r"(?<!\\)[\[\]]", r"\\\g<0>", escape(value)))


def code(value: object) -> Markup:
    """Text in code letters, in a sentence or a cell; backticks would not let pipes be escaped."""
    return Markup(f"<code>{escape(value)}</code>") if str(value).strip() else Markup("")


def fence(text: str) -> Markup:
    """A block of text as it is, between more backticks than it has in a row."""
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    ticks = "`" * max(3, longest + 1)
    return Markup(f"{ticks}text\n{text}\n{ticks}")


def pipe_table(header: Sequence[str], rows: Sequence[Sequence[object]], right: Sequence[bool] | None = None) -> Markup:
    """A table of any text; columns named by `right` (none otherwise) are aligned to the right."""
    cells = [[escape(cell) for cell in row] for row in rows]
    text = markdown_table([escape(title) for title in header], cells, right or [False] * len(header))
    return Markup(text.rstrip("\n"))


def results_table(table: TableView) -> Markup:
    """A table of the report; `here`, `paper` and the unit stand in each column's heading."""
    return pipe_table(
        [column.heading for column in table.columns],
        [[cell.text for cell in row] for row in table.rows],
        [column.of != "label" for column in table.columns],
    )
