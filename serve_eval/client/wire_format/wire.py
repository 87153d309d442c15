"""Convert requests to OpenAI JSON and bodies to answers.

Decoding is lenient about extra content and strict about the answer itself: a body without one is an
`InvalidResponse`, never an empty text.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

import msgspec
from msgspec import UNSET

from serve_eval.client.wire_format import bodies, odd_bodies
from serve_eval.client.wire_format.bodies import (
    BOM,
    USUAL_OBJECTS,
    Said,
    ToolCalls,
    WholeBody,
    WireChoice,
    read_whole,
)
from serve_eval.client.wire_format.finish_reasons import BREAK, PENDING, meaning
from serve_eval.client.wire_format.odd_bodies import (
    refuse_choice_error,
    refuse_error,
    refuse_named,
    refuse_signs,
    refuse_status,
)
from serve_eval.client.wire_format.refusal import (
    UNREADABLE,
    InvalidResponse,
)
from serve_eval.schema import (
    CallMessage,
    Message,
    Prompt,
    RecordedBody,
    Request,
    ResultMessage,
    Route,
    ThoughtMessage,
)


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


COMPLETIONS, CHAT_COMPLETIONS = Route.COMPLETIONS, Route.CHAT
PROMPT_FIELDS = frozenset({"prompt", "messages", "input", "instructions"})
"""Fields of the routes that hold a prompt or a part of it."""
EVENT_STREAM = "text/event-stream"
_encoder = msgspec.json.Encoder()
_USAGE = {"include_usage": True}


def route(prompt: Prompt, by: Route = Route.CHAT) -> Route:
    """Return the path below the base URL for a prompt; messages go `by` that route."""
    return Route.COMPLETIONS if isinstance(prompt, str) else by


def find_route(request: Request, by: Route) -> Route:
    """Return the path below the base URL for a request; messages go `by` that route."""
    return route(request.prompt, by) if request.recorded is UNSET else request.recorded.route


def encode(
    request: Request,
    model: str,
    *,
    stream: bool = False,
    max_tokens_field: str = "max_tokens",
    over: Mapping[str, object] | None = None,
    neutral: NeutralFields | None = None,
    by: Route = Route.CHAT,
) -> bytes:
    """Return the JSON body of a request, whose messages go `by` that route.

    Omits sampling values of None and an empty `stop`. Fields of `over` replace any other, and those
    of `neutral` replace none.
    """
    if request.recorded is not UNSET:
        return _encode_recorded(request.recorded, model, stream=stream)
    if by is Route.RESPONSES and not isinstance(request.prompt, str):
        from serve_eval.client.wire_format import responses  # few runs need it

        return _finish(responses.write(request, model, stream=stream), request, neutral, over)
    sampling = request.sampling
    body: dict[str, object] = {"model": model}
    if isinstance(request.prompt, str):
        body["prompt"] = request.prompt
    else:
        body["messages"] = [
            {"role": turn.role, "content": turn.content}
            if type(turn) is Message
            else write_turn(turn)
            for turn in request.prompt
        ]
    # OpenAI renamed the field for chat only.
    body["max_tokens" if isinstance(request.prompt, str) else max_tokens_field] = (
        sampling.max_tokens
    )
    for name, value in (
        ("temperature", sampling.temperature),
        ("top_p", sampling.top_p),
        ("seed", sampling.seed),
    ):
        if value is not None:
            body[name] = value
    if sampling.stop:
        body["stop"] = sampling.stop
    if stream:
        body["stream"] = True
        body["stream_options"] = _USAGE
    body.update(request.extra)
    return _finish(body, request, neutral, over)


def _finish(
    body: dict[str, Any],
    request: Request,
    neutral: NeutralFields | None,
    over: Mapping[str, object] | None,
) -> bytes:
    """Return the JSON of a body with the fields that the client adds."""
    if neutral and not request.prompt_logprobs:
        neutral.put(body, request)
    if over:
        body.update(over)
    return _encoder.encode(body)


def _encode_recorded(recorded: RecordedBody, model: str, *, stream: bool) -> bytes:
    """Return a recorded body with this model; one that streamed may be asked again without."""
    body = {"model": model, **recorded.fields}
    if recorded.streamed and not stream:
        del body["stream"]
        body.pop("stream_options", None)
    return _encoder.encode(body)


def write_turn(turn: Message) -> dict[str, object]:
    """Return a turn of a kind other than Message as it is sent."""
    told: dict[str, object] = {"role": turn.role, "content": turn.content}
    if isinstance(turn, ThoughtMessage):
        if turn.tagged:
            told["content"] = turn.whole_text
        else:
            told["reasoning_content"] = turn.reasoning
    if isinstance(turn, CallMessage) and turn.tool_calls:
        told["tool_calls"] = [
            {"id": one_id, "type": "function", "function": call}
            for one_id, call in zip(turn.call_ids, turn.tool_calls, strict=True)
        ]
    elif isinstance(turn, ResultMessage):
        told["tool_call_id"] = turn.call_id
    return told


def decode(body: bytes, content_type: str, by: Route = Route.CHAT) -> Said:
    """Return the answer in a complete 2xx body. Raises InvalidResponse if it holds none."""
    if by is Route.RESPONSES:
        from serve_eval.client.wire_format import responses  # few runs need it

        return responses.decode(body, content_type)
    body = body.removeprefix(BOM)
    try:
        parsed = parse(body)
    except UNREADABLE as error:
        raise InvalidResponse(
            f"not an OpenAI answer ({content_type or 'no content type'})", body
        ) from error
    choice = _choose(parsed, body)
    message, told = choice.message, choice.avg_decoded_tokens_per_iter
    stop = choice.matched_stop if choice.stop_reason is None else choice.stop_reason
    text = choice.text if message is None else message.content
    told_calls = None if message is None else message.tool_calls
    calls = _collect(told_calls) if told_calls or not text else None
    answered = bool(text or calls)
    _refuse(parsed, choice, body, answered=answered)
    reason = choice.finish_reason
    if not reason:
        why = "no finish_reason, so the answer may be incomplete"
        raise InvalidResponse(why if answered else "neither a text nor a finish_reason", body)
    usage = parsed.usage
    if usage is None or usage.completion_tokens is None:
        usage = bodies.find_usage(odd_bodies.read_json(body)) or usage
    said = Said(
        id=bodies.answer_id(parsed.id),
        text=text or "",
        finish_reason=reason if reason == "stop" else read_finish_reason(reason),
        stop_reason=None if stop is None else bodies.stop_string(stop),
        usage=bodies.usage(usage),
        tokens_per_step=None if told is None else bodies.tokens_per_step(told),
        fingerprint=bodies.fingerprint(parsed.system_fingerprint),
    )
    if reason != "stop" and said.finish_reason != reason:
        said.server_finish = reason
    if message is not None:
        said.reasoning, said.refusal = (
            message.reasoning_content or message.reasoning,
            message.refusal,
        )
    if calls is not None:
        if not answered:
            _find_said(said, calls, body)
        if calls:
            said.tool_calls, said.call_faults = calls.whole(), calls.faults()
    return said


def parse(body: bytes) -> WholeBody:
    """Return the fields of a body. Raises InvalidResponse, or UNREADABLE if it is no JSON."""
    try:
        return read_whole(body)
    except msgspec.ValidationError:  # JSON with a field of another type
        return odd_bodies.mend(body)


def _collect(told: object) -> ToolCalls:
    calls = ToolCalls()
    calls.add(told)
    return calls


def _choose(parsed: WholeBody, body: bytes) -> WireChoice:
    choices = parsed.choices
    if choices and len(choices) == 1 and not choices[0].index:  # in nearly every answer
        return choices[0]
    if not choices:
        refuse_error(parsed, body, answered=False)
        refuse_signs(body)
        raise InvalidResponse("no choices in the answer", body)
    return first_choice(choices, body)


def _refuse(parsed: WholeBody, choice: WireChoice, body: bytes, *, answered: bool) -> None:
    """Raise InvalidResponse if there is an error in a body or in its choice."""
    if parsed.error is not None or parsed.object not in USUAL_OBJECTS:
        refuse_error(parsed, body, answered=answered)
    if parsed.status is not None or parsed.code is not None:
        refuse_status(parsed.status, parsed.code, body)
    said = choice.delta if choice.message is None else choice.message
    if choice.error is not None or (said is not None and said.error is not None):
        refuse_choice_error(choice, body, answered=answered)
    if not answered:
        refuse_signs(body)
        refuse_named(body)


def _find_said(said: Said, calls: ToolCalls, body: bytes) -> None:
    """Complete an answer without a text from fields in which other servers put it."""
    found = odd_bodies.find_said(body)
    said.text = found.text or said.text
    said.reasoning = said.reasoning or found.thoughts or None
    calls.add(found.calls)


class _Indexed(Protocol):
    @property
    def index(self) -> int | None: ...


_Kind = TypeVar("_Kind", bound=_Indexed)


def first_choice(choices: Sequence[_Kind], body: bytes) -> _Kind:
    """Return the only choice with index 0 or no index. Raises InvalidResponse otherwise."""
    if len(choices) == 1 and not choices[0].index:
        return choices[0]
    found = pick_first(choices, body)
    if found is None:
        raise InvalidResponse("no choices with the index 0 in the answer", body)
    return found


def pick_first(choices: Sequence[_Kind], body: bytes) -> _Kind | None:
    """Return the choice with index 0 or no index, or None.

    Raises InvalidResponse if two choices have one index.
    """
    indexes = [choice.index or 0 for choice in choices]
    for index in indexes:
        if (count := indexes.count(index)) > 1:
            raise InvalidResponse(f"{count} choices with the index {index} in the answer", body)
    return choices[indexes.index(0)] if 0 in indexes else None


def read_finish_reason(reason: str | None) -> str | None:
    """Return what a finish_reason means. Raises InvalidResponse for one that means no answer."""
    if not reason:
        return None
    meant = meaning(reason)
    if meant in (BREAK, PENDING):
        raise InvalidResponse(f"the generation ended without an answer: finish_reason {reason!r}")
    return meant
