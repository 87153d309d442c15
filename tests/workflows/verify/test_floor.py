"""Test which floors `serve-eval verify` measures, uses and refuses, through real sockets."""

from __future__ import annotations

import json
import re
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.cli.command import serve_eval
from tests.workflows.verify.model_server import ModelServer

NUMERICS = 0.02
LARGEST = 0.2
"""Nats that no floor of servers with these numerics reaches."""


def _run(servers: dict[str, ModelServer], *words: object) -> Any:
    """Run verify on servers: "a" and "b" by position, others as options of their names."""
    with ExitStack() as stack:
        named = list[object]()
        for name, one in servers.items():
            url = stack.enter_context(one.server.serve_in_thread())
            named += [url] if name in "abc" else [f"--{name}", url]
        return serve_eval("verify", *named, "--model", "m", *words)


def _ending(name: str = "s", **options: Any) -> ModelServer:
    return ModelServer(name=name, numerics=NUMERICS, ends=0.1, **options)


def _register(tmp_path: Path, sibling: ModelServer, *words: object) -> tuple[Path, str]:
    file = tmp_path / "floor.json"
    servers = {"a": ModelServer(name="a"), "sibling": sibling}
    ran = _run(servers, "--register", file, "--probes", 100, *words)
    assert ran.returncode == 0, ran.stderr
    return file, ran.stdout


def test_an_answer_without_tokens_sets_no_floor_of_a_file(tmp_path: Path) -> None:
    file, told = _register(tmp_path, _ending())
    assert any(not one["sibling"]["text"] for one in json.loads(file.read_text())["probes"]), (
        "no answer of the sibling ended at once"
    )
    assert 0 < json.loads(file.read_text())["floor"] < LARGEST
    assert "of the sibling's 100 answers are left out of the floor" in " ".join(told.split())
    bad = _run({"b": ModelServer(name="b", numerics=0.5)}, "--reference", file, "-o", tmp_path)
    assert bad.returncode == 1, bad.stdout
    alike = _run({"b": _ending("b")}, "--reference", file, "-o", tmp_path / "2")
    assert alike.returncode == 1, alike.stdout  # Such answers count against a candidate.


def test_an_answer_without_tokens_sets_no_floor_of_two_servers(tmp_path: Path) -> None:
    servers = {
        "a": ModelServer(name="a"),
        "b": ModelServer(name="b", numerics=0.5),
        "sibling": _ending(),
    }
    ran = _run(servers, "-o", tmp_path)
    found = json.loads((tmp_path / "verification.json").read_text())
    assert (ran.returncode, 0 < found["floor"] < LARGEST) == (1, True), found["floor"]
    assert any("left out of the floor" in line for line in found["warnings"])


def test_a_reference_that_ends_at_times_has_no_noise_of_a_placeholder(tmp_path: Path) -> None:
    servers = {"a": ModelServer(name="a", stops=0.02), "b": ModelServer(name="b", numerics=0.5)}
    _run(servers, "--floor", 0.08, "-o", tmp_path)
    found = json.loads((tmp_path / "verification.json").read_text())
    assert (found["noise"], found["exit_code"]) == (0.0, 1)


def test_a_sibling_without_log_probabilities_measures_no_floor(tmp_path: Path) -> None:
    servers = {"a": ModelServer(name="a"), "b": ModelServer(name="b")}
    servers["sibling"] = ModelServer(name="s", plain=True)
    ran = _run(servers, "-o", tmp_path)
    assert (ran.returncode, "the sibling reports no log-prob" in ran.stderr) == (3, True)


def test_a_sibling_that_answers_bit_for_bit_alike_measures_no_floor(tmp_path: Path) -> None:
    _, told = _register(tmp_path, ModelServer(name="a"))
    assert "the floor is 0: the sibling answered bit for bit alike" in " ".join(told.split())


def test_a_fleet_takes_no_floor_from_answers_that_end_at_once(tmp_path: Path) -> None:
    servers = {"a": _ending("a1"), "b": ModelServer(name="b1", numerics=NUMERICS)}
    servers["c"] = ModelServer(name="c1", numerics=0.6)
    ran = _run(servers, "--fleet", "-o", tmp_path)
    found = json.loads((tmp_path / "verification.json").read_text())
    assert (ran.returncode, found["floor"] < LARGEST) == (1, True), ran.stdout


@pytest.mark.parametrize(("field", "told"), [("floor", "measure 0."), ("noise", "repeats its")])
def test_a_file_whose_limits_no_distance_exceeds_is_refused(
    field: str, told: str, tmp_path: Path
) -> None:
    file, _ = _register(tmp_path, _ending())
    file.write_text(json.dumps(json.loads(file.read_text()) | {field: 20.0}))
    b = ModelServer(name="b", numerics=0.5)
    ran = _run({"b": b}, "--reference", file, "-o", tmp_path / "1")
    said = " ".join(ran.stderr.split())
    assert (ran.returncode, f"a {field} of 20 nat" in said, told in said) == (3, True, True), said
    assert not b.server.requests
    given = _run({"b": b}, "--reference", file, "--floor", 0.1, "-o", tmp_path / "2")
    assert given.returncode == (1 if field == "floor" else 3)


def test_a_server_far_beyond_its_sibling_is_not_passed_without_a_word(tmp_path: Path) -> None:
    file, _ = _register(tmp_path, ModelServer(name="s", numerics=NUMERICS))
    b = ModelServer(name="b", numerics=0.3)
    ran = _run({"b": b}, "--reference", file, "--floor", 1.5, "-o", tmp_path / "1")
    said = " ".join(ran.stdout.split())
    assert ran.returncode == 0
    assert "times the sibling's, though the floor allows it" in said
    assert "the floor of 1.5 nat is high" in said
    assert "a fault of more than 4.5 nat in " in said
    usual = _run({"b": ModelServer(numerics=NUMERICS)}, "--reference", file, "-o", tmp_path / "2")
    assert "though the floor allows it" not in " ".join(usual.stdout.split())


def test_without_a_floor_a_clear_difference_ends_the_command(tmp_path: Path) -> None:
    b = ModelServer(name="b", numerics=0.5)
    line = tmp_path / "line.txt"
    servers = {"a": ModelServer(name="a"), "b": b}
    ran = _run(servers, "--notify-text", line, "-o", tmp_path)
    assert ran.returncode == 3
    assert "No floor is known, so no server can be called another model" in " ".join(
        ran.stderr.split()
    )
    assert len(b.server.asked) < 35
    assert "name a sibling or a floor" in line.read_text()
    assert "AS FAR APART AS FOUR-BIT WEIGHTS ARE (0." in line.read_text()
    asked = r"serve-eval verify http://\S+ --sibling HEALTHY --register floor\.json"
    assert re.search(asked, (tmp_path / "summary.md").read_text())
    same = _run({"a": ModelServer(name="a"), "b": ModelServer(name="b")}, "-o", tmp_path / "2")
    assert same.returncode == 0
    servers = {"a": ModelServer(name="a"), "b": ModelServer(name="b", numerics=NUMERICS)}
    near = _run(servers, "--notify-text", line, "-o", tmp_path / "3")
    assert near.returncode == 3
    assert "FOUR-BIT" not in line.read_text() + near.stdout
