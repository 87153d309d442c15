"""Test what is printed of fleets: a summary, the servers that differ, and all within 80 columns."""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace
from rich.console import Console

from serve_eval.report.document import print_document
from serve_eval.schema import Verification, VerifiedSide
from serve_eval.schema import VerificationOutcome as Outcome
from serve_eval.workflows.verify.document import make_document
from serve_eval.workflows.verify.fleet import MAJORITY, list_names
from serve_eval.workflows.verify.legs import name_parts


def _side(name: str, outcome: Outcome) -> VerifiedSide:
    bad = outcome is Outcome.ANOTHER
    return VerifiedSide(
        name=name,
        url=f"http://{name}:8000/v1",
        outcome=outcome,
        why="",
        asked=60,
        unanswered=0,
        beyond_noise=0,
        beyond_floor=50 if bad else 0,
        far=0,
        median=0.2 if bad else 0.01,
        effect=None,
        evidence=1e7,
        p_holm=6.3e-6 if bad else 1.0,
        excluded_share=None if bad else 0.079,
        tokens=20_000,
        requests=61,
        cached_tokens=None,
        salted=True,
        fingerprint=None,
        distances=(),
    )


def _found(outcomes: Sequence[Outcome]) -> Verification:
    sides = tuple(_side(f"pod-{i:02}", one) for i, one in enumerate(outcomes))
    return Verification(
        started_at="",
        wall_s=5.04,
        reference=f"{MAJORITY}pod-99",
        noise=0.0,
        step=0.0,
        floor=0.08,
        sibling_median=None,
        reference_requests=189,
        reference_tokens=1,
        prompt_lengths=(100, 450),
        salted=True,
        warnings=(),
        sides=sides,
        exit_code=1,
    )


def _print(found: Verification, *, verbose: bool = False) -> list[str]:
    out = io.StringIO()
    addresses = {one.name: one.url for one in found.sides} | {"pod-99": "http://pod-99:8000/v1"}
    document = make_document(found, Path("out"), addresses)
    console = Console(file=out, width=80, force_terminal=True, color_system=None)
    print_document(document, console, verbose=verbose)
    return out.getvalue().splitlines()


def test_the_servers_of_a_large_fleet_that_differ_come_first() -> None:
    outcomes = [Outcome.IDENTICAL] * 63
    outcomes[17], outcomes[40] = Outcome.ANOTHER, Outcome.OTHER_NUMERICS
    lines = _print(_found(outcomes))
    assert (
        lines[0] == " ANOTHER MODEL, PRECISION OR CACHE   63 servers: 1 ANOTHER MODEL, PRECISION OR"
    )
    assert lines[1].split() == ["CACHE,", "1", "OTHER", "NUMERICS,", "61", "IDENTICAL"]
    assert [line.split() for line in lines[2:5]] == [
        ["outcome", "server", "probes", "beyond", "median", "p"],
        ["ANOTHER", "pod-17", "60", "50", "0.2", "<", "6e-06"],
        ["OTHER", "NUMERICS", "pod-40", "60", "0", "0.01", "-"],
    ]
    assert (
        " sure     on a server that passed, a fault in 7.9% of the requests or more would" in lines
    )
    assert lines[-2] == (
        " next     serve-eval compare http://pod-99:8000/v1 http://pod-17:8000/v1 --tasks"
        " word_problems"
    )
    whole = _print(_found(outcomes), verbose=True)
    assert " run      4,032 requests, 1,260,001 tokens, in 5.0 s" in whole
    assert sum(line.startswith(" IDENTICAL") for line in whole) == 61


@pytest.mark.parametrize(
    ("floor", "advice"),
    [
        (0.08, "undecided: more probes may decide: raise --probes"),
        (None, "a healthy sibling of another setting measures the floor"),
    ],
)
def test_the_way_out_of_an_undecided_verification_is_named(
    floor: float | None, advice: str
) -> None:
    found = dataclasses.replace(_found([Outcome.UNDECIDED]), floor=floor)
    [note] = [line for line in _print(found) if line.startswith(" note")]
    assert note.startswith(f" note     {advice}")


@pytest.mark.parametrize("count", [2, 20])
def test_every_server_that_is_another_one_or_undecided_has_a_row(count: int) -> None:
    found = _found([Outcome.ANOTHER] * count + [Outcome.UNDECIDED] * 20)
    lines = _print(found, verbose=True)
    assert sum(line.startswith(" ANOTHER  ") for line in lines) == count
    assert sum(line.startswith(" UNDECIDED  ") for line in lines) == 20


def test_of_one_server_the_p_value_stands_below_its_verdict() -> None:
    lines = _print(_found([Outcome.ANOTHER]))
    assert lines[0].startswith(" ANOTHER MODEL, PRECISION OR CACHE   pod-00 against the majority")
    assert any(" p        < 6e-06 (level 0.01)" in line for line in lines)


def test_a_command_names_only_addresses_that_last() -> None:
    found = _found([Outcome.ANOTHER])
    assert make_document(found, None, {"pod-00": "h:1"}).commands == []
    named = {"pod-99": "h:1", "pod-00": "h:2"}
    assert make_document(found, None, named, "m").commands == [
        "serve-eval compare h:1 h:2 --model m --tasks word_problems"
    ]


def test_long_lists_of_names_are_cut() -> None:
    assert list_names(["a", "b"]) == "a, b"
    assert list_names([str(i) for i in range(10)]) == "0, 1, 2, 3, 4, 5, 6, 7 and 2 others"


UNDECIDED, IDENTICAL, ANOTHER = Outcome.UNDECIDED, Outcome.IDENTICAL, Outcome.ANOTHER


@pytest.mark.parametrize(
    ("parts", "named"),
    [
        ([(UNDECIDED, 13), (UNDECIDED, 25)], "what they share"),
        ([(UNDECIDED, 12), (UNDECIDED, 25)], None),
        ([(ANOTHER, 13), (UNDECIDED, 25)], "found in context"),
        ([(IDENTICAL, 0), (UNDECIDED, 25)], None),
        ([(IDENTICAL, 0), (IDENTICAL, 0)], "the transfer of the KV cache between them"),
    ],
)
def test_the_part_that_differs_is_named(
    parts: Sequence[tuple[Outcome, int]], named: str | None
) -> None:
    whole = replace(_side("front", ANOTHER), beyond_floor=25)
    sides = [
        replace(_side(role, outcome), beyond_floor=beyond, part_of="front", role=role)
        for role, (outcome, beyond) in zip(("context", "generation"), parts, strict=True)
    ]
    told = list(name_parts([whole, *sides]))
    assert len(told) == (named is not None)
    assert named is None or named in told[0]
