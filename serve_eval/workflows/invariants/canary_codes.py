"""Make prompts with random codes, and search replies for codes of other requests.

A code is twelve of 32 letters and digits. Tokenizers cut it in many ways, and models can copy it.
No prompt has two codes, so a code in another request's reply cannot come from its prompt.
"""

from __future__ import annotations

import hashlib
import math
import random
import re
from collections.abc import Iterable, Mapping
from dataclasses import field
from itertools import accumulate
from typing import Any

import msgspec

from serve_eval.frozen import freeze, freeze_places
from serve_eval.schema import (
    Attempt,
    CanaryLeak,
    CanaryRecord,
    CanarySuspicion,
    Message,
    Prompt,
    Request,
    SamplingParams,
)

ALPHABET = "abcdefghijklmnopqrstuvwxyz234567"
"""The 32 characters of codes, as in base32 (RFC 4648): five bits each."""
LENGTH = 12
"""Characters of a code: 60 bits."""
GROUP = 4
"""Characters between two hyphens of every other code: other tokens for the same code."""
MAX_TOKENS = 96
"""Token limit of an answer."""
MOST_ROOM = 1024
"""Most tokens that a chat gets for its thoughts, which may name its code too."""
LONG_TEXTS, LINES = 4, 40
"""Number of long texts that prompts share, and their lines of some 15 tokens: 600 tokens, which
fill several blocks of a KV cache."""
KINDS = ("repeat", "question", "shared_prefix", "prefix_question", "early_code", "twin", "tool")
"""Forms of prompts, of which `tool` needs a server that takes tools."""
TOOL = "keep_code"


class CanaryPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The seed of the codes, and what they are sent to.

    `endpoint` is the launcher of the plan with its options, and `base_url` the address.
    `chat`, `texts` and `tools` say which forms of requests the endpoint takes. Chats have the
    fields `no_thoughts`, which switch thoughts off, or `room` more tokens for them. `rehearsal`:
    the stand-in answers.
    """

    seed: str
    requests: int
    in_flight: int
    model: str | None
    endpoint: str
    base_url: str
    chat: bool
    texts: bool
    tools: bool
    room: int = 0
    no_thoughts: Mapping[str, Any] = {}
    rehearsal: bool = False


class KeptCanaryPlan(msgspec.Struct, frozen=True):
    """The content of canary_plan.json."""

    plan: CanaryPlan


TOOL_FIELDS: Mapping[str, object] = {
    "tools": [
        {
            "type": "function",
            "function": {
                "name": TOOL,
                "description": "Keeps the code of a request.",
                "parameters": {
                    "type": "object",
                    "properties": {"code": {"type": "string"}},
                    "required": ["code"],
                },
            },
        }
    ]
}
_PLACES = ("harbour", "library", "orchard", "station", "museum", "quarry", "bakery", "garden")
_ASK = "Repeat the code of this request exactly, and nothing else."
_QUESTIONS = (
    "What is the capital of France?",
    "How many days has a week?",
    "Which colour has grass?",
    "What is 7 + 5?",
)


@freeze
class Canary:
    """One request: its code, the form of its prompt, and how it is sent."""

    id: str
    code: str
    kind: str
    prompt: Prompt
    streamed: bool
    max_tokens: int = MAX_TOKENS
    extra: Mapping[str, object] = field(default_factory=dict)

    @property
    def chat(self) -> bool:
        return not isinstance(self.prompt, str)

    @property
    def request(self) -> Request:
        """The request to send."""
        sampling = SamplingParams(max_tokens=self.max_tokens)
        return Request(
            sample_id=self.id, prompt=self.prompt, sampling=sampling, extra=dict(self.extra)
        )


def make_code(seed: str, number: int) -> str:
    """Return the code of a request: the first 60 bits of a hash, five bits for each character."""
    bits = int.from_bytes(hashlib.sha256(f"{seed}:code:{number}".encode()).digest()[:8]) >> 4
    return "".join(ALPHABET[bits >> 5 * place & 31] for place in range(LENGTH))


def make_canaries(plan: CanaryPlan) -> list[Canary]:
    """Return the requests in the order in which they are sent, which the seed draws."""
    kinds = KINDS if plan.tools else KINDS[:-1]
    routes = [route for route, taken in (("chat", plan.chat), ("text", plan.texts)) if taken]
    found = []
    for number in range(plan.requests):
        kind = kinds[number % len(kinds)]
        turn = number // len(kinds)
        chat = kind == "tool" or routes[turn % len(routes)] == "chat"
        code = make_code(plan.seed, number)
        written = code if turn // 2 % 2 else _group(code)
        text = _write(kind, written, plan.seed, turn)
        found.append(
            Canary(
                id=f"canary-{number}",
                code=code,
                kind=kind,
                prompt=(
                    (Message(role="user", content=text),)
                    if chat
                    else f"{text}\n\nThe code of this request: {written}\n"
                    "The code of this request, once more:"
                ),
                streamed=number % 2 == 1,
                max_tokens=MAX_TOKENS + (plan.room if chat else 0),
                extra={
                    **(TOOL_FIELDS if kind == "tool" else {}),
                    **(plan.no_thoughts if chat else {}),
                },
            )
        )
    random.Random(f"{plan.seed}:order").shuffle(found)
    return found


def _group(code: str) -> str:
    return "-".join(code[i : i + GROUP] for i in range(0, LENGTH, GROUP))


def _write(kind: str, code: str, seed: str, turn: int) -> str:
    """Return the text of a prompt. `turn` counts the prompts of its kind."""
    long = _long_text(seed, turn % LONG_TEXTS)
    named = f"The code of this request is {code}."
    question = _QUESTIONS[turn % len(_QUESTIONS)]
    asked = f"{question} Begin your answer with the code of this request, {code}."
    place = _PLACES[turn // LONG_TEXTS % len(_PLACES)]
    return {
        "repeat": f"{named} {_ASK}",
        "question": asked,
        "shared_prefix": f"{long}\n{named} {_ASK}",
        "prefix_question": f"{long}\n{asked}",
        "early_code": f"{named}\n{long}\n{_ASK}",
        "twin": f"A note from the {place}.\n{named}\n{_ASK}",
        "tool": f"{named} Call the function {TOOL} with the code of this request.",
    }[kind]


def _long_text(seed: str, number: int) -> str:
    """Return a text that several prompts share and that the server has not seen before."""
    draw = random.Random(f"{seed}:text:{number}")
    return "\n".join(
        f"Line {line}: the {draw.choice(_PLACES)} next to the {draw.choice(_PLACES)} opens at"
        f" {draw.randint(1, 12)} and closes at {draw.randint(1, 12)}."
        for line in range(1, LINES + 1)
    )


LEAST_PART = 4
"""Characters of the shortest part of a code that counts."""
SUSPICIOUS = 0.001
"""Chance from which parts of codes are reported."""
QUOTED = 30
"""Characters quoted before and after a code."""

_ESCAPE = re.compile(r"\\(?:[nrt/\"\\]|u[0-9a-fA-F]{4})")
_OTHERS = re.compile(r"[\W_]+")


@freeze_places
class ReplyPart:
    """A text within a reply, and the name of its place."""

    where: str
    text: str


@freeze
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
