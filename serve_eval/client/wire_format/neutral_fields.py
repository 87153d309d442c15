"""Put neutral sampling values into requests that lack them. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from serve_eval.schema import Request


class NeutralField(NamedTuple):
    """A field to send, unless a request has it by one of its `names`.

    `greedy`: it is sent at temperature 0 too, where the others decide nothing.
    """

    sent_as: str
    value: float
    names: frozenset[str]
    greedy: bool


class NeutralFields:
    """Fields that every request of a client gets for an answer, after the probe has found them."""

    def __init__(self, fields: Iterable[NeutralField] = ()) -> None:
        self._all = tuple(fields)
        self._greedy = tuple(one for one in self._all if one.greedy)

    def put(self, body: dict[str, Any], request: Request) -> None:
        """Add the fields that a body lacks; a value that the plan or a sample set stays."""
        for one in self._greedy if request.sampling.temperature == 0 else self._all:
            if one.sent_as not in body and one.names.isdisjoint(body):
                body[one.sent_as] = one.value

    def __bool__(self) -> bool:
        return bool(self._all)
