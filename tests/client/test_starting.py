"""Test that requests wait for an endpoint that reports its start, without using up attempts."""

import asyncio

import pytest
from aiohttp import web

from serve_eval.client.attempts import liveness as module
from serve_eval.client.client import Client
from serve_eval.client.preflight import check, discover_model
from serve_eval.errors import EndpointError
from serve_eval.launchers._http.server import serve_app
from serve_eval.schema import (
    Endpoint,
    Failure,
    FailureKind,
    Limits,
    Request,
    Response,
    SamplingParams,
)
from tests.clock import until

ASKED = Request(sample_id="1", prompt="question 1", sampling=SamplingParams(max_tokens=20))
LONG_S = 600.0
HEADERS = {"X-TRTLLM-Server-State": "starting", "Retry-After": "1"}
ANSWER = {
    "choices": [{"index": 0, "text": "7", "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 3, "completion_tokens": 1},
}


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setattr(module, "POLL_S", 0.02)
    monkeypatch.setattr("serve_eval.client.attempts.outcome.BASE_S", 0.001)


class _Server:
    """A server whose every route is a 503 with `headers` while `starting`.

    `asked` counts requests for answers, `looked` all others.
    """

    def __init__(self, *, headers=HEADERS, status=503):
        self.status = status
        self.starting, self.asked, self.looked, self.headers = True, 0, 0, headers

    def app(self):
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._answer)
        return app

    async def _answer(self, request):
        asks = request.method == "POST"
        self.asked, self.looked = self.asked + asks, self.looked + (not asks)
        if self.starting:
            error = {
                "message": "The model is loaded",
                "type": "ServiceUnavailableError",
                "code": "starting",
            }
            return web.json_response({"error": error}, status=self.status, headers=self.headers)
        return web.json_response(ANSWER if asks else {"data": [{"id": "m"}]})


def _with(
    server,
    body,
    *,
    watched=False,
    **limits,
):
    async def main():
        given = Limits(**{"outage_timeout_s": LONG_S, **limits})
        async with (
            serve_app(server.app()) as url,
            Client(Endpoint(base_url=url, model="m"), given) as client,
        ):
            watching = asyncio.create_task(client.liveness.watch()) if watched else None
            await asyncio.sleep(0)
            try:
                return await body(client)
            finally:
                if watching is not None:
                    watching.cancel()

    return asyncio.run(main())


@pytest.mark.parametrize("watched", [False, True])
def test_while_it_is_starting_no_attempt_no_budget_and_no_time_is_spent(watched):
    server, told = _Server(), []

    async def body(client):
        client.liveness.notify, client.retry_budget = told.append, 0
        asked = [asyncio.create_task(client.send(ASKED)) for _ in range(16)]
        await until(lambda: client.start.met == 16 and server.looked > 2)
        await asyncio.sleep(0.4)  # longer than the time limit of a sample
        server.starting = False
        results = await asyncio.gather(*asked)
        assert client.retries == 0
        assert client.liveness.spent_s == 0.0  # an answer came
        return results

    results = _with(server, body, watched=watched, max_attempts=1, sample_timeout_s=0.3)
    assert all(isinstance(result, Response) for result in results)
    assert [[a.failure for a in result.attempts] for result in results] == [[None]] * 16
    assert server.asked == 32  # one request polls for all, so none is repeated before the end
    assert (
        told[0] == "the endpoint is starting: requests wait up to 600 s (limits.outage_timeout_s)"
    )
    assert told[1].startswith("the endpoint no longer reports a start after ")
    assert told[1].endswith(" s: 16 requests go on")
    assert len(told) == 2


@pytest.mark.parametrize(
    ("status", "headers"),
    [(503, {}), (503, {"x-trtllm-server-state": "ready"}), (500, {**HEADERS, "Retry-After": "0"})],
)
def test_what_does_not_say_so_is_an_attempt(status, headers):
    server = _Server(headers=headers, status=status)
    result = _with(server, lambda client: client.send(ASKED), max_attempts=3)
    assert isinstance(result, Failure)
    assert [a.status for a in result.attempts] == [status] * 3


def test_what_does_not_start_in_time_is_a_failure_without_an_attempt():
    server = _Server()
    result = _with(server, lambda client: client.send(ASKED), outage_timeout_s=0.1)
    assert isinstance(result, Failure)
    assert (result.kind, result.status, result.attempts) == (FailureKind.HTTP_ERROR, 503, ())
    assert (
        result.message
        == "HTTP 503: the endpoint is starting (the endpoint is still starting after 0.1 s)"
    )
    assert server.asked == 1


@pytest.mark.parametrize("timeout_s", [0.0, 0.1])
def test_a_run_ends_when_it_takes_too_long(timeout_s):
    server = _Server()
    with pytest.raises(
        EndpointError, match=r"still starting after 0\.1 s" if timeout_s else "is starting"
    ) as caught:
        _with(server, lambda client: client.send(ASKED), watched=True, outage_timeout_s=timeout_s)
    assert "--set limits.outage_timeout_s=S" in caught.value.hint


def test_the_time_is_shared_until_an_answer_comes():
    server = _Server()

    async def body(client):
        client.liveness.spent_s = LONG_S
        result = await client.send(ASKED)
        assert isinstance(result, Failure)
        server.starting = False
        assert isinstance(await client.send(ASKED), Response)
        return client.liveness.spent_s

    assert _with(server, body) == 0.0


def test_one_try_is_one_try():
    """A caller that asks whether a server hangs needs the result now."""
    server = _Server()
    result = _with(server, lambda client: client.send(ASKED, once=True))
    assert isinstance(result, Failure)
    assert ([a.status for a in result.attempts], server.asked) == ([503], 1)
    assert result.message == "HTTP 503: the endpoint is starting"


def test_the_first_requests_of_a_run_wait_as_well():
    server = _Server()

    async def body(client):
        finding = asyncio.create_task(discover_model(client))
        checking = asyncio.create_task(check(client, chat=False, sampling=ASKED.sampling, extra={}))
        await until(lambda: client.start.met == 2)
        server.starting = False
        await checking
        return await finding

    assert _with(server, body) == "m"


@pytest.mark.parametrize("finds", [True, False])
def test_the_first_requests_say_what_is_the_matter(finds):
    def body(client):
        if finds:
            return discover_model(client)
        return check(client, chat=False, sampling=ASKED.sampling, extra={})

    with pytest.raises(
        EndpointError, match=r"the endpoint is still starting after 0\.1 s"
    ) as caught:
        _with(_Server(), body, outage_timeout_s=0.1)
    assert caught.value.hint == module.HINT


def test_a_server_that_ends_while_it_starts_is_not_waited_for():
    """The refused connection that follows shows the reason."""
    server = _Server()

    async def body(client):
        async def gone():
            return False

        client.start._still = gone
        return await client.start.over()

    assert _with(server, body)


async def test_whoever_waits_is_let_go_when_the_client_closes():
    server = _Server()
    async with serve_app(server.app()) as url:
        async with Client(
            Endpoint(base_url=url, model="m"), Limits(outage_timeout_s=LONG_S)
        ) as client:
            asked = asyncio.create_task(client.send(ASKED))
            await until(lambda: client.start.met == 1)
            asked.cancel()
            await asyncio.gather(asked, return_exceptions=True)
        assert asked.cancelled()
        assert client.start._looking.cancelled()
