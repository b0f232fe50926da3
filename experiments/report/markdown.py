"""GitHub Markdown of the report; text of the results is escaped and cannot become markup."""

from __future__ import annotations

import re
from collections.abc import Sequence

from markupsafe import Markup

from experiments.report.view import TableView
from txl_lightning.reporting.tables import markdown_table

# Brackets are markup only before these characters, underscores only at the ends of a word. Elsewhere they are not
# escaped, to keep intervals and names readable in the source.
MARKUP = re.compile(r"[\\`*|~$]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])|\](?=[(\[:])|\[(?=[\^!])")
LINE_STARTS = re.compile(r"^([-+#=]+|\d+(?=[.)]))(?=[.)]?(\s|$))")  # marks of lists, headings and rules
ENTITIES = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}


def escape(value: object) -> str:
    """Return text as one escaped line; a `Markup` is returned unchanged."""
    if isinstance(value, Markup):
        return str(value)
    text = "".join(ENTITIES.get(sign, sign) for sign in str(value))
    line = " ".join(MARKUP.sub(r"\\\g<0>", text).split())
    return LINE_STARTS.sub(lambda found: f"{found[0]}\\" if found[0].isdigit() else f"\\{found[0]}", line)


def linked(value: object) -> Markup:
    """Escape text for the brackets of a link or an image."""
    return Markup(re.sub(r"(?<!\\)[\[\]]", r"\\\g<0>", escape(value)))


def code(value: object) -> Markup:
    """Return text as inline code; between backticks, pipes could not be escaped."""
    return Markup(f"<code>{escape(value)}</code>") if str(value).strip() else Markup("")


def fence(text: str) -> Markup:
    """Return text as a code block, fenced by more backticks than it has in a row."""
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    ticks = "`" * max(3, longest + 1)
    return Markup(f"{ticks}text\n{text}\n{ticks}")


def pipe_table(header: Sequence[str], rows: Sequence[Sequence[object]], right: Sequence[bool] | None = None) -> Markup:
    """Return a pipe table of any text; columns for which `right` is true are aligned to the right."""
    cells = [[escape(cell) for cell in row] for row in rows]
    text = markdown_table([escape(title) for title in header], cells, right or [False] * len(header))
    return Markup(text.rstrip("\n"))


def results_table(table: TableView) -> Markup:
    """Return a table of the report; each heading has its group (`here` or `paper`), title and unit."""
    return pipe_table(
        [column.heading for column in table.columns],
        [[cell.text for cell in row] for row in table.rows],
        [column.of != "label" for column in table.columns],
    )
