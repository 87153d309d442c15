"""A list of names, which is no verdict: print it in a few lines, whole with -v, or as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import KW_ONLY

import msgspec
from rich.console import Console
from rich.text import Text

from serve_eval.frozen import freeze, freeze_places
from serve_eval.json_schema import Schema, describe_type, name_schema
from serve_eval.report.text import clean, wrap

LINES = 22
"""Lines of a list at most, unless all of it was asked for."""
WIDEST, MARGIN = 28, 2
"""Columns of the names at most, and columns before each line."""
LISTING_SCHEMA = 1
"""Version of the JSON of a listing."""


@freeze_places
class ListEntry:
    """A name with its meaning in one sentence. `more` are lines that only -v shows.

    `wrong`: it cannot be used, and `text` says why. It stands whole before the others, and so does
    one to `keep`.
    """

    name: str
    text: str = ""
    _: KW_ONLY
    more: Sequence[str] = ()
    wrong: bool = False
    keep: bool = False


@freeze_places
class Listing:
    """The names of one kind. `title` says how many of what there are.

    `notes` are lines after the names that -v shows. `next` is the line about what comes next.
    `result` is JSON with all that is known, if the entries do not hold it.
    """

    title: str
    entries: Sequence[ListEntry]
    _: KW_ONLY
    notes: Sequence[str] = ()
    next: str = ""
    result: bytes = b""


@freeze
class JsonListing:
    """The names of one kind, as `--json` prints them.

    `result` holds all that is known, if the entries do not.
    """

    schema_version: int
    title: str
    entries: Sequence[ListEntry]
    notes: Sequence[str]
    result: object


def print_listing(listing: Listing, console: Console, *, verbose: bool, brief: bool) -> None:
    """Print a list: an entry a line if they fit, else their names; with `verbose` all of it.

    With `brief`, print one name a line and nothing else.
    """
    if brief:
        lines = [Text(clean(one.name)) for one in listing.entries]
    else:
        lines = list(_lay_out(listing, console, verbose=verbose))
    for line in lines:
        console.print(line, soft_wrap=True)


def write_listing(listing: Listing) -> str:
    """Return the JSON of a list: its entries, and under `result` all that is known."""
    form = JsonListing(
        schema_version=LISTING_SCHEMA,
        title=listing.title,
        entries=listing.entries,
        notes=listing.notes,
        result=msgspec.Raw(listing.result) if listing.result else None,
    )
    return msgspec.json.encode(form).decode() + "\n"


def describe_listing_form() -> Schema:
    """Return the schema of `--json` of a list. Readers must accept keys that it does not list."""
    return name_schema(
        describe_type(JsonListing), "listing", LISTING_SCHEMA, "What --json prints of any list"
    )


def _lay_out(listing: Listing, console: Console, *, verbose: bool) -> Iterator[Text]:
    """Yield the lines of a list below its title: the whole list if it is short or asked for."""
    yield Text(clean(listing.title), style="bold")
    whole = [part for one in listing.entries for part in _write_whole(one, console)]
    whole += [part for note in listing.notes for part in _indent(note, console)]
    room = LINES - 3
    short = verbose or len(whole) <= room
    lines = whole if short else list(_write_briefly(listing.entries, console, room))
    hidden = 0 if short else len(lines) - room
    yield from lines[: room - 1] if hidden > 0 else lines
    if hidden > 0:
        yield Text(f"{'':{MARGIN}}and {hidden + 1} more lines with -v", style="dim")
    if listing.next:
        yield Text(f"{'':{MARGIN}}{clean(listing.next)}", style="dim")
    if not short:
        yield Text(f"{'':{MARGIN}}all of it: -v; names alone: -q; as JSON: --json", style="dim")


def _write_briefly(entries: Sequence[ListEntry], console: Console, room: int) -> Iterator[Text]:
    """Yield the entries that stand whole, then a line for each, or the names if they are many."""
    kept = [one for one in entries if one.wrong or one.keep]
    others = [one for one in entries if one not in kept]
    yield from (line for one in kept for line in _write_whole(one, console))
    if len(entries) <= room:
        width = min(WIDEST, max((len(one.name) for one in others), default=0))
        yield from (_write_line(one, width, console) for one in others)
    else:
        yield from _indent(",  ".join(clean(one.name) for one in others), console)


def _write_line(one: ListEntry, width: int, console: Console) -> Text:
    """Return an entry in one line, which a terminal shows whole or with a mark at its end."""
    line = Text(f"{'':{MARGIN}}").append(f"{clean(one.name):<{width}}", style="bold")
    line.append(f"  {clean(one.text)}" if one.text else "")
    if console.is_terminal:
        line.truncate(max(20, console.width), overflow="ellipsis")
    line.rstrip()
    return line


def _write_whole(one: ListEntry, console: Console) -> Iterator[Text]:
    """Yield an entry with everything about it. Off a terminal an error stays one line."""
    said = Text(clean(one.name), style="red" if one.wrong else "bold")
    if one.text:
        said.append(f": {clean(one.text)}", style="red" if one.wrong else "not bold")
    lines = wrap(said, max(20, console.width - 3 * MARGIN))
    first, *others = [said] if one.wrong and not console.is_terminal else lines
    yield Text(f"{'':{MARGIN}}").append_text(first)
    yield from (Text(f"{'':{3 * MARGIN}}").append_text(part) for part in others)
    for line in one.more:
        yield Text(f"{'':{3 * MARGIN}}{clean(line)}")


def _indent(text: str, console: Console) -> list[Text]:
    parts = wrap(Text(clean(text)), max(20, console.width - MARGIN))
    return [Text(f"{'':{MARGIN}}").append_text(part) for part in parts]
