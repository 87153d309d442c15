"""Search every reply for the codes of other requests, whole and in parts."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import accumulate

from serve_eval.schema import (
    Attempt,
    CanaryLeak,
    CanaryRecord,
    CanarySuspicion,
)
from serve_eval.workflows.invariants.canaries.prompts import ALPHABET, LENGTH

LEAST_PART = 4
"""Characters of the shortest part of a code that counts."""
SUSPICIOUS = 0.001
"""Chance from which parts of codes are reported."""
QUOTED = 30
"""Characters quoted before and after a code."""

_ESCAPE = re.compile(r"\\(?:[nrt/\"\\]|u[0-9a-fA-F]{4})")
_OTHERS = re.compile(r"[\W_]+")


@dataclass(frozen=True, slots=True)
class ReplyPart:
    """A text within a reply, and the name of its place."""

    where: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundCodes:
    """The codes found in replies. `own` holds the requests whose reply repeats their own code."""

    own: frozenset[str]
    leaks: tuple[CanaryLeak, ...]
    chance: float
    suspicion: CanarySuspicion | None


def list_parts(record: CanaryRecord) -> list[ReplyPart]:
    """Return all texts that came back for a request.

    A stream is the sum of its pieces here. The client keeps the first 600 characters of an error.
    """
    parts = [ReplyPart("error message", one.message) for one in record.failures]
    if (answer := record.response) is not None:
        parts += [
            ReplyPart("text", answer.text),
            ReplyPart("thoughts", answer.reasoning or ""),
            ReplyPart("refusal", answer.refusal or ""),
            ReplyPart("stop_reason", answer.stop_reason or ""),
            ReplyPart("id", answer.answer_id or ""),
        ]
        for call in answer.tool_calls:
            parts += [ReplyPart("tool name", call.name), ReplyPart("tool call", call.arguments)]
    return [part for part in parts if part.text]


def normalise(text: str) -> tuple[str, list[int]]:
    """Return the letters and digits of a text in lower case, and the place of each in the text.

    So a code is found in any case, and if spaces, line breaks, hyphens or escapes of JSON split it.
    """
    skipped = [match.span() for match in _ESCAPE.finditer(text)]
    skipped += [match.span() for match in _OTHERS.finditer(text)]
    keep = bytearray(b"\1") * len(text)
    for start, end in skipped:
        keep[start:end] = bytes(end - start)
    places = [i for i in range(len(text)) if keep[i]]
    # One character may become two in lower case, and then its place would shift the rest.
    return "".join(low if len(low := text[i].lower()) == 1 else "?" for i in places), places


def search_codes(records: Mapping[str, CanaryRecord], sent: Mapping[str, str]) -> FoundCodes:
    """Return every code that appears in the reply to another request. `sent` has all codes by id.

    Codes are drawn independently of each other and of all other texts. So a given stretch of a
    reply equals the code of another request with a chance of 2**-60. `chance` is the expected
    number of such accidents over all stretches and codes.
    """
    owners = {code: name for name, code in sent.items()}
    own, leaks, stretches = set[str](), list[CanaryLeak](), 0
    for record in records.values():
        found = dict[str, tuple[ReplyPart, int]]()
        for part in list_parts(record):
            plain, places = normalise(part.text)
            stretches += max(0, len(plain) - LENGTH + 1)
            for i in range(len(plain) - LENGTH + 1):
                if (owner := owners.get(plain[i : i + LENGTH])) is not None:
                    found.setdefault(owner, (part, places[i]))
        if record.id in found:
            own.add(record.id)
        leaks += [
            _describe_leak(record, records.get(owner), owner, part, at, own=record.id in found)
            for owner, (part, at) in found.items()
            if owner != record.id
        ]
    return FoundCodes(
        own=frozenset(own),
        leaks=tuple(leaks),
        chance=stretches * len(sent) * len(ALPHABET) ** -float(LENGTH),
        suspicion=None if leaks else _suspect(records, sent),
    )


def _describe_leak(
    into: CanaryRecord,
    source: CanaryRecord | None,
    owner: str,
    part: ReplyPart,
    at: int,
    *,
    own: bool,
) -> CanaryLeak:
    text = part.text[max(0, at - QUOTED) : at + LENGTH + QUOTED]
    there, here = _last_attempt(source), _last_attempt(into)
    together = 0.0
    if there is not None and here is not None:
        together = min(there.end_s, here.end_s) - max(there.start_s, here.start_s)
    return CanaryLeak(
        source=owner,
        into=into.id,
        where=part.where,
        quote=" ".join(text.split()),
        together_s=together,
        own=own,
        request_ids=(_id_of(there), _id_of(here)),
        servers=(_name_servers(there), _name_servers(here)),
    )


def _last_attempt(record: CanaryRecord | None) -> Attempt | None:
    if record is None:
        return None
    answered = () if record.response is None else record.response.attempts
    attempts = [*(one for failure in record.failures for one in failure.attempts), *answered]
    return attempts[-1] if attempts else None


def _id_of(attempt: Attempt | None) -> str:
    return "" if attempt is None else attempt.request_id


def _name_servers(attempt: Attempt | None) -> str | None:
    if attempt is None or attempt.servers is None:
        return None
    names = (attempt.servers.context, attempt.servers.generation)
    return " + ".join(name for name in names if name) or None


def _suspect(
    records: Mapping[str, CanaryRecord], sent: Mapping[str, str]
) -> CanarySuspicion | None:
    """Return the parts of codes in other replies that chance explains least, if it hardly does.

    For each length, a code counts once, however many replies have a part of it: given the replies,
    codes are independent, so their number is a sum of independent events. Chernoff's bound is that
    of a Poisson variable (Hoeffding 1963). All lengths together get the level.
    """
    best: CanarySuspicion | None = None
    lengths = range(LEAST_PART, LENGTH)
    texts = [
        (record.id, normalise(part.text)[0])
        for record in records.values()
        for part in list_parts(record)
    ]
    for length in lengths:
        stretches: dict[str, dict[str, None]] = {}
        for holder, plain in texts:
            for i in range(len(plain) - length + 1):
                stretches.setdefault(plain[i : i + length], {})[holder] = None
        examples = [
            (name, into)
            for name, code in sent.items()
            if (into := _find_foreign(name, code, length, stretches)) is not None
        ]
        places = LENGTH - length + 1
        expected = len(sent) * min(1.0, len(stretches) * places * len(ALPHABET) ** -float(length))
        p = min(1.0, len(lengths) * _bound_tail(len(examples), expected))
        if examples and p <= SUSPICIOUS and (best is None or p < best.p):
            best = CanarySuspicion(
                length=length,
                codes=len(examples),
                expected=expected,
                p=p,
                source=examples[0][0],
                into=examples[0][1],
            )
    return best


def _find_foreign(
    name: str, code: str, length: int, stretches: Mapping[str, Mapping[str, None]]
) -> str | None:
    """Return a request, not this one, whose reply has a part of a code."""
    return next(
        (
            into
            for i in range(LENGTH - length + 1)
            for into in stretches.get(code[i : i + length], ())
            if into != name
        ),
        None,
    )


def _bound_tail(count: int, expected: float) -> float:
    """Return a bound of P(sum of independent events >= count), given its mean."""
    if count <= expected or expected <= 0.0:
        return 1.0
    return math.exp(count - expected - count * math.log(count / expected))


def count_in_flight(records: Iterable[CanaryRecord]) -> int:
    """Return the largest number of requests that were in flight together."""
    spans = [one for one in map(_last_attempt, records) if one is not None]
    # At the same time, ends come before starts.
    events = sorted([(one.start_s, 1) for one in spans] + [(one.end_s, -1) for one in spans])
    return max(accumulate(change for _, change in events), default=0)
