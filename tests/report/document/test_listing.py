"""Print lists that are no verdict."""

from __future__ import annotations

import io
import json

from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from rich.console import Console

from serve_eval.report.document.listing import (
    LINES,
    ListEntry,
    Listing,
    describe_listing_form,
    print_listing,
    write_listing,
)

WORDS = st.lists(st.text("abc \x1b[1m", max_size=30), max_size=8).map(" ".join)
ENTRIES = st.lists(
    st.builds(
        ListEntry,
        name=st.text("abcde", min_size=1, max_size=40),
        text=WORDS,
        more=st.lists(st.just("more of it"), max_size=3),
        wrong=st.booleans(),
    ),
    max_size=60,
)


def _print(listing: Listing, *, verbose: bool = False, brief: bool = False) -> list[str]:
    out = io.StringIO()
    console = Console(file=out, width=80, force_terminal=True, color_system=None)
    print_listing(listing, console, verbose=verbose, brief=brief)
    assert "\x1b" not in out.getvalue()
    return out.getvalue().splitlines()


@settings(max_examples=60)
@given(ENTRIES)
def test_few_lines_are_printed_and_nothing_is_lost_with_v(entries: list[ListEntry]) -> None:
    listing = Listing(title="all", entries=entries, notes=["a note"], next="serve-eval data list")
    shown, whole = _print(listing), _print(listing, verbose=True)
    assert len(shown) <= LINES
    assert (shown[0], whole[0], whole[-1]) == ("all", "all", "  serve-eval data list")
    assert whole.count("      more of it") == sum(len(one.more) for one in entries)
    assert "  a note" in whole
    assert _print(listing, brief=True) == [one.name for one in entries]


def test_names_that_cannot_be_used_come_before_a_row_of_names() -> None:
    many = [ListEntry(name=f"name{i}", text="works") for i in range(40)]
    shown = _print(
        Listing(title="41", entries=[*many, ListEntry(name="x", text="bad", wrong=True)])
    )
    assert shown[1] == "  x: bad"
    assert "name39" in shown[-2]
    assert shown[-1] == "  all of it: -v; names alone: -q; as JSON: --json"


def test_the_json_of_a_list_fits_its_schema() -> None:
    entries = [ListEntry(name="a", text="b", more=["c"]), ListEntry(name="x", wrong=True)]
    for result in (b"", b'{"known": 1}'):
        listing = Listing(title="2", entries=entries, notes=["n"], next="go", result=result)
        form = json.loads(write_listing(listing))
        Draft202012Validator(describe_listing_form()).validate(form)
        assert [one["name"] for one in form["entries"]] == ["a", "x"]
        assert form["result"] == (json.loads(result) if result else None)
