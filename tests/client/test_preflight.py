"""Test the message for an endpoint that cannot be used: status, scheme, and what to do."""

import asyncio
import ssl
from dataclasses import replace
from functools import partial

import pytest

from serve_eval.client import tls as client_tls
from serve_eval.client.client import Client
from serve_eval.client.preflight import check, discover_model
from serve_eval.errors import EndpointError
from serve_eval.schema import Endpoint, Limits, SamplingParams

ONCE = Limits(max_attempts=1, connect_timeout_s=10.0, stall_timeout_s=10.0, sample_timeout_s=20.0)


async def _check(client, *, chat=False):
    await check(client, chat=chat, sampling=SamplingParams(max_tokens=2), extra={})


def _refused(
    answer,
    *,
    asks=discover_model,
    scheme="http",
    certificate=None,
    key=None,
    closes=False,
    asked=None,
    route="chat",
    **limits,
):
    """Return message, hint and base URL for a server that gives this answer to everything.

    `asked` receives the first lines of the requests.
    """

    async def serve(reader, writer):
        if not closes:
            said = await reader.read(65536)
            if asked is not None:
                asked.append(said.partition(b"\r\n")[0])
            writer.write(answer)
            await writer.drain()
        writer.close()

    async def main():
        context = None
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate)
        server = await asyncio.start_server(serve, "localhost", 0, ssl=context)
        url = f"{scheme}://localhost:{server.sockets[0].getsockname()[1]}/v1"
        async with (
            server,
            Client(
                Endpoint(base_url=url, model="m"),
                replace(ONCE, **limits),
                api_key=key,
                route=route,
            ) as client,
        ):
            with pytest.raises(EndpointError) as caught:
                await asks(client)
        return str(caught.value), caught.value.hint, url

    return asyncio.run(main())


def _http(status, body=b'{"error": {"message": "so it is"}}'):
    head = (
        f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length:"
        f" {len(body)}\r\nConnection: close\r\n"
    )
    return head.encode() + b"\r\n" + body


@pytest.mark.parametrize(
    ("status", "hint"),
    [
        (
            "401 Unauthorized",
            ("No key was sent: set OPENAI_API_KEY, or name another variable with --api-key-env."),
        ),
        (
            "403 Forbidden",
            ("No key was sent: set OPENAI_API_KEY, or name another variable with --api-key-env."),
        ),
        (
            "404 Not Found",
            "Older disaggregated orchestrators list none: name the model with --model",
        ),
        (
            "405 Method Not Allowed",
            "Older disaggregated orchestrators list none: name the model with --model",
        ),
        (
            "429 Too Many Requests",
            "The endpoint limits its request rate: try again later, or name the model",
        ),
        (
            "500 Internal Server Error",
            "Name the model with --model. The server's log may say more.",
        ),
        (
            "503 Service Unavailable",
            "The server may still be loading its model, or the orchestrator",
        ),
    ],
)
def test_a_status_of_the_list_of_models_is_said_with_what_to_do(status, hint):
    message, told, url = _refused(_http(status))
    advice = "; name the model with --model" if status[:3] in ("404", "405") else ""
    assert message == f"{url}/models does not list the models: HTTP {status[:3]}: so it is{advice}"
    assert told.startswith(hint)


@pytest.mark.parametrize("asks", [discover_model, _check])
def test_a_redirect_is_told_with_the_way_to_its_address(
    asks,
):
    message, told, url = _refused(_http("307 Temporary Redirect"), asks=asks)
    assert message.endswith(": HTTP 307: a redirect, which is not followed")
    assert told == f"Find the address with curl -sI {url}/models and give that one."


@pytest.mark.parametrize("asks", [discover_model, _check])
def test_a_key_that_is_refused_is_told_from_one_that_is_missing(
    asks,
):
    for key, hint in (
        (None, "No key was sent: set OPENAI_API_KEY"),
        ("sk-1", "The endpoint refuses the key"),
    ):
        message, told, _ = _refused(_http("401 Unauthorized"), asks=asks, key=key)
        assert "HTTP 401: so it is" in message
        assert told.startswith(hint)
        assert "--api-key-env" in told
        assert "sk-1" not in message + told


