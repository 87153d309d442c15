"""Make text from other sources safe to print, and lay out lines, rows and tables on a terminal."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

_SEQUENCES = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b[\]PX^_].*?(?:\x07|\x1b\\|$)|\x1b[@-~]?", re.DOTALL
)
_STYLES = re.compile(r"\x1b\[[0-9;]*m|\x1b\]8;[^\x00-\x1f\x7f-\x9f]*\x1b\\")
_MARKS = r"\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069"
_CONTROLS = re.compile(rf"[\x00-\x08\x0b-\x1f{_MARKS}]")
_IN_JSON = re.compile(rf"[{_MARKS}]")


def clean(text: str) -> str:
    """Return `text` without control sequences, control characters and text direction marks.

    Tabs and newlines are kept; other separators of lines are not.
    """
    return _CONTROLS.sub("", _SEQUENCES.sub("", text))


def has_controls(text: str) -> bool:
    """Return True if a text has characters that could affect a terminal, which `reveal` shows."""
    found = _CONTROLS.search(text)
    if found is not None and found[0] == "\r":
        return _CONTROLS.search(text.replace("\r\n", "\n")) is not None
    return found is not None


def keep_styles(text: str) -> str:
    """Return drawn text whose only controls are those of colours and links, which rich writes."""
    if "\x1b" not in text and not has_controls(text):
        return text
    pieces, end = [], 0
    for found in _STYLES.finditer(text):
        pieces += [clean(text[end : found.start()]), found[0]]
        end = found.end()
    return "".join([*pieces, clean(text[end:])])


def reveal(text: str) -> str:
    """Return `text` with an escape such as \\x1b for each character that `clean` removes.

    Lines end with newlines only.
    """
    return _CONTROLS.sub(_escape, text.replace("\r\n", "\n"))


def escape_json(json: str) -> str:
    """Return JSON in which characters that could affect a terminal are escaped.

    Its values stay the same.
    """
    return _IN_JSON.sub(lambda found: f"\\u{ord(found[0]):04x}", json)


def _escape(found: re.Match[str]) -> str:
    code = ord(found[0])
    return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"


FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")
"""Beginnings of a cell that a spreadsheet may run (OWASP, CSV injection)."""


def disarm(cell: str) -> str:
    """Return a text with an apostrophe in front if a spreadsheet would run it as a formula."""
    return f"'{cell}" if cell.startswith(FORMULA) else cell


LEFT = ("run", "task", "verdict")
"""Names of columns with words, which begin at the left."""
COMMAND = "serve-eval "
HANGING = 2
"""Characters by which a broken line goes on further right."""


def say(console: Console, text: str) -> None:
    """Print a line, safe for a terminal.

    On a terminal, a long one is broken between words and goes on two characters further right. One
    with a command stays whole, so that it can be copied.
    """
    line = Text(clean(text))
    if not console.is_terminal or COMMAND in text:
        console.print(line, soft_wrap=True)
        return
    margin = " " * (len(text) - len(text.lstrip()) + HANGING)
    first, *more = wrap(line, max(20, console.width - len(margin)))
    console.print(first, soft_wrap=True)
    for part in more:
        console.print(Text(margin) + part, soft_wrap=True)


def wrap(text: Text, width: int) -> list[Text]:
    """Return the lines of a text, broken between words; a word may be wider than `width`.

    rich breaks such words, and then they cannot be copied.
    """
    lines: list[Text] = []
    for line in text.split("\n", allow_blank=True):
        breaks, used = [], 0
        for word in re.finditer(r"\s*\S+", line.plain):
            cells = cell_len(word[0])
            if used and used + cells > width:
                breaks.append(word.end() - len(word[0].lstrip()))
                used, cells = 0, cell_len(word[0].lstrip())
            used += cells
        lines += line.divide(breaks)
    for line in lines:
        line.rstrip()
    return lines


def fit_tables(
    names: Sequence[str],
    cells: Sequence[Sequence[Text]],
    width: int,
    left: Collection[str] = LEFT,
) -> list[Table]:
    """Return one table with a line per row of `cells`, or several tables with a column per row.

    No figure is cut to fit `width` characters. The columns of the names `left` begin at the left.
    """
    header = [Text(name, style="bold") for name in names]
    if sum(max(map(len, column)) + 2 for column in zip(header, *cells, strict=True)) <= width:
        return [_table([header, *cells], left)]
    label = max(map(len, names)) + 2
    columns = max(
        1, (width - label) // (2 + max((len(cell) for row in cells for cell in row), default=1))
    )
    chunks = [cells[i : i + columns] for i in range(0, len(cells), columns)]
    return [
        _table([list(row) for row in zip(header, *chunk, strict=True)], left, turned=True)
        for chunk in chunks
    ]


def _table(rows: Sequence[Sequence[Text]], left: Collection[str], *, turned: bool = False) -> Table:
    table = Table(box=None, pad_edge=False, show_header=False)
    last = None if turned else len(rows[0]) - 1
    for i in range(len(rows[0])):
        table.add_column(
            justify="left" if i in (0, last) or rows[0][i].plain in left else "right",
            no_wrap=True,
        )
    for row in rows:
        table.add_row(*row)
    return table


LABEL = 9
"""Width of the column of labels."""
STYLES = {"warning": "yellow", "error": "red", "why": "bold"}


def print_rows(console: Console, rows: Iterable[tuple[str, str]]) -> None:
    """Print rows. On a terminal, long texts continue below the text, not below the label.

    Anywhere else a row is one line, which a search finds as a whole.
    """
    width = max(20, console.width - LABEL - 1)
    for label, text in rows:
        styled = Text(clean(text), style=STYLES.get(label, ""))
        parts = wrap(styled, width) if console.is_terminal and label else [styled]
        for i, part in enumerate(parts):
            name = "" if i else label
            space = " " if len(name) >= LABEL else ""
            line = Text().append(f" {name:<{LABEL}}{space}", style=STYLES.get(label, "dim"))
            line.append_text(part)
            line.rstrip()
            console.print(line, soft_wrap=True)


def join_row(row: tuple[str, str]) -> str:
    """Return a row as one line of text."""
    return ": ".join(filter(None, row))
