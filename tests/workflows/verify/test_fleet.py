"""Test that servers of a fleet are judged by their majority."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path

import pytest

from serve_eval.errors import EndpointError
from serve_eval.schema import Probe, ProbeReading, TokenReading
from serve_eval.workflows.verify.fleet import CANDIDATES, FIRST, MAJORITY, find_middle
from tests.cli.command import serve_eval
from tests.workflows.verify.model_server import ModelServer

NUMERICS = 0.02


@pytest.mark.parametrize("place", [0, 2])
def test_the_server_that_differs_from_the_majority_is_named(place: int, tmp_path: Path) -> None:
    servers = [ModelServer(name=f"s{i}", numerics=NUMERICS) for i in range(4)]
    servers[place] = ModelServer(name="bad", numerics=0.6)
    with ExitStack() as stack:
        urls = [stack.enter_context(one.server.serve_in_thread()) for one in servers]
        ran = serve_eval("verify", "--fleet", *urls, "--model", "m", "-o", tmp_path)
    assert ran.returncode == 1, ran.stderr
    found = json.loads((tmp_path / "verification.json").read_text())
    assert found["reference"].startswith("the majority, as http")
    assert len(found["sides"]) == 3
    bad = [one["name"] for one in found["sides"] if one["outcome"].startswith("ANOTHER")]
    assert bad == [urls[place]]
    assert all(one["asked"] >= 20 for one in found["sides"])


def test_a_sound_fleet_is_sound(tmp_path: Path) -> None:
    with ExitStack() as stack:
        servers = [ModelServer(name=f"s{i}", numerics=NUMERICS) for i in range(3)]
        urls = [stack.enter_context(one.server.serve_in_thread()) for one in servers]
        ran = serve_eval("verify", "--fleet", *urls, "--model", "m", "-o", tmp_path)
    assert ran.returncode == 0, ran.stdout


@pytest.mark.parametrize("place", [0, 2])
def test_a_server_that_cannot_be_judged_does_not_end_the_command(
    place: int, tmp_path: Path
) -> None:
    servers = [ModelServer(name=f"s{i}", numerics=NUMERICS) for i in range(4)]
    servers[place] = ModelServer(name="broken", failing=1.0)
    with ExitStack() as stack:
        urls = [stack.enter_context(one.server.serve_in_thread()) for one in servers]
        dead = "http://127.0.0.1:9/v1"
        ran = serve_eval("verify", "--fleet", dead, *urls, "--model", "m", "-o", tmp_path)
    assert ran.returncode == 4, ran.stderr
    found = json.loads((tmp_path / "verification.json").read_text())
    assert {one["name"] for one in found["lost"]} == {dead, urls[place]}
    assert {one["name"] for one in found["sides"]} < set(urls) - {urls[place]}
    assert ran.stdout.startswith(" ERROR   4 servers: 2 ERROR, 2 ")
    assert f" why      {dead}: " in ran.stdout


def test_one_of_two_servers_may_be_lost_and_not_both(tmp_path: Path) -> None:
    a, b = ModelServer(name="a"), ModelServer(name="b", numerics=0.6)
    dead = "http://127.0.0.1:9/v1"
    with ExitStack() as stack:
        urls = [stack.enter_context(one.server.serve_in_thread()) for one in (a, b)]
        both = ["--model", "m", "--floor", 0.08, "-o"]
        ran = serve_eval("verify", *urls, dead, *both, tmp_path / "1")
        alone = serve_eval("verify", urls[0], dead, *both, tmp_path / "2")
    assert ran.returncode == 1, ran.stderr  # b is another model, and that is known
    [lost] = json.loads((tmp_path / "1/verification.json").read_text())["lost"]
    assert lost["name"] == dead
    assert alone.returncode == 4
    assert not (tmp_path / "2/verification.json").exists()


def test_a_budget_of_tokens_ends_the_command(tmp_path: Path) -> None:
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
        ran = serve_eval("verify", *urls, *few)
    assert ran.returncode == 3, ran.stderr
    [side] = json.loads((tmp_path / "verification.json").read_text())["sides"]
    assert (side["outcome"], side["asked"]) == ("UNDECIDED", 20)


def test_servers_that_are_not_clear_are_asked_round_after_round(tmp_path: Path) -> None:
    servers = [ModelServer(name=f"s{i}", numerics=NUMERICS) for i in range(3)]
    servers.append(ModelServer(name="rare", numerics=NUMERICS, foreign=0.06))
    with ExitStack() as stack:
        urls = [stack.enter_context(one.server.serve_in_thread()) for one in servers]
        serve_eval("verify", "--fleet", *urls, "--model", "m", "--probes", 140, "-o", tmp_path)
    found = json.loads((tmp_path / "verification.json").read_text())
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


def test_a_server_with_rare_faults_does_not_stand_for_the_majority(tmp_path: Path) -> None:
    """Its median distance is 0, as that of all: only the mean shows the faults."""
    servers = [ModelServer(name="rare", foreign=0.15)]
    servers += [ModelServer(name=f"s{i}") for i in range(3)]
    with ExitStack() as stack:
        urls = [stack.enter_context(one.server.serve_in_thread()) for one in servers]
        ran = serve_eval("verify", "--fleet", *urls, "--model", "m", "-o", tmp_path)
    assert ran.returncode == 1, ran.stdout
    assert ran.stdout.startswith(" FAULT OF SINGLE REQUESTS   3 servers: 1 FAULT OF SINGLE")
    assert f" why      {urls[0]}: " in ran.stdout
    assert json.loads((tmp_path / "verification.json").read_text())["floor"] == 0.0


def _read(value: float) -> ProbeReading:
    token = TokenReading(text="a", logprob=value, top={"a": value, "b": -3.0})
    return ProbeReading(text="a", tokens=(token,))


def test_the_middle_is_near_a_majority() -> None:
    probes = [Probe(id=str(i), prompt="p", reading=_read(-1.0)) for i in range(5)]
    readings = [[_read(value)] * 5 for value in (-1.5, -1.0, -1.02, -1.01, -0.2)]
    place, near = find_middle(probes, readings)
    assert {place, *near} == {1, 2, 3}
    with pytest.raises(EndpointError, match="only 2 servers answered"):
        find_middle(probes, [readings[0], readings[1], [None] * 5])


def test_a_middle_is_found_among_many_servers() -> None:
    probes = [Probe(id="p", prompt="p", reading=_read(-1.0))]
    values = [-1.0 - 0.0001 * i for i in range(CANDIDATES + 24)] + [-1.8] * 20
    for seed in range(3):
        place, near = find_middle(probes, [[_read(value)] for value in values], seed)
        assert max(place, *near) < CANDIDATES + 24


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["h:1", "h:2"], "a majority takes 3"),
        (["h:1", "h:2", "h:3", "--sibling", "h:4"], "--fleet uses no reference"),
    ],
)
def test_options_that_do_not_fit_a_fleet_are_refused(words: list[str], told: str) -> None:
    ran = serve_eval("verify", "--fleet", *words, "--model", "m")
    assert (ran.returncode, told in ran.stderr) == (2, True), ran.stderr