def test_a_list_that_is_empty_is_no_refusal():
    message, hint, url = _refused(_http("200 OK", b'{"data": []}'))
    assert message == f"{url}/models lists no model; name it with --model"
    assert "--model" in hint


@pytest.mark.parametrize("asks", [discover_model, _check])
def test_https_at_an_http_port_says_so(asks):
    _, hint, url = _refused(_http("400 Bad Request"), asks=asks, scheme="https")
    assert hint == f"The server speaks plain HTTP, not TLS: use http{url.removeprefix('https')}"


@pytest.mark.parametrize("asks", [discover_model, _check])
def test_http_at_an_https_port_says_so(certificate, asks):
    _, hint, url = _refused(_http("200 OK"), asks=asks, certificate=certificate)
    assert hint == f"The server speaks TLS, not plain HTTP: use https{url.removeprefix('http')}"


def test_an_untrusted_certificate_is_no_wrong_scheme(certificate):
    """A server with TLS may answer plain HTTP with a 400 that says so, as nginx does."""
    message, hint, _ = _refused(_http("400 Bad Request"), scheme="https", certificate=certificate)
    assert "certificate" in message
    assert "plain HTTP" not in hint


def test_a_port_that_closes_every_connection_speaks_neither():
    for way in ("http", "https"):
        _, hint, _ = _refused(b"", scheme=way, closes=True)
        assert hint.startswith("Check that the server is up")


@pytest.mark.parametrize(
    ("url", "tls", "plain", "said"),
    [
        (
            "https://h:1/v1",
            True,
            True,
            "",
        ),  # TLS, and a 400 for plain HTTP, as nginx does
        ("https://h:1/v1", False, True, "use http://h:1/v1"),
        ("https://h:1/v1", False, False, ""),
        ("http://h:1/v1", True, True, "use https://h:1/v1"),
        ("http://h:1/v1", False, True, ""),
    ],
)
async def test_which_scheme_is_right(monkeypatch, url, tls, plain, said):
    async def speaks(host, port, context):
        return (b"" if tls else None) if context is not None else b"HTTP/" if plain else None

    monkeypatch.setattr(client_tls, "_read_first_bytes", speaks)
    told = await client_tls.other_scheme(url)
    assert told.endswith(said)
    assert bool(told) is bool(said)


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (b'{"choices": [{"text": "", "finish_reason": "timeout"}]}', "finish_reason 'timeout'"),
        (b'{"choices": [{"error": {"message": "gone"}, "finish_reason": "stop"}]}', "gone"),
        (b'{"detail": "gone"}', "an error in place of an answer: gone"),
        (b'{"choices": [{"text": null, "answer": "4", "finish_reason": "stop"}]}', "'choices[0].a"),
        (b"{}", "no choices"),
    ],
)
def test_the_port_is_not_blamed_for_what_an_openai_server_says(body, told):
    message, hint, _ = _refused(_http("200 OK", body), asks=_check)
    assert told in message
    assert "port" not in hint
    assert "log" in hint


@pytest.mark.parametrize(("chat", "route"), [(False, "completions"), (True, "chat/completions")])
def test_the_route_that_was_asked_is_named(chat, route):
    asked = []
    message, hint, url = _refused(
        _http("404 Not Found"), asks=partial(_check, chat=chat), asked=asked
    )
    assert message == f"{url}/{route} does not answer a short request: HTTP 404: so it is"
    assert hint.startswith(f"The server has no route for {'chat' if chat else 'text'} requests")
    assert asked == [f"POST /v1/{route} HTTP/1.1".encode(), b"GET /v1/models HTTP/1.1"]


@pytest.mark.parametrize(
    ("status", "lacks_it"), [("404 Not Found", True), ("501 X", True), ("500 X", False)]
)
def test_a_server_without_the_route_of_responses_is_told_from_one_that_fails(status, lacks_it):
    asks = partial(_check, chat=True)
    _, hint, _ = _refused(_http(status), asks=asks, route="responses")
    assert hint.startswith("The server has no /v1/responses") is lacks_it


