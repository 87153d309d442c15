"""Describe the row of a check's result, and its request as a shell command."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from enum import StrEnum
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from serve_eval.frozen import freeze
from serve_eval.schema import Connection
from serve_eval.schema.base_url import on_the_wire
from serve_eval.shell_words import quote_word


class CheckOutcome(StrEnum):
    """The outcome of a check.

    PASS: the endpoint does what the request asks. UNSUPPORTED: it refuses the request, or ignores a
    feature that is optional. FAIL: it accepts the request and does something else, it returns an
    error, or it lacks what every endpoint must have. KNOWN: it fails as a file of known failures
    says. ERROR: the server died during the check. No check returns these two.
    """

    PASS = "PASS"
    FAIL = "FAIL"
    KNOWN = "KNOWN"
    UNSUPPORTED = "UNSUPPORTED"
    ERROR = "ERROR"


@freeze
class SentRequest:
    """A request as sent, without its headers: `curl` adds them. `body` is None for a GET."""

    url: str
    body: Mapping[str, Any] | None = None


@freeze
class CheckResult:
    """The finding of a check, in one line, and the request that shows it, if there is one."""

    outcome: CheckOutcome
    told: str
    sent: SentRequest | None = None


@freeze
class CheckRow:
    """A row of the table.

    `name` is the name for --require. `model`: the check tests the model, not only its server.
    `time_s` covers all requests of the check. `curl` sends the offending request again; None if
    there is no such request.
    """

    name: str
    outcome: CheckOutcome
    told: str
    time_s: float
    model: bool = False
    curl: str | None = None


def pass_check(told: str) -> CheckResult:
    return CheckResult(outcome=CheckOutcome.PASS, told=told)


def fail_check(told: str, sent: SentRequest | None = None) -> CheckResult:
    return CheckResult(outcome=CheckOutcome.FAIL, told=told, sent=sent)


def report_unsupported(told: str, sent: SentRequest | None = None) -> CheckResult:
    return CheckResult(outcome=CheckOutcome.UNSUPPORTED, told=told, sent=sent)


_VARIABLE = re.compile(r"\$\{[A-Za-z_][A-Za-z0-9_]*\}")


def curl(
    sent: SentRequest,
    connection: Connection,
    variables: Collection[str],
    *,
    body_file: str | None = None,
    base_variable: str | None = None,
) -> str:
    """Return the curl command that sends a request again.

    `variables` are the names of the environment variables that are set. With `body_file` the body
    is read from that file; otherwise the command contains it. If `base_variable` is given, the URL
    is appended to its value.
    """
    base = "" if base_variable is None else f'"${{{base_variable}}}"'
    url = escape(sent.url)
    words = ["curl", "-sS", base + quote_word(url)]
    # Without these, curl removes "/..", and expands brackets, which an escaped URL does not have.
    if base or "/." in url:
        words += ["--globoff", "--path-as-is"]
    given = {name.lower() for name in connection.headers}
    if sent.body is not None and "content-type" not in given:
        words += ["-H", quote_word("Content-Type: application/json")]
    if connection.api_key_env in variables and "authorization" not in given:
        words += ["-H", _quote(f"Authorization: Bearer ${{{connection.api_key_env}}}")]
    for name, value in connection.headers.items():
        words += ["-H", _quote(f"{name}: {value}")]
    words += ["--proxy", _quote(connection.proxy)] if connection.proxy else ["--noproxy", "'*'"]
    if connection.ca_bundle:
        words += ["--cacert", quote_word(connection.ca_bundle)]
    words += _certificate(connection)
    if sent.body is not None:
        if sent.body.get("stream"):
            words.append("-N")
        data = json.dumps(sent.body, ensure_ascii=False) if body_file is None else f"@{body_file}"
        words += ["--data-binary", quote_word(data)]
    return " ".join(words)


def _certificate(connection: Connection) -> list[str]:
    """Return the words that show our certificate, which curl calls --cert."""
    words = ["--cert", quote_word(connection.client_cert)] if connection.client_cert else []
    words += ["--key", quote_word(connection.client_key)] if connection.client_key else []
    if connection.client_key_password_env:
        words += ["--pass", _quote(f"${{{connection.client_key_password_env}}}")]
    return words


def escape(url: str) -> str:
    """Return a URL, or the end of one, with its path as the client of serve-eval sends it."""
    try:
        parts = urlsplit(url)
    except ValueError:  # From a folder that someone else wrote.
        return url
    return urlunsplit(parts._replace(path=on_the_wire(parts.path)))


def _quote(text: str) -> str:
    """Return a shell word in which `${VARIABLE}` is expanded and nothing else.

    This also holds if a user pastes it into bash, which expands a `!` within double quotes from its
    history.
    """
    pieces, end = [], 0
    for found in _VARIABLE.finditer(text):
        pieces += [_plain(text[end : found.start()]), f'"{found[0]}"']
        end = found.end()
    return "".join([*pieces, _plain(text[end:])]) or "''"


def _plain(text: str) -> str:
    return quote_word(text) if text else ""
