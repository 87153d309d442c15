"""Test how a connection is opened, and that certificates are checked."""

import asyncio
import ssl
from dataclasses import replace

import openai
import pytest

from serve_eval.client.client import Client
from serve_eval.client.connection import (
    SecretMask,
    connect,
    expand,
    looks_secret,
    openai_client,
    problems,
)
from serve_eval.client.request import holds_key, request_headers
from serve_eval.client.tls import Certificates
from serve_eval.errors import PlanError
from serve_eval.schema import (
    Connection,
    Endpoint,
    Failure,
    FailureKind,
    Limits,
    Plan,
    Request,
    Response,
    SamplingParams,
    Spec,
)


@pytest.mark.parametrize(
    "name", ["Authorization", "authorisation", "X-Api-Key", "Auth", "X-Auth-Token", "Cookie"]
)
def test_names_of_secrets_are_known(name):
    assert looks_secret(name)


@pytest.mark.parametrize("name", ["X-Team", "X-Author", "X-Authors", "Accept", "X-Request-Source"])
def test_names_of_other_things_are_not_taken_for_secrets(name):
    assert not looks_secret(name)


@pytest.mark.parametrize(
    ("connection", "fields"),
    [
        ({}, []),
        ({"api_key_env": "OPENAI_API_KEY"}, []),
        ({"api_key_env": "SET"}, []),
        ({"api_key_env": ""}, []),
        ({"api_key_env": "UNSET"}, ["api_key_env"]),
        ({"api_key_env": "not a name"}, ["api_key_env"]),
        (
            {
                "headers": {
                    "X-Team": "evals",
                    "Authorization": "Bearer ${SET}",
                    "X-Api-Key": "${SET}",
                }
            },
            [],
        ),
        ({"headers": {"Authorization": "Bearer abc"}}, ["headers.Authorization"]),
        ({"headers": {"X-Api-Key": "${SET}abc"}}, ["headers.X-Api-Key"]),
        ({"proxy": "http://proxy:3128"}, []),
        ({"proxy": "https://proxy.example.org/"}, []),
        ({"proxy": "http://${SET}:${SET}@proxy:3128"}, []),
        ({"proxy": "${SET}"}, []),
        ({"proxy": "http://me@proxy:3128"}, ["proxy"]),
        ({"proxy": "socks5://proxy:1"}, ["proxy"]),
    ],
)
def test_a_plan_holds_no_secret(connection, fields):
    assert [".".join(path) for path, _ in problems(connection, {"SET": "x"})] == fields


def _connect(connection, **environ):
    plan = Plan(model="m", launcher=Spec(name="external"), tasks=(), connection=connection)
    connect(plan, Endpoint(base_url="http://h/v1"), environ)


@pytest.mark.parametrize(
    ("connection", "environ", "said"),
    [
        (Connection(headers={"X": "${MISSING}"}), {}, "header X: the environment has no MISSING"),
        (Connection(headers={"X": "${V}"}), {"V": "a\nb"}, "header X has a character"),
        (Connection(), {"OPENAI_API_KEY": "a\x00b"}, "the key in OPENAI_API_KEY has a character"),
        (Connection(proxy="${P}"), {"P": "nonsense"}, "proxy: expected"),
        (Connection(proxy="http://${P}@host:port"), {"P": "u:p"}, "proxy: expected"),
    ],
)
def test_a_value_that_cannot_be_used_is_said_without_it(connection, environ, said):
    with pytest.raises(PlanError, match=said) as caught:
        _connect(connection, **environ)
    assert not any(value in str(caught.value) for value in environ.values())


def test_the_official_package_gets_the_same_key_and_headers():
    connection = Connection(api_key_env="MINE", headers={"X-Team": "${TEAM}"})
    plan = Plan(model="m", launcher=Spec(name="external"), tasks=(), connection=connection)
    package = openai_client(plan, "http://h/v1", {"MINE": "sesame", "TEAM": "evals"}, timeout_s=1.0)
    assert (package.api_key, package.default_headers["X-Team"]) == ("sesame", "evals")
    assert package.max_retries == 0
    open_to_all = replace(plan, connection=Connection())
    assert openai_client(open_to_all, "http://h/v1", {}, timeout_s=1.0).api_key == "none"
    with pytest.raises(PlanError, match="header X-Team: the environment has no TEAM"):
        openai_client(plan, "http://h/v1", {}, timeout_s=1.0)


def test_a_key_behind_its_scheme_in_one_variable_is_hidden_by_itself():
    plan = Plan(
        model="m",
        launcher=Spec(name="external"),
        tasks=(),
        connection=Connection(headers={"Auth": "${SET}"}),
    )
    client = connect(
        plan, Endpoint(base_url="http://127.0.0.1:9/v1", model="m"), {"SET": "Bearer abc12345"}
    )
    assert client.masking.text("Bearer abc12345 or abc12345") == "*** or ***"


