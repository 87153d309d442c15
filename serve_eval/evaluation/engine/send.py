"""Send a sample as one request, or as one request for each of its choices."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from serve_eval.client.client import Client
from serve_eval.evaluation.engine.request import request_of
from serve_eval.evaluation.engine.thinking import send_to_thinker
from serve_eval.schema import (
    Attempt,
    Failure,
    FailureKind,
    Need,
    Request,
    Response,
    Sample,
    Task,
    Usage,
)
from serve_eval.scorers.likelihood import continuation, is_likeliest


def send(
    client: Client, task: Task, sample: Sample, *, alone: bool = False
) -> Coroutine[Any, Any, Response | Failure]:
    """Return the response to a sample, or its failure. Never raises for errors of a request.

    `alone`: each request has a connection of its own.
    """
    request = request_of(task, sample)
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
