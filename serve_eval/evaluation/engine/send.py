"""Send a sample as one request, or as one request for each of its choices.

Most servers apply stop strings to all that a model writes, its thoughts too: a run would then score
beginnings of thoughts. An answer that ended so is asked again without stop strings and cut at the
first one behind its thoughts, and so are later answers of its kind. Answers of models that do not
think, and of those whose thoughts no stop string ends, are what they would be anyway.

If the chat template opens the thoughts, one that is cut within them has no tag. One request finds
out, when the first answer comes that may be of this kind.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import replace
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import urlsplit

import msgspec
from msgspec import UNSET, UnsetType

from serve_eval.client.client import Client
from serve_eval.client.wire_format import refusal, wire
from serve_eval.client.wire_format.bodies import CLOSE, OPEN
from serve_eval.plan.prepared_task import request_of
from serve_eval.schema import (
    Attempt,
    Failure,
    FailureKind,
    Message,
    Need,
    Request,
    Response,
    Sample,
    Task,
    Usage,
)
from serve_eval.scorers.likelihood import continuation, is_likeliest

if TYPE_CHECKING:
    from serve_eval.evaluation.engine.talk import KeptExchanges


class ExchangeKeeper(Protocol):
    """Keep the finished requests of conversations."""

    def keep_exchanges(self) -> KeptExchanges: ...


def send(
    client: Client,
    task: Task,
    sample: Sample,
    *,
    alone: bool = False,
    lane: ExchangeKeeper | None = None,
) -> Coroutine[Any, Any, Response | Failure]:
    """Return the response to a sample, or its failure. Never raises for errors of a request.

    `alone`: each request has a connection of its own. `lane` keeps the finished requests of
    conversations.
    """
    request = request_of(task, sample)
    if sample.conversation is not None:
        from serve_eval.evaluation.engine.talk import name_conversation, talk

        ask = partial(send_to_thinker, client, alone=alone)
        request = name_conversation(request, client.conversation_id)
        kept = None if lane is None else lane.keep_exchanges()
        return talk(ask, sample, request, kept, by_id=client.names_answers)
    if not sample.choices:
        return send_to_thinker(client, request, alone=alone)
    return _send_choices(client, task, sample, request, alone=alone)


async def _send_choices(
    client: Client, task: Task, sample: Sample, request: Request, *, alone: bool
) -> Response | Failure:
    """Ask for the choices one after another, so that a worker has only one request in flight.

    Limits of time and attempts apply to each request. If one of them fails, the sample fails: the
    likeliest of the other choices need not be the likeliest of all.
    """
    answers = _ChoiceAnswers()
    for context, choice in sample.continued:
        part = msgspec.structs.replace(request, prompt=context + choice)
        result = await client.send(part, alone=alone)
        answers.attempts += result.attempts
        if isinstance(result, Failure):
            return msgspec.structs.replace(result, attempts=answers.attempts)
        if not answers.take(result, context, choice):
            return answers.unusable(
                f"the response does not show which tokens belong to the continuation {choice!r}"
            )
    if answers.greedy is None and Need.LIKELIEST_TOKENS in task.requires:
        return answers.unusable("the response does not show whether the tokens are the likeliest")
    return answers.response()


class _ChoiceAnswers:
    """Collect the responses to the choices of one sample."""

    def __init__(self) -> None:
        self.attempts: tuple[Attempt, ...] = ()
        self.greedy: list[bool] | None = []
        """True for each choice that the model would generate. None if a response does not show
        it."""
        self._logprobs: list[tuple[float, ...]] = []
        self._prompt_tokens = self._completion_tokens = 0
        self._latency_s = 0.0
        self._fingerprint: str | UnsetType = UNSET

    def take(self, result: Response, context: str, choice: str) -> bool:
        """Add a response. Return False if it does not show which tokens belong to the choice."""
        assert result.prompt_logprobs is not None  # without them the client reports a failure
        values = continuation(result.prompt_logprobs, context + choice, len(context))
        if values is None:
            return False
        self._logprobs.append(tuple(values))
        likeliest = is_likeliest(result.prompt_logprobs, len(values))
        self.greedy = (
            None if likeliest is None or self.greedy is None else [*self.greedy, likeliest]
        )
        self._prompt_tokens += result.usage.prompt_tokens
        self._completion_tokens += result.usage.completion_tokens
        self._latency_s += result.latency_s
        self._fingerprint = result.system_fingerprint
        return True

    def unusable(self, message: str) -> Failure:
        """Return the failure of a sample whose responses cannot be used."""
        kind = FailureKind.INVALID_RESPONSE
        return Failure(kind=kind, message=message, retryable=False, attempts=self.attempts)

    def response(self) -> Response:
        """Return the response to the sample as a whole."""
        return Response(
            text="",
            finish_reason=None,
            usage=Usage(
                prompt_tokens=self._prompt_tokens, completion_tokens=self._completion_tokens
            ),
            latency_s=self._latency_s,
            attempts=self.attempts,
            choice_logprobs=tuple(self._logprobs),
            choice_greedy=None if self.greedy is None else tuple(self.greedy),
            system_fingerprint=self._fingerprint,
        )


QUESTION = "What is 7 + 5? Answer with the number."
TOKENS = 1024
"""Token limit of the request that finds out who opens thoughts."""
LEAST = 16
"""max_tokens from which a cut answer may be one of thoughts: fewer ask for no answer."""
_STOPPED = ("stop", "stop_sequence")
_NOT_ASKED = ("response_format", "tools", "tool_choice", "guided_json", "continue_final_message")
"""Fields that would force another answer to the question."""


Send = Callable[[Request], Awaitable[Response | Failure]]


async def send_to_thinker(
    client: Client, request: Request, *, alone: bool = False, send: Send | None = None
) -> Response | Failure:
    """Return the response to a request, in whose thoughts no stop string counts.

    `send` sends the request in place of the client, which then only finds out who opens thoughts.
    Attempts of both requests are in the response if it was asked twice; its times and tokens are
    those of the second.
    """
    send = send or partial(client.send, alone=alone)
    known, stops = client.thoughts, request.sampling.stop
    if stops and known.ends_at_stops(request):
        known.seen.withheld += 1
        return await _send_without_stops(client, request, send)
    result = await send(request)
    if isinstance(result, Failure) or request.prompt_logprobs or request.recorded is not UNSET:
        return result
    if stops and _ends_in_thoughts(result):
        return await _send_again(client, request, result, send)
    if not _may_be_thoughts(request, result):
        return result
    if not await known.are_opened(request, partial(_opens_thoughts, client, request)):
        return result
    if result.finish_reason in _STOPPED:
        return await _send_again(client, request, result, send)
    known.seen.unmarked += 1
    return _as_thoughts(result)


async def _send_again(
    client: Client, request: Request, result: Response, send: Send
) -> Response | Failure:
    client.thoughts.note_stopped(request)
    again = await _send_without_stops(client, request, send)
    return msgspec.structs.replace(again, attempts=(*result.attempts, *again.attempts))


async def _send_without_stops(client: Client, request: Request, send: Send) -> Response | Failure:
    """Return the response to a request without its stop strings, cut at the first of them."""
    stops = request.sampling.stop
    bare = msgspec.structs.replace(request, sampling=replace(request.sampling, stop=()))
    result = await send(bare)
    if isinstance(result, Failure):
        return result
    if _may_be_thoughts(bare, result) and await client.thoughts.are_opened(
        request, partial(_opens_thoughts, client, request)
    ):
        return _as_thoughts(result)
    found = [(at, stop) for stop in stops if (at := result.text.find(stop)) >= 0]
    if not found:
        return result
    at, stop = min(found)
    return msgspec.structs.replace(
        result, text=result.text[:at], finish_reason="stop", stop_reason=stop
    )


def _ends_in_thoughts(result: Response) -> bool:
    """Return True if an answer ended of itself within thoughts that it shows or counts."""
    if result.stopped_in_reasoning:
        return True
    if not result.usage.reasoning_tokens or result.finish_reason not in _STOPPED:
        return False
    return not (result.text.strip() or result.tool_calls or result.thoughts_ended)


def _may_be_thoughts(request: Request, result: Response) -> bool:
    """Return True if an answer to a chat may be the beginning of thoughts without a tag."""
    if isinstance(request.prompt, str) or result.reasoning or result.tool_calls:
        return False
    if not result.text.strip() or result.thoughts_ended or request.sampling.max_tokens < LEAST:
        return False
    return result.truncated or (bool(request.sampling.stop) and result.finish_reason in _STOPPED)


def _as_thoughts(result: Response) -> Response:
    """Return an answer of thoughts alone."""
    return msgspec.structs.replace(result, text="", reasoning=result.text)


async def _opens_thoughts(client: Client, request: Request) -> bool:
    """Return True if an answer to an easy question closes thoughts that it did not open."""
    extra = {name: value for name, value in request.extra.items() if name not in _NOT_ASKED}
    most = max(TOKENS, request.sampling.max_tokens)
    probe = Request(
        sample_id="probe",
        prompt=(Message(role="user", content=QUESTION),),
        sampling=replace(request.sampling, max_tokens=min(most, 4 * TOKENS), stop=()),
        extra=extra,
    )
    path = urlsplit(client.endpoint.base_url).path + wire.route(probe.prompt, client.chat_route)
    body = await client.encoder.encode(probe)
    reply = await client.exchange("POST", path, body, timeout_s=client.limits.sample_timeout_s)
    if isinstance(reply, Failure) or reply.error is not None or reply.status != HTTPStatus.OK:
        return False
    try:
        text = wire.decode(reply.content, reply.content_type, client.chat_route).text
    except refusal.InvalidResponse:
        return False
    before, closed, _ = text.partition(CLOSE)
    return bool(closed) and OPEN not in before
