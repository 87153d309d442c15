"""Test what a smoke test says of SGLang's health, version and models, over real sockets."""

from __future__ import annotations

from serve_eval.checks.row import CheckOutcome
from tests.scripted_server import ScriptedServer, answer, json_reply, raw, version
from tests.sglang_server import SglangServer
from tests.workflows.smoke.trying import by_name, smoke_of

ROWS = ("health", "version", "models")


def _rows(server: SglangServer) -> dict[str, tuple[CheckOutcome, str]]:
    found = by_name(smoke_of(server.server, only=ROWS))
    return {name: (found[name].outcome, found[name].told) for name in ROWS}


def test_its_routes_are_asked() -> None:
    assert _rows(SglangServer()) == {
        "health": (CheckOutcome.PASS, "HTTP 200, also /health_generate"),
        "version": (CheckOutcome.PASS, "0.5.23"),
        "models": (CheckOutcome.PASS, "1 listed, including m"),
    }


def test_an_engine_that_makes_no_token_fails_though_its_front_is_healthy() -> None:
    outcome, told = _rows(SglangServer(healthy=False))["health"]
    assert (outcome, told) == (CheckOutcome.FAIL, "/health_generate: HTTP 503: an empty body")


def test_an_older_one_tells_its_version_too() -> None:
    assert _rows(SglangServer(older=True))["version"] == (CheckOutcome.PASS, "0.5.23")


def test_other_servers_are_not_asked_for_its_routes() -> None:
    listed = {"data": [{"id": "m", "owned_by": "vllm"}]}
    routes = {"/v1/models": json_reply(listed), "/version": version("0.32.0"), "/health": raw()}
    other = ScriptedServer([answer("Hi")], routes=routes)
    assert by_name(smoke_of(other, only=ROWS))["version"].told == "0.32.0"
    assert not {"/health_generate", "/server_info"} & {one.path for one in other.requests}
