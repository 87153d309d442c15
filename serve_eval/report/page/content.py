"""The content of a page, which every story makes and one writer turns into a file.

All texts are plain: the writer escapes them and makes control characters visible.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, field
from typing import Literal

from serve_eval.frozen import freeze, freeze_places
from serve_eval.report.pictures.picture import Picture, Ruler

State = Literal["pass", "fail", "warn", "none"]
"""The colour of a verdict or a cell. It is never the only sign: a word stands next to it."""


@freeze_places
class Fact:
    """A label with its text. `href` makes the text a link, to a place or file next to the page."""

    label: str
    text: str
    _: KW_ONLY
    state: State = "none"
    href: str = ""


@freeze_places
class Facts:
    """A list of labels with texts. `closed`: it is folded until the reader opens it."""

    title: str
    _: KW_ONLY
    rows: Sequence[Fact]
    closed: bool = False


@freeze_places
class DataColumn:
    """A column of a table. Numbers are right-aligned; `note` explains its name.

    A terminal that is too narrow for all columns leaves out the `spare` ones, the lowest first;
    0: it never does.
    """

    name: str
    _: KW_ONLY
    number: bool = False
    note: str = ""
    spare: int = 0


@freeze_places
class DataCell:
    """A cell of a table.

    `order` is its value for sorting (None: its text). `href` makes it a link, such as "#task=x",
    which filters the samples; `note` says more than its mark. `place` draws a ruler with a dot
    there, from 0 to 1; `interval` and `mark` are the places of an interval and of the reference.
    """

    text: str
    _: KW_ONLY
    order: float | None = None
    href: str = ""
    note: str = ""
    state: State = "none"
    place: float | None = None
    interval: tuple[float, float] | None = None
    mark: float | None = None


@freeze_places
class DataTable:
    """A table that a click on a heading sorts. Rows have a cell per column.

    The first cell of a row is its heading. `marks`: the others have one mark each.
    """

    title: str
    _: KW_ONLY
    columns: Sequence[DataColumn]
    rows: Sequence[Sequence[DataCell]]
    caption: str = ""
    closed: bool = False
    marks: bool = False


@freeze_places
class PictureSection:
    """Pictures side by side below one title, and a `note` under them.

    `closed`: they are folded until the reader opens them.
    """

    title: str
    pictures: Sequence[Picture]
    _: KW_ONLY
    note: str = ""
    closed: bool = False


@freeze_places
class TextLines:
    """Lines of text, as a list, or as they stand with `preformatted`."""

    title: str
    lines: Sequence[str]
    _: KW_ONLY
    preformatted: bool = False
    closed: bool = False


@freeze
class ScriptData:
    """Data that a script of the page shows, in an element of the id `name`.

    `value` becomes JSON, unless it was packed already. `scripts` are the files in scripts/ that
    show it, in their order; `note` stands there for readers and as long as the script has not run.
    `caption` stands below the title.
    """

    title: str
    name: str
    value: Mapping[str, object] | str
    scripts: Sequence[str]
    note: str = ""
    caption: str = ""


Section = Facts | DataTable | PictureSection | TextLines | ScriptData


@freeze
class PageContent:
    """Everything that a page shows.

    `kind` names the story: run, compare, suite. `title` is that of the browser's tab, and `heading`
    says what was measured. `badge` is the verdict, coloured by `state`, and `headline` the rest of
    the first line; `ruler` is the line that the terminal draws below it. `rows` are those of the
    terminal's summary below that, and `foot` says what made the page. `notice` comes before all of
    it, with a badge of its own.
    """

    kind: str
    title: str
    heading: str
    state: State
    badge: str
    headline: str
    ruler: Ruler | None = None
    rows: Sequence[Fact] = ()
    sections: Sequence[Section] = field(default=())
    foot: str = ""
    notice: str = ""
