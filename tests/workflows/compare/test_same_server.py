"""A server is never compared with itself, however its address is written."""

from __future__ import annotations

from pathlib import Path

import pytest

from serve_eval.schema.base_url import list_servers
from tests.cli.command import serve_eval

ASKED = ("--tasks", "word_problems", "--limit", "5")
SAME = [
    ("http://127.0.0.1:1", "127.0.0.1:1/v1"),
    ("localhost:1", "127.0.0.1:1"),
    ("http://LOCALHOST:1/v1/completions", "[::1]:1"),
    ("0.0.0.0:1", "localhost:1"),
]


@pytest.mark.parametrize(("a", "b"), SAME)
def test_equal_addresses_are_refused(a: str, b: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = serve_eval("compare", a, b, "-m", "m", *ASKED, "-o", out)
    assert done.returncode == 2, done.stderr
    assert "A and B are the same server" in done.stderr
    assert not out.exists()


def test_plans_that_name_one_address_are_refused(tmp_path: Path) -> None:
    plan, other = tmp_path / "a.yaml", tmp_path / "b.yaml"
    text = "model: m\ntasks: [word_problems]\nbase_url: http://%s\n"
    plan.write_text(text % "127.0.0.1:1")
    other.write_text(text % "localhost:1/v1")
    for sides in ((plan, other), (plan, plan), (plan, "127.0.0.1:1/v1")):
        done = serve_eval("compare", *sides, "-o", tmp_path / "out")
        assert done.returncode == 2, done.stderr
        assert "A and B are the same server" in done.stderr


def test_two_models_of_one_server_are_compared(tmp_path: Path) -> None:
    asked = ("-m", "m", "--set", "compare.model_b=n", *ASKED)
    done = serve_eval("compare", "127.0.0.1:1", "127.0.0.1:1", *asked, "-o", tmp_path / "out")
    assert done.returncode == 4, done.stderr
    assert "the same server" not in done.stderr


def test_verify_knows_a_server_by_any_of_its_addresses(tmp_path: Path) -> None:
    done = serve_eval("verify", "127.0.0.1:1", "localhost:1", "-m", "m", "-o", tmp_path / "out")
    assert done.returncode == 2, done.stderr
    assert "a server is named twice" in done.stderr


@pytest.mark.parametrize(
    ("a", "b", "same"),
    [
        ("http://h", "http://H:80/v1", True),
        ("https://h", "https://h:443", True),
        ("http://h", "https://h", False),
        ("h:1/x/v1", "h:1/y/v1", False),
        ("h:1", "h:2", False),
        ("127.0.0.1:1", "[::1]:1", False),
    ],
)
def test_one_server_is_known_by_scheme_host_port_and_path(a: str, b: str, same: bool) -> None:
    assert bool(list_servers(a) & list_servers(b)) is same
