"""A sample sent: one request, or one for each of its choices."""

from __future__ import annotations

import msgspec

from serve_eval.client.client import Client
from serve_eval.evaluation.engine.request import request_of
from serve_eval.schema import Attempt, Failure, FailureKind, Need, Response, Sample, Task, Usage
from serve_eval.scorers.likelihood import continuation, is_likeliest


async def send(client: Client, task: Task, sample: Sample) -> Response | Failure:
    """The answer to a sample, or why there is none. Never raises for what a request met.

    Choices are asked for one after the other, so that a worker never has more than one request in flight; the limits of
    time and attempts are those of each request. Where one of them has no answer the sample has none: the likeliest of
    the others need not be the likeliest of all.
    """
    request = request_of(task, sample)
    if not sample.choices:
        return await client.send(request)
    told: list[tuple[float, ...]] = []
    greedy: list[bool] | None = []
    attempts: tuple[Attempt, ...] = ()
    prompt_tokens = completion_tokens = 0
    latency_s = 0.0
    for context, choice in sample.continued:
        result = await client.send(msgspec.structs.replace(request, prompt=context + choice))
        attempts += result.attempts
        if isinstance(result, Failure):
            return msgspec.structs.replace(result, attempts=attempts)
        assert result.prompt_logprobs is not None  # without them the client has no response, but a failure
        values = continuation(result.prompt_logprobs, context + choice, len(context))
        if values is None:
            return Failure(
                kind=FailureKind.INVALID_RESPONSE,
                message=f"nothing tells which tokens are those of the continuation {choice!r}",
                retryable=False,
                attempts=attempts,
            )
        told.append(tuple(values))
        likeliest = is_likeliest(result.prompt_logprobs, len(values))
        greedy = None if likeliest is None or greedy is None else [*greedy, likeliest]
        prompt_tokens += result.usage.prompt_tokens
        completion_tokens += result.usage.completion_tokens
        latency_s += result.latency_s
    if greedy is None and Need.LIKELIEST_TOKENS in task.requires:
        return Failure(
            kind=FailureKind.INVALID_RESPONSE,
            message="nothing tells whether the tokens are the likeliest ones",
            retryable=False,
            attempts=attempts,
        )
    return Response(
        text="",
        finish_reason=None,
        usage=Usage(prompt_tokens=prompt_tokens, completion_tokens=completion_tokens),
        latency_s=latency_s,
        attempts=attempts,
        choice_logprobs=tuple(told),
        choice_greedy=None if greedy is None else tuple(greedy),
    )
