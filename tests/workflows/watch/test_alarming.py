"""Delivery of alarms: the messages about failed deliveries, which contain no secret."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Mapping

import pytest

from serve_eval.errors import PlanError
from serve_eval.schema import Connection
from serve_eval.workflows.watch import alarming
from serve_eval.workflows.watch.alarming import Delivery, deliver, delivery
from tests.workflows.watch.changing_endpoint import Endpoint

ALARM = {"kind": "accuracy", "round": 3}


def _deliver(
    to: Delivery, environ: Mapping[str, str] | None = None
) -> tuple[dict[str, bool], list[str]]:
    told: list[str] = []
    headers = {"X-Team": "${TEAM_TOKEN}"}
    connection = Connection(
        api_key_env="MY_KEY", headers=headers, proxy="http://${USER_OF}:x@proxy:1"
    )
    return asyncio.run(deliver(to, ALARM, connection, environ or {}, told.append)), told


def test_a_command_hears_no_secret_of_the_endpoint_and_no_shell_reads_it() -> None:
    secret = {"MY_KEY": "a", "OPENAI_API_KEY": "b", "TEAM_TOKEN": "c", "USER_OF": "d"}
    script = (
        "import os, sys; sys.exit(set(os.environ) - {'LC_CTYPE'} != {'PATH', 'PAGER'} or"
        " sys.argv[1] != '$PAGER;')"
    )
    around = {**secret, "PAGER": "1", "SECRET_XYZ": "e", "PATH": os.environ["PATH"]}
    to = delivery(f'{sys.executable} -c "{script}" $PAGER;', None, around, ["PAGER"])
    assert _deliver(to, around) == ({"command": True}, [])


def test_a_variable_for_the_command_has_to_be_there() -> None:
    with pytest.raises(PlanError, match=r"watch\.alarm_env: not set in the environment: PAGER_KEY"):
        delivery("mail me", None, {}, ["PAGER_KEY"])
    with pytest.raises(PlanError, match=r"watch\.alarm_env needs --on-alarm-command"):
        delivery(None, None, {"PAGER_KEY": "k"}, ["PAGER_KEY"])


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (("/no/such/pager",), "/no/such/pager: No such file or directory"),
        ((sys.executable, "-c", "raise SystemExit(3)"), "exited with 3"),
        ((sys.executable, "-c", "import time; time.sleep(60)"), "did not finish within 0.5 s"),
    ],
)
def test_a_command_that_fails_is_told(
    command: tuple[str, ...], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(alarming, "COMMAND_S", 0.5 if "60" in command[-1] else 60.0)
    took, told = _deliver(Delivery(command=command))
    assert took == {"command": False}
    assert said in told[0]


def test_a_webhook_is_tried_again_where_that_may_help_and_its_address_is_not_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(alarming, "PAUSE_S", 0.0)
    endpoint = Endpoint(refusals=[503, 429, 503, 404, 500])
    told: list[str] = []

    async def main() -> list[dict[str, bool]]:
        async with endpoint.server.serve() as url:
            to = Delivery(webhook=url.removesuffix("/v1") + "/${PLACE}")
            return [
                await deliver(to, ALARM, Connection(), {"PLACE": "hook"}, told.append)
                for _ in range(3)
            ]

    assert asyncio.run(main()) == [{"webhook": False}, {"webhook": False}, {"webhook": True}]
    assert endpoint.alarms == [ALARM]
    assert told == [
        "warning: the alarm's webhook failed: HTTP 503",
        "warning: the alarm's webhook failed: HTTP 404",
    ]
    took, said = _deliver(Delivery(webhook="http://127.0.0.1:9/secret"))
    assert took == {"webhook": False}
    assert "secret" not in said[0]


@pytest.mark.parametrize(
    "url", ["https://", "http://[::1", "http://host:99999/", "http://host:port/", "host/hook"]
)
def test_a_webhook_that_is_no_address_is_refused_beforehand(url: str) -> None:
    with pytest.raises(PlanError, match="--webhook: expected"):
        delivery(None, url, {})


def test_a_webhook_that_no_resolver_takes_does_not_end_the_watch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(alarming, "PAUSE_S", 0.0)
    told: list[str] = []
    to = delivery(None, "http://xn--/hook", {})
    assert asyncio.run(deliver(to, {}, Connection(), {}, told.append)) == {"webhook": False}
    assert told == ["warning: the alarm's webhook failed: IDNAError"]
