"""Hold a conversation with the server: one request after another, with what it answered before.

Each finished request is kept at once, so that a killed run goes on at the turn. A turn that fails
ends the conversation without an answer: what would have followed is not known.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, field

import msgspec

from serve_eval.protocol.conversation import SALT_FIELD, find_next, join
from serve_eval.schema import Attempt, Exchange, Failure, Request, Response, Sample
from serve_eval.storage.answer_origins import Key, Proofs
from serve_eval.storage.journal import Journal, Record, read_exchanges

Ask = Callable[[Request], Awaitable[Response | Failure]]


@dataclass(slots=True)
class KeptExchanges:
    """The finished requests of conversations that have no response yet, in the journal of a task.

    Those of earlier sessions are read when the first conversation starts, but for answers that may
    belong to other requests.
    """

    journal: Journal
    proofs: Proofs
    _by_sample: dict[str, list[Exchange]] = field(default_factory=dict)
    _read: bool = False

    def take(self, sample: str, open_now: Collection[Key] = ()) -> list[Exchange]:
        """Return what was kept of a conversation, up to the first answer in doubt."""
        if not self._read:
            self._read = True
            for name, exchange in read_exchanges(self.journal.path):
                of_one = self._by_sample.setdefault(name, [])
                of_one.append(exchange)
            for of_one in self._by_sample.values():
                _cut(of_one, lambda one: self.proofs.doubt_earlier(one.response))
        found = self._by_sample.pop(sample, [])
        _cut(found, lambda one: self.proofs.doubt(one.response, open_now))
        return found

    def keep(self, sample: str, exchange: Exchange) -> None:
        """Write a finished request. Raises JournalError if that fails."""
        self.journal.append(Record(id=sample, exchange=exchange))

    def give_back(self, sample: str, done: list[Exchange]) -> None:
        """Remember a conversation that was cut off, for the next time that it is asked."""
        self._by_sample[sample] = done


def _cut(done: list[Exchange], doubt: Callable[[Exchange], str | None]) -> None:
    """Remove the first exchange in doubt, and what followed it."""
    first = next((i for i, one in enumerate(done) if doubt(one) is not None), len(done))
    del done[first:]


async def talk(
    ask: Ask,
    sample: Sample,
    request: Request,
    kept: KeptExchanges | None = None,
    *,
    by_id: bool = False,
) -> Response | Failure:
    """Return the response to a conversation: its last answer. Never raises for a failed request.

    With `by_id`, a request has the id of the previous answer in place of the turns up to it.
    """
    done = [] if kept is None else kept.take(sample.id)
    earlier = len(done)
    try:
        while (found := find_next(sample, done)) is not None:
            turn, prompt = found
            asked = _put(sample, request, prompt, len(done))
            result = await ask(_name_answer(asked, done) if by_id else asked)
            if isinstance(result, Failure):
                return _fail(sample, done[earlier:], turn, result)
            exchange = Exchange(turn=turn, response=result)
            if kept is not None:
                kept.keep(sample.id, exchange)
            done.append(exchange)
    except BaseException:
        if kept is not None:
            kept.give_back(sample.id, done)
        raise
    return join(done)


def name_conversation(request: Request, place: str | None) -> Request:
    """Return the request with an id of its conversation in this header or field of the body.

    The id is the same in every pass and run, so that a router treats them alike.
    """
    if place is None:
        return request
    kind, _, path = place.partition(":")
    name = hashlib.sha256(request.sample_id.encode()).hexdigest()[:32]
    if kind == "header":
        return msgspec.structs.replace(request, headers={path: name})
    first, *rest = path.split(".")
    value: object = name
    for key in reversed(rest):
        value = {key: value}
    given = request.extra.get(first)
    if isinstance(given, Mapping) and isinstance(value, Mapping):
        value = {**given, **value}
    return msgspec.structs.replace(request, extra={**request.extra, first: value})


def _put(sample: Sample, request: Request, prompt: object, number: int) -> Request:
    """Return the request of a turn; `number` of them came before it."""
    assert sample.conversation is not None
    extra = request.extra
    if sample.conversation.salted and number and (salt := extra.get(SALT_FIELD)) is not None:
        own = hashlib.sha256(f"{salt}:{number}".encode()).hexdigest()[: len(str(salt))]
        extra = {**extra, SALT_FIELD: own}
    return msgspec.structs.replace(request, prompt=prompt, extra=extra)


def _name_answer(request: Request, done: list[Exchange]) -> Request:
    """Return the request with the id of the last answer in place of the turns up to it.

    The system turn is sent again, since instructions apply to one answer only. After tool calls the
    whole history is sent, since its call ids are not the server's.
    """
    extra, last = {**request.extra, "store": True}, done[-1].response if done else None
    if last is None or last.answer_id is None or last.tool_calls:
        return msgspec.structs.replace(request, extra=extra)
    assert not isinstance(request.prompt, str)
    turns = request.prompt
    said = max(place for place, turn in enumerate(turns) if turn.role == "assistant")
    system = turns[: turns[0].role == "system"]
    extra["previous_response_id"] = last.answer_id
    return msgspec.structs.replace(request, prompt=(*system, *turns[said + 1 :]), extra=extra)


def _fail(sample: Sample, done: list[Exchange], turn: int, failure: Failure) -> Failure:
    """Return the failure of a conversation, with the attempts of its requests in this session."""
    assert sample.conversation is not None
    before: tuple[Attempt, ...] = tuple(a for one in done for a in one.response.attempts)
    turns = len(sample.conversation.turns) + 1
    return msgspec.structs.replace(
        failure,
        message=f"turn {turn + 1} of {turns}: {failure.message}",
        attempts=before + failure.attempts,
    )
