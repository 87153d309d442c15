"""Test how servers of a fleet are judged by their majority, and what is printed of them."""

import dataclasses
import io
from contextlib import ExitStack
from pathlib import Path

import pytest
from msgspec.structs import replace
from rich.console import Console

from serve_eval.errors import EndpointError
from serve_eval.report.document import print_document
from serve_eval.schema import (
    EngineCounts,
    Probe,
    ProbeReading,
    ServerCounts,
    TokenReading,
    Verification,
    VerifiedSide,
)
from serve_eval.schema import VerificationOutcome as Outcome
from serve_eval.workflows.verify.document import make_document
from serve_eval.workflows.verify.fleet import CANDIDATES, FIRST, MAJORITY, find_middle, list_names
from serve_eval.workflows.verify.legs import describe_path, name_parts, warn_of_path
from tests.cli.command import serve_eval
from tests.json_files import read_json
from tests.workflows.verify.model_server import ModelServer

NUMERICS = 0.02


@pytest.mark.parametrize("place", [0, 2])
def test_the_server_that_differs_from_the_majority_is_named(place, tmp_path):
    servers = [ModelServer(name=f"s{i}", numerics=NUMERICS) for i in range(4)]
    servers[place] = ModelServer(name="bad", numerics=0.6)
    with ExitStack() as stack:
        urls = [stack.enter_context(one.server.serve_in_thread()) for one in servers]
        serve_eval(f"verify --model m -o {tmp_path} --fleet", *urls, exits=1)
    found = read_json(tmp_path / "verification.json")
    assert found["reference"].startswith("the majority, as http")
    assert len(found["sides"]) == 3
    bad = [one["name"] for one in found["sides"] if one["outcome"].startswith("ANOTHER")]
    assert bad == [urls[place]]
    assert all(one["asked"] >= 20 for one in found["sides"])


def test_a_sound_fleet_is_sound(tmp_path):
    with ExitStack() as stack:
        servers = [ModelServer(name=f"s{i}", numerics=NUMERICS) for i in range(3)]
        urls = [stack.enter_context(one.server.serve_in_thread()) for one in servers]
        serve_eval(f"verify --model m -o {tmp_path} --fleet", *urls, exits=0)


@pytest.mark.parametrize("place", [0, 2])
def test_a_server_that_cannot_be_judged_does_not_end_the_command(place, tmp_path):
    servers = [ModelServer(name=f"s{i}", numerics=NUMERICS) for i in range(4)]
    servers[place] = ModelServer(name="broken", failing=1.0)
    with ExitStack() as stack:
        urls = [stack.enter_context(one.server.serve_in_thread()) for one in servers]
        dead = "http://127.0.0.1:9/v1"
        ran = serve_eval(f"verify --fleet {dead} --model m -o {tmp_path}", *urls, exits=4)
    found = read_json(tmp_path / "verification.json")
    assert {one["name"] for one in found["lost"]} == {dead, urls[place]}
    assert {one["name"] for one in found["sides"]} < set(urls) - {urls[place]}
    assert ran.stdout.startswith(" ERROR   4 servers: 2 ERROR, 2 ")
    assert f" why      {dead}: " in ran.stdout


def test_one_of_two_servers_may_be_lost_and_not_both(tmp_path):
    a, b = ModelServer(name="a"), ModelServer(name="b", numerics=0.6)
    dead = "http://127.0.0.1:9/v1"
    with ExitStack() as stack:
        urls = [stack.enter_context(one.server.serve_in_thread()) for one in (a, b)]
        both = ["--model", "m", "--floor", 0.08, "-o"]
        ran = serve_eval("verify", *urls, dead, *both, tmp_path / "1")
        alone = serve_eval(f"verify {urls[0]} {dead}", *both, tmp_path / "2")
    assert ran.returncode == 1, ran.stderr  # b is another model, and that is known
    [lost] = read_json(tmp_path / "1/verification.json")["lost"]
    assert lost["name"] == dead
    assert alone.returncode == 4
    assert not (tmp_path / "2/verification.json").exists()


