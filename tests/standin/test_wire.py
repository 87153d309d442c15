"""Test HTTP traffic of both versions, also against the recorded serving layer."""

import asyncio
import signal
import socket
import time

import aiohttp
import httpx
import pytest

from serve_eval.client.client import Client
from serve_eval.client.preflight import discover_model
from serve_eval.errors import EndpointError
from serve_eval.launchers._standin.options import ALL
from serve_eval.schema import Endpoint, Failure, Limits, Request, SamplingParams
from tests.standin import conformance
from tests.standin.deployments import (
    HTTP,
    READY_S,
    deployed,
    environment,
    free_port,
    running,
    wait_healthy,
)

TEXT = {"model": "m", "prompt": "hi"}
CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
ASKED = Request(sample_id="1", prompt="hi", sampling=SamplingParams(max_tokens=4))


async def _post(url, body, route="completions"):
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{url}/{route}", json=body) as response,
    ):
        return response.status, await response.json()


# Starting


def _get(url):
    try:
        return HTTP.get(url)
    except httpx.ConnectError:
        return None


@pytest.mark.slow
@pytest.mark.parametrize("flavour", ALL)
def test_the_merged_versions_refuse_connections_until_they_have_loaded(flavour, tmp_path):
    port, env = free_port(), environment(flavour, load_s=300.0)
    log = tmp_path / "log"
    with running(["M", "--port", str(port)], log, env) as process:
        deadline = time.monotonic() + READY_S
        while "Loading M: " not in log.read_text() and time.monotonic() < deadline:
            time.sleep(0.05)
        assert _get(f"http://localhost:{port}/health") is None
        with pytest.raises(OSError, match="in use"), socket.socket() as other:
            other.bind(("127.0.0.1", port))
        process.send_signal(signal.SIGTERM)
        assert process.wait(READY_S) == -signal.SIGTERM


@pytest.mark.slow
def test_an_open_change_listens_while_it_loads_and_says_so_on_every_route(tmp_path):
    port, env = free_port(), environment("main", load_s=300.0, STANDIN_STARTING="1")
    url = f"http://localhost:{port}"
    with running(["M", "--port", str(port)], tmp_path / "log", env) as process:
        deadline = time.monotonic() + READY_S
        while _get(f"{url}/health") is None and time.monotonic() < deadline:
            time.sleep(0.05)
        for path in ("/health", "/v1/models", "/no/such/route", "/version"):
            answer = HTTP.get(url + path)
            assert answer.status_code == 503
            assert answer.headers["x-trtllm-server-state"] == "starting"
            assert answer.headers["retry-after"] == "1"
            assert answer.json()["error"]["code"] == "starting"
        assert HTTP.post(f"{url}/v1/completions", json=TEXT).status_code == 503
        process.send_signal(signal.SIGTERM)  # arrives while it loads
        assert process.wait(READY_S) == -signal.SIGTERM


@pytest.mark.slow
def test_main_that_has_loaded_says_so_no_more(tmp_path):
    port, env = free_port(), environment("main", load_s=0.2, STANDIN_STARTING="1")
    with running(["M", "--port", str(port)], tmp_path / "log", env) as process:
        url = wait_healthy(process, port, tmp_path / "log")
        answer = HTTP.get(f"{url}/v1/models")
        assert "x-trtllm-server-state" not in answer.headers
        assert answer.json()["data"]


@pytest.mark.slow
@pytest.mark.parametrize("listens", ["0", "1"])
def test_what_ends_the_loading_ends_main(listens, tmp_path):
    port = free_port()
    env = environment("main", load_s=0.3, faults={"crash_at_start": 7}, STANDIN_STARTING=listens)
    with running(["M", "--port", str(port)], tmp_path / "log", env) as process:
        assert process.wait(READY_S) == 7
    assert "as told" in (tmp_path / "log").read_text()


# Models


@pytest.mark.parametrize(("flavour", "status"), [("v12", 404), ("main", 200)])
def test_the_models_of_an_orchestrator(flavour, status):
    async def main():
        async with (
            deployed(1, 1, flavour=flavour, greeted=False) as found,
            Client(Endpoint(base_url=found.url), Limits()) as client,
        ):
            return await client.models(), await discover_model(client)

    if status == 200:
        assert asyncio.run(main()) == (["M"], "M")
        return
    with pytest.raises(EndpointError, match="HTTP 404") as caught:
        asyncio.run(main())
    assert "--model" in caught.value.hint


def test_an_orchestrator_of_main_without_a_context_worker_lists_nothing_yet():
    async def main():
        async with (
            deployed(
                1,
                1,
                flavour="main",
                greeted=False,
                front={"context_servers": {"urls": ["127.0.0.1:9"]}},
            ) as found,
            Client(Endpoint(base_url=found.url), Limits(outage_timeout_s=0.0)) as client,
        ):
            told = await client.models()
            assert isinstance(told, Failure)
            assert told.status == 503
            await discover_model(client)

    with pytest.raises(EndpointError, match="HTTP 503") as caught:
        asyncio.run(main())
    assert "context server" in caught.value.hint


# Refusals of workers


@pytest.mark.parametrize("role", ["context_0", "generation_0"])
@pytest.mark.parametrize(("flavour", "status"), [("v12", 500), ("main", 400)])
async def test_a_refusal_of_a_worker_is_no_attempt_to_repeat(flavour, status, role):
    faults = {role: {"error_after": 0}}
    front = {"max_retries": 0}
    async with deployed(1, 1, flavour=flavour, greeted=False, faults=faults, front=front) as found:
        code, body = await _post(found.url, TEXT)
        async with Client(Endpoint(base_url=found.url, model="m"), Limits()) as client:
            result = await client.send(ASKED)
    assert code == status
    assert list(body) == ["detail"]
    assert (body["detail"] == "Generation failed, as told") == (status == 400)
    assert ("http://" in body["detail"]) == (status == 500)
    assert isinstance(result, Failure)
    assert (result.retryable, len(result.attempts), result.status) == (False, 1, status)


