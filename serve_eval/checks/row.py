"""Describe a row of the table: the result of one check."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


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


@dataclass(frozen=True, slots=True, kw_only=True)
class SentRequest:
    """A request as sent, without its headers: `curl` adds them. `body` is None for a GET."""

    url: str
    body: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """The finding of a check, in one line, and the request that shows it, if there is one."""

    outcome: CheckOutcome
    told: str
    sent: SentRequest | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
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