def test_a_budget_of_tokens_ends_the_command(tmp_path):
    a, b = ModelServer(name="a"), ModelServer(name="b")
    with ExitStack() as stack:
        urls = [stack.enter_context(one.server.serve_in_thread()) for one in (a, b)]
        few = [
            "--model",
            "m",
            "--floor",
            0.08,
            "--set",
            "verify.budget_tokens=5000",
            "-o",
            tmp_path,
        ]
        serve_eval("verify", *urls, *few, exits=3)
    [side] = read_json(tmp_path / "verification.json")["sides"]
    assert (side["outcome"], side["asked"]) == ("UNDECIDED", 20)


def test_servers_that_are_not_clear_are_asked_round_after_round(tmp_path):
    servers = [ModelServer(name=f"s{i}", numerics=NUMERICS) for i in range(3)]
    servers.append(ModelServer(name="rare", numerics=NUMERICS, foreign=0.06))
    with ExitStack() as stack:
        urls = [stack.enter_context(one.server.serve_in_thread()) for one in servers]
        serve_eval(f"verify --model m --probes 140 -o {tmp_path} --fleet", *urls)
    found = read_json(tmp_path / "verification.json")
    asked = {one["name"]: one["asked"] for one in found["sides"]}
    assert asked.pop(urls[3]) >= 100  # a far hit among the first is followed by 100 more
    assert set(asked.values()) == {60}
    sent = [len(one.server.requests) for one in servers]
    middle = urls.index(found["reference"].removeprefix(MAJORITY))
    assert sent[3] > 100
    assert sent[middle] > 100
    nearest = {1, 2} - {middle}
    # Siblings answer as many probes; 14 requests find what a server adds to requests.
    assert {sent[place] for place in nearest} == {2 * FIRST + 1 + 14}
    total = sum(one["requests"] for one in found["sides"]) + found["reference_requests"]
    assert total == sum(sent)


def test_a_server_with_rare_faults_does_not_stand_for_the_majority(tmp_path):
    """Its median distance is 0, as that of all: only the mean shows the faults."""
    servers = [ModelServer(name="rare", foreign=0.15)]
    servers += [ModelServer(name=f"s{i}") for i in range(3)]
    with ExitStack() as stack:
        urls = [stack.enter_context(one.server.serve_in_thread()) for one in servers]
        ran = serve_eval(f"verify --model m -o {tmp_path} --fleet", *urls, exits=1)
    assert ran.stdout.startswith(" FAULT OF SINGLE REQUESTS   3 servers: 1 FAULT OF SINGLE")
    assert f" why      {urls[0]}: " in ran.stdout
    assert read_json(tmp_path / "verification.json")["floor"] == 0.0


def _read(value):
    token = TokenReading(text="a", logprob=value, top={"a": value, "b": -3.0})
    return ProbeReading(text="a", tokens=(token,))


def test_the_middle_is_near_a_majority():
    probes = [Probe(id=str(i), prompt="p", reading=_read(-1.0)) for i in range(5)]
    readings = [[_read(value)] * 5 for value in (-1.5, -1.0, -1.02, -1.01, -0.2)]
    place, near = find_middle(probes, readings)
    assert {place, *near} == {1, 2, 3}
    with pytest.raises(EndpointError, match="only 2 servers answered"):
        find_middle(probes, [readings[0], readings[1], [None] * 5])


def test_a_middle_is_found_among_many_servers():
    probes = [Probe(id="p", prompt="p", reading=_read(-1.0))]
    values = [-1.0 - 0.0001 * i for i in range(CANDIDATES + 24)] + [-1.8] * 20
    for seed in range(3):
        place, near = find_middle(probes, [[_read(value)] for value in values], seed)
        assert max(place, *near) < CANDIDATES + 24


@pytest.mark.parametrize(
    ("words", "told"),
    [("h:1 h:2", "a majority takes 3"), ("h:1 h:2 h:3 --sibling h:4", "--fleet uses no reference")],
)
def test_options_that_do_not_fit_a_fleet_are_refused(words, told):
    serve_eval(f"verify --model m --fleet {words}", exits=2, tells=told)