def test_a_server_that_gives_no_answer_is_not_asked_for_its_models():
    asked = []
    _, hint, _ = _refused(_http("200 OK", b"[]"), asks=_check, asked=asked)
    assert hint.startswith("Check that this is the port of an OpenAI-compatible server.")
    assert [line for line in asked if b"HTTP" in line] == [b"POST /v1/completions HTTP/1.1"]


@pytest.mark.parametrize(
    ("said", "stream", "hint"),
    [
        (
            b"max_completion_tokens is not known",
            False,
            "The server uses the other field name: ",
        ),
        (
            b"Stream is not supported",
            True,
            "The server refuses to stream: add --set limits.stream=false.",
        ),
        (b"Stream is not supported", False, "The server's log may say more."),
        (b"the upstream is gone", True, "The server's log may say more."),
    ],
)
def test_what_a_refusal_names_is_what_to_do_without(said, stream, hint):
    answer = _http("400 Bad Request", b'{"error": "%b"}' % said)
    _, told, _ = _refused(answer, asks=_check, stream=stream)
    assert told.startswith(hint)


TRUNCATION = (
    b"truncate_prompt_tokens=1024 cannot be greater than max_model_len = 512. (parameter="
    b"truncate_prompt_tokens, value=1024)"
)


@pytest.mark.parametrize(
    ("said", "hint"),
    [
        (
            TRUNCATION,
            "The server knows the field truncate_prompt_tokens and refuses its value 1024: choose"
            " another with --set TASK.truncate_prompt_tokens=VALUE, or omit it with --set"
            " TASK.truncate_prompt_tokens=null. Both need --allow-mismatch truncate_prompt_tokens;",
        ),
        (
            b"truncate_prompt_tokens: Extra inputs are not permitted",
            "The server refuses the field truncate_prompt_tokens: omit it with --set"
            " TASK.truncate_prompt_tokens=null --allow-mismatch truncate_prompt_tokens.",
        ),
        (
            b"top_k must be 0 (disable), or at least 1, got -5.",
            "The server knows the field top_k and refuses its value -5: change the option that"
            " sends it (protocol.extra_body).",
        ),
        (
            b"Unrecognized request argument supplied: top_k",
            "The server refuses the field top_k: remove the option that sends it"
            " (protocol.extra_body).",
        ),
        (
            b"temperature must be non-negative, got -1.0.",
            "The server knows the field temperature and refuses its value: choose another",
        ),
        (
            b"'stop' is not supported",
            "The server refuses the field stop: omit it with --set TASK.stop=[]",
        ),
    ],
)
def test_a_refused_value_is_not_called_a_refused_field(said, hint):
    extra = {"truncate_prompt_tokens": 1024, "top_k": -5}

    async def asks(client):
        await check(client, chat=False, sampling=SamplingParams(max_tokens=2), extra=extra)

    _, told, _ = _refused(_http("400 Bad Request", b'{"error": "%b"}' % said), asks=asks)
    assert told.startswith(hint)


def test_a_refused_length_does_not_ask_for_the_other_name_of_its_field():
    said = b'{"error": "max_tokens must be at least 16, also as max_completion_tokens"}'
    _, told, _ = _refused(_http("400 Bad Request", said), asks=_check)
    assert told == "The server's log may say more."


def test_a_list_of_models_that_breaks_off_is_said():
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{"
    message, hint, url = _refused(head)
    assert message == f"{url}/models does not answer: the connection ended within the answer"
    assert hint


async def test_a_server_that_is_silent_when_asked_for_its_scheme_is_not_waited_for(
    monkeypatch,
):
    monkeypatch.setattr(client_tls, "PROBE_S", 0.1)

    async def mute(reader, writer):
        await reader.read()
        writer.close()

    async with await asyncio.start_server(mute, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        assert (
            await asyncio.wait_for(client_tls.other_scheme(f"https://127.0.0.1:{port}/v1"), 10)
            == ""
        )
