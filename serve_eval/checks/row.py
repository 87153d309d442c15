"""A row of the table: what one check found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class CheckOutcome(StrEnum):
    """PASS: the endpoint does what the request asks. UNSUPPORTED: it refuses it, or ignores what an
    endpoint may lack. FAIL: it takes the request and does something else, it errs, or it lacks what
    every endpoint has.
    """

    PASS = "PASS"
    FAIL = "FAIL"
    UNSUPPORTED = "UNSUPPORTED"


@dataclass(frozen=True, slots=True, kw_only=True)
class SentRequest:
    """A request as it was sent, without its headers: `curl` tells how to send it again. `body` is
    None for a GET.
    """

    url: str
    body: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """What a check saw, in a line, and the request that showed it where there is one."""

    outcome: CheckOutcome
    told: str
    sent: SentRequest | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckRow:
    """`name` is what --require takes. `model`: it is the model that was tested, not only its
    server. `time_s` is that of all requests of the check. `curl` sends the offending request again;
    None where there is none to show.
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
