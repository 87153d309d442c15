from __future__ import annotations

from dataclasses import replace

import pytest

from serve_eval.client.connection import connect, expand, looks_secret, openai_client, problems
from serve_eval.errors import PlanError
from serve_eval.schema import Connection, Endpoint, Plan, Spec


@pytest.mark.parametrize(
    "name", ["Authorization", "authorisation", "X-Api-Key", "Auth", "X-Auth-Token", "Cookie"]
)
def test_names_of_secrets_are_known(name: str) -> None:
    assert looks_secret(name)


@pytest.mark.parametrize("name", ["X-Team", "X-Author", "X-Authors", "Accept", "X-Request-Source"])
def test_names_of_other_things_are_not_taken_for_secrets(name: str) -> None:
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
def test_a_plan_holds_no_secret(connection: dict[str, object], fields: list[str]) -> None:
    assert [".".join(path) for path, _ in problems(connection, {"SET": "x"})] == fields


def _connect(connection: Connection, **environ: str) -> None:
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
def test_a_value_that_cannot_be_used_is_said_without_it(
    connection: Connection, environ: dict[str, str], said: str
) -> None:
    with pytest.raises(PlanError, match=said) as caught:
        _connect(connection, **environ)
    assert not any(value in str(caught.value) for value in environ.values())


def test_the_official_package_gets_the_same_key_and_headers() -> None:
    connection = Connection(api_key_env="MINE", headers={"X-Team": "${TEAM}"})
    plan = Plan(model="m", launcher=Spec(name="external"), tasks=(), connection=connection)
    package = openai_client(plan, "http://h/v1", {"MINE": "sesame", "TEAM": "evals"}, timeout_s=1.0)
    assert (package.api_key, package.default_headers["X-Team"]) == ("sesame", "evals")
    assert package.max_retries == 0
    open_to_all = replace(plan, connection=Connection())
    assert openai_client(open_to_all, "http://h/v1", {}, timeout_s=1.0).api_key == "none"
    with pytest.raises(PlanError, match="header X-Team: the environment has no TEAM"):
        openai_client(plan, "http://h/v1", {}, timeout_s=1.0)


def test_a_key_behind_its_scheme_in_one_variable_is_hidden_by_itself() -> None:
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


@pytest.mark.parametrize("name", ["X-Team", "X-Author", "Accept-Language", "X-Route"])
@pytest.mark.parametrize("variable", ["TEAM", "PLAIN", "MY_VALUE"])
def test_a_header_from_a_variable_is_hidden_whatever_its_name(name: str, variable: str) -> None:
    connection = Connection(headers={name: f"prefix ${{{variable}}}"})
    plan = Plan(model="m", launcher=Spec(name="external"), tasks=(), connection=connection)
    value = "blue-harvest-17"
    client = connect(plan, Endpoint(base_url="http://127.0.0.1:9/v1"), {variable: value})
    assert client.masking.text(f"it said {value}") == "it said ***"
    assert value.encode() not in client.masking.body(f'{{"text": "{value}"}}'.encode())


def test_a_single_digit_of_a_header_does_not_blank_messages() -> None:
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
def test_what_stands_around_a_variable_is_kept(value: str, wanted: str) -> None:
    environ = {"TOKEN": "secret-of-7", "USER": "me", "N": "1"}
    assert expand(value, environ, "header X") == wanted