async def test_a_failure_of_a_worker_stays_a_500_on_main():
    faults = {"context_0": {"error_after": 0, "error_status": 500}}
    async with deployed(
        1, 1, flavour="main", greeted=False, faults=faults, front={"max_retries": 0}
    ) as found:
        code, body = await _post(found.url, TEXT)
    assert code == 500
    assert body["detail"].startswith("Internal server error 500, message=")


async def test_main_gives_up_what_its_client_no_longer_waits_for(
    capfd,
):
    async with deployed(
        1, 1, flavour="main", greeted=False, faults={"context_0": {"hang_after": 0}}
    ) as found:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(_post(found.url, TEXT), 0.3)
        await asyncio.sleep(0.1)
    assert '"POST /v1/completions HTTP/1.1" 499' in capfd.readouterr().err


# Routers


def _router(**args):
    return {"router": {"type": "load_balancing", **args}}


@pytest.mark.parametrize(
    ("flavour", "tokens", "statuses"),
    [("v12", True, (500, 500)), ("v12", False, (200, 200)), ("main", True, (200, 200))],
)
async def test_a_load_that_is_counted_in_tokens(flavour, tokens, statuses):
    async with deployed(1, 1, flavour=flavour, greeted=False) as plain:
        sections = {
            f"{one}_servers": {**_router(use_tokens=tokens), "urls": [plain.host(f"{one}_0")]}
            for one in ROLES
        }
        async with deployed(1, 1, flavour=flavour, greeted=False, front=sections) as found:
            assert (await _post(found.url, TEXT))[0], (
                await _post(found.url, CHAT, "chat/completions")
            )[0] == statuses


ROLES = ("context", "generation")


@pytest.mark.parametrize(("flavour", "kind"), [("v12", "remote_http"), ("main", "load_balancng")])
def test_a_router_that_a_version_does_not_have_is_refused(flavour, kind):
    async def main():
        async with deployed(
            1, 1, flavour=flavour, front={"context_servers": {"router": {"type": kind}}}
        ) as found:
            return found

    with pytest.raises(ValueError, match=f"Unsupported router type: {kind}"):
        asyncio.run(main())


# Requests


@pytest.mark.parametrize("flavour", ["v12", "main"])
def test_fields_are_checked_where_the_real_one_checks_them(flavour):
    async def main():
        async with deployed(1, 1, flavour=flavour, greeted=False) as found:
            worker = found.workers["context_0"]
            bodies = (
                {**TEXT, "disaggregated_params": {"request_type": "nope"}},
                {**TEXT, "stream_options": {}},
            )
            talked = {**CHAT, "stream_options": {}}
            return [
                *[await _post(worker, body) for body in bodies],
                await _post(worker, talked, "chat/completions"),
            ]

    (nope, told), *seen = asyncio.run(main())
    assert nope == 400
    # The model of the request raises no error.
    assert told["message"].startswith("Unknown request type: nope")
    # Main takes empty options of a text completion for none.
    assert [status for status, _ in seen] == [200 if flavour == "main" else 400, 400]
    assert all("tream" in body["error"] for status, body in seen if status == 400)


@pytest.mark.skipif(
    not conformance.RECORDED.is_file(), reason="the recordings are not next to the checkout"
)
async def test_the_stand_in_answers_as_the_serving_layer_but_for_what_is_listed():
    rows = conformance.read()
    found = await conformance.compare(rows)
    unlike = {
        case.partition(" ")[2]
        for case, all_of in found.items()
        if any(not one.startswith("text ") for one in all_of)
    }
    assert len(found) > 200
    assert unlike <= set(conformance.ENGINE)


@pytest.mark.parametrize(
    ("theirs", "ours", "unlike"),
    [
        ((200, '{"a": 1}', False), (200, '{"a": 2}', False), []),
        ((200, '{"a": 1}', False), (400, '{"a": 2}', False), ["status 200, ours 400"]),
        ((200, '{"a": [{"b": 1}]}', False), (200, '{"a": []}', False), ["keys lacking: .a[].b"]),
        ((200, "{}", False), (200, '{"c": null}', False), ["keys of ours alone: .c"]),
        ((400, '{"detail": "x"}', False), (400, '{"detail": "y"}', False), ["text 'x', ours 'y'"]),
    ],
)
def test_a_difference_is_named(theirs, ours, unlike):
    shapes = [
        conformance.shape_of(status, {"Content-Type": "application/json"}, body, broken=broken)
        for status, body, broken in (theirs, ours)
    ]
    assert list(conformance.list_differences(*shapes)) == unlike


@pytest.mark.parametrize(
    "ours",
    [
        'data: {"a": 1}\n\ndata: [DONE]\n\ndata: [DONE]\n\n',
        'data: {"a": 1}\n\n',
        'data: {"a": 1} \n\ndata: [DONE]\n\n',
        'data: {"error": 1}\n\ndata: [DONE]\n\n',
        'data: {"a": 1, "b": 1}\n\ndata: [DONE]\n\n',
    ],
)
def test_streams_are_compared_by_events_and_ends(ours):
    events = {"content-type": "text/event-stream; charset=utf-8"}
    theirs = 'data: {"a": 1}\n\ndata: {"a": 2}\n\ndata: [DONE]\n\n'
    one, other, same = (
        conformance.shape_of(200, events, body, broken=False)
        for body in (theirs, ours, theirs.replace('data: {"a": 2}\n\n', ""))
    )
    assert not list(conformance.list_differences(one, same))
    assert list(conformance.list_differences(one, other))