def _side(name, outcome):
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


def _found(outcomes):
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


def _print(found, *, verbose=False):
    out = io.StringIO()
    addresses = {one.name: one.url for one in found.sides} | {"pod-99": "http://pod-99:8000/v1"}
    document = make_document(found, Path("out"), addresses)
    console = Console(file=out, width=80, force_terminal=True, color_system=None)
    print_document(document, console, verbose=verbose)
    return out.getvalue().splitlines()


def test_the_servers_of_a_large_fleet_that_differ_come_first():
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
def test_the_way_out_of_an_undecided_verification_is_named(floor, advice):
    found = dataclasses.replace(_found([Outcome.UNDECIDED]), floor=floor)
    [note] = [line for line in _print(found) if line.startswith(" note")]
    assert note.startswith(f" note     {advice}")


@pytest.mark.parametrize("count", [2, 20])
def test_every_server_that_is_another_one_or_undecided_has_a_row(count):
    found = _found([Outcome.ANOTHER] * count + [Outcome.UNDECIDED] * 20)
    lines = _print(found, verbose=True)
    assert sum(line.startswith(" ANOTHER  ") for line in lines) == count
    assert sum(line.startswith(" UNDECIDED  ") for line in lines) == 20


def test_of_one_server_the_p_value_stands_below_its_verdict():
    lines = _print(_found([Outcome.ANOTHER]))
    assert lines[0].startswith(" ANOTHER MODEL, PRECISION OR CACHE   pod-00 against the majority")
    assert any(" p        < 6e-06 (level 0.01)" in line for line in lines)


def test_a_command_names_only_addresses_that_last():
    found = _found([Outcome.ANOTHER])
    assert make_document(found, None, {"pod-00": "h:1"}).commands == []
    named = {"pod-99": "h:1", "pod-00": "h:2"}
    assert make_document(found, None, named, "m").commands == [
        "serve-eval compare h:1 h:2 --model m --tasks word_problems"
    ]


def test_long_lists_of_names_are_cut():
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
def test_the_part_that_differs_is_named(parts, named):
    whole = replace(_side("front", ANOTHER), beyond_floor=25)
    sides = [
        replace(_side(role, outcome), beyond_floor=beyond, part_of="front", role=role)
        for role, (outcome, beyond) in zip(("context", "generation"), parts, strict=True)
    ]
    told = list(name_parts([whole, *sides]))
    assert len(told) == (named is not None)
    assert named is None or named in told[0]


def _server(role, moved, *, faults=0):
    sources = None if moved is None else {"external_kv_transfer": moved}
    return ServerCounts(
        server=f"{role}_0",
        url="http://h:1",
        role=role,
        counts=EngineCounts(
            prompt_tokens=5000,
            prompt_tokens_by_source=sources,
            transfer_faults={"failed transfers": faults},
        ),
    )


@pytest.mark.parametrize(
    ("servers", "told", "warned"),
    [
        ([], [], []),
        ([_server("context", 0)], [], []),
        ([_server("generation", None)], [], []),
        (
            [_server("context", 0), _server("generation", 4990), _server("generation", 10)],
            ["KV transfer: 5,000 of 10,000 prompt tokens came from other servers"],
            [],
        ),
        (
            [_server("generation", 0)],
            ["KV transfer: 0 of 5,000 prompt tokens came from other servers"],
            ["d: no KV cache crossed the wire: its generation servers computed all 5,000 prompt"],
        ),
        (
            [_server("generation", 5000, faults=2)],
            ["KV transfer: 5,000 of 5,000 prompt tokens came from other servers"],
            ["d: the KV transfer of generation_0 (http://h:1) failed in part: failed transfers 2"],
        ),
    ],
)
def test_a_transfer_is_proven_or_its_absence_is_told(servers, told, warned):
    assert list(describe_path(servers)) == told
    found = list(warn_of_path("d", servers))
    assert len(found) == len(warned)
    assert all(line.startswith(start) for line, start in zip(found, warned, strict=True))