def test_a_header_is_sent_once_and_lengths_are_ours():
    given = {"user-agent": "mine", "AUTHORIZATION": "Basic x", "Content-Length": "7"}
    sent = request_headers("key", given)
    assert {name.lower(): value for name, value in sent.items()} == {
        "user-agent": "mine",
        "accept": "*/*",
        "accept-encoding": "identity",
        "content-type": "application/json",
        "authorization": "Basic x",
    }
    assert len(sent) == 5


@pytest.mark.parametrize(
    ("name", "key"), [("authorization", True), ("X-Api-Key", True), ("X-Team", False)]
)
def test_headers_that_may_hold_a_key_are_known(name, key):
    assert holds_key({"Accept": "*/*", name: "x"}) is key


def test_what_stands_under_the_name_of_a_secret_is_hidden():
    mask = SecretMask(Connection(), {})
    told = {"api_key": "plain words", "inner": [{"Authorization": "Basic x"}], "tokens": "3"}
    assert mask.of(told) == {
        "api_key": "***",
        "inner": [{"Authorization": "***"}],
        "tokens": "3",
    }


@pytest.mark.parametrize("name", ["X-Team", "X-Author", "Accept-Language", "X-Route"])
@pytest.mark.parametrize("variable", ["TEAM", "PLAIN", "MY_VALUE"])
def test_a_header_from_a_variable_is_hidden_whatever_its_name(name, variable):
    connection = Connection(headers={name: f"prefix ${{{variable}}}"})
    plan = Plan(model="m", launcher=Spec(name="external"), tasks=(), connection=connection)
    value = "blue-harvest-17"
    client = connect(plan, Endpoint(base_url="http://127.0.0.1:9/v1"), {variable: value})
    assert client.masking.text(f"it said {value}") == "it said ***"
    assert value.encode() not in client.masking.body(f'{{"text": "{value}"}}'.encode())


def test_a_single_digit_of_a_header_does_not_blank_messages():
    plan = Plan(
        model="m",
        launcher=Spec(name="external"),
        tasks=(),
        connection=Connection(headers={"X-Shard": "${N}"}),
    )
    client = connect(plan, Endpoint(base_url="http://127.0.0.1:9/v1"), {"N": "1"})
    assert client.masking.message("HTTP 1 of 11") == "HTTP 1 of 11"


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        ("Bearer ${TOKEN}", "Bearer secret-of-7"),
        ("${TOKEN}", "secret-of-7"),
        ("http://${USER}:${TOKEN}@proxy:3128", "http://me:secret-of-7@proxy:3128"),
        ("${N} of ${TOKEN}, ${N}", "1 of secret-of-7, 1"),
        ("none", "none"),
    ],
)
def test_what_stands_around_a_variable_is_kept(value, wanted):
    environ = {"TOKEN": "secret-of-7", "USER": "me", "N": "1"}
    assert expand(value, environ, "header X") == wanted


ANSWER = b'{"id": "c-1", "choices": [{"text": "A", "finish_reason": "stop"}]}'


async def _by_client(url, ca_bundle):
    async with Client(
        Endpoint(base_url=url), Limits(max_attempts=3), certificates=Certificates(ca_bundle)
    ) as client:
        sampling = SamplingParams(max_tokens=2)
        return await client.send(Request(sample_id="1", prompt="p", sampling=sampling))


async def _by_package(url, ca_bundle):
    connection = Connection(ca_bundle=ca_bundle)
    plan = Plan(model="m", launcher=Spec(name="external"), tasks=(), connection=connection)
    async with openai_client(plan, url, {}, timeout_s=20.0) as package:
        return (await package.completions.create(model="m", prompt="p")).choices[0].text


def _send(certificate, ca_bundle, sends, host="localhost"):
    async def answer(reader, writer):
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
        await reader.readexactly(length)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\n")
        writer.write(b"Content-Length: %d\r\n\r\n%b" % (len(ANSWER), ANSWER))
        await writer.drain()
        writer.close()

    async def main():
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        async with await asyncio.start_server(answer, "127.0.0.1", 0, ssl=context) as server:
            url = f"https://{host}:{server.sockets[0].getsockname()[1]}/v1"
            return await sends(url, ca_bundle)

    return asyncio.run(main())


def test_an_unknown_certificate_is_refused_and_said(certificate):
    result = _send(certificate, None, _by_client)
    assert isinstance(result, Failure)
    assert result.kind is FailureKind.DISCONNECTED
    assert "certificate" in result.message.lower()
    assert (result.retryable, len(result.attempts)) == (False, 1)


def test_a_certificate_for_another_name_is_refused(certificate):
    result = _send(certificate, str(certificate), _by_client, host="127.0.0.1")
    assert isinstance(result, Failure)
    assert "127.0.0.1" in result.message


def test_a_certificate_that_is_trusted_by_name_is_accepted(certificate):
    result = _send(certificate, str(certificate), _by_client)
    assert isinstance(result, Response)
    assert result.text == "A"


def test_the_official_package_trusts_the_same_and_nothing_else(certificate):
    """Neither transport takes part: the official package makes its own connections."""
    assert _send(certificate, str(certificate), _by_package) == "A"
    with pytest.raises(openai.APIConnectionError):
        _send(certificate, None, _by_package)
