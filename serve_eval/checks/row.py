"""A row of the table: what one check found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class Outcome(StrEnum):
    """PASS: the endpoint does what the request asks. UNSUPPORTED: it refuses it, or ignores what an endpoint may lack.
    FAIL: it takes the request and does something else, it errs, or it lacks what every endpoint has."""

    PASS = "PASS"
    FAIL = "FAIL"
    UNSUPPORTED = "UNSUPPORTED"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """A request as it was sent, without its headers: `curl` tells how to send it again. `body` is None for a GET."""

    url: str
    body: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What a check saw, in a line, and the request that showed it where there is one."""

    outcome: Outcome
    told: str
    sent: Sent | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """`name` is what --require takes. `model`: it is the model that was tested, not only its server. `time_s` is that
    of all requests of the check. `curl` sends the offending request again; None where there is none to show."""

    name: str
    outcome: Outcome
    told: str
    time_s: float
    model: bool = False
    curl: str | None = None


def passed(told: str) -> Found:
    return Found(outcome=Outcome.PASS, told=told)


def failed(told: str, sent: Sent | None = None) -> Found:
    return Found(outcome=Outcome.FAIL, told=told, sent=sent)


def unsupported(told: str, sent: Sent | None = None) -> Found:
    return Found(outcome=Outcome.UNSUPPORTED, told=told, sent=sent)
