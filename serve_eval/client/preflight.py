"""Send one short request before a run, to report common failures once, with advice."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import NoReturn

from serve_eval.client.attempts import liveness
from serve_eval.client.client import Client, explain_unreachable
from serve_eval.client.wire_format.refusal import FOREIGN, find_refused, shorten
from serve_eval.client.wire_format.wire import COMPLETIONS
from serve_eval.errors import EndpointError, UnknownModelError
from serve_eval.plugins.registry import nearest
from serve_eval.schema import (
    Failure,
    FailureKind,
    Message,
    Prompt,
    Request,
    Route,
    SamplingParams,
)

PING = "1 + 1 ="
LENGTH_SLACK = 4
"""Tokens by which an answer may exceed the limit: servers differ in whether they count its end."""
LEAST_TOKENS = 16
"""Smallest max_output_tokens that OpenAI's /v1/responses accepts."""
NO_ROUTE = frozenset({404, 405, 501})
NOT_LISTED = frozenset({404, 405})
"""The statuses of older disaggregated orchestrators, which do not list their models."""
_OPTIONS = frozenset(
    {"truncate_prompt_tokens", "add_special_tokens", "temperature", "top_p", "stop"}
)
"""Fields that a task option of the same name leaves out."""
_NO_RESPONSES = (
    "The server has no /v1/responses, as the orchestrator of trtllm-serve has none, or does not"
    " know the model. Leave out --route (compare.route_b) to ask by /v1/chat/completions; or ask a"
    " worker, which has the route, but then nothing is disaggregated."
)
_EXTRA_BODY = "protocol.extra_body"
_SENT_BY = {
    "chat_template_kwargs": "thinking, effort, or suite_exact, which switches it off",
    "reasoning_effort": f"effort, --preset or {_EXTRA_BODY}",
}


async def check(
    client: Client, *, chat: bool, sampling: SamplingParams, extra: Mapping[str, object]
) -> None:
    """Send one short request like those of the tasks. Raises EndpointError with the cause."""
    failure = await trial(client, chat=chat, sampling=sampling, extra=extra)
    if failure is not None:
        await refuse(client, failure, chat=chat, extra=extra)


async def trial(
    client: Client, *, chat: bool, sampling: SamplingParams, extra: Mapping[str, object]
) -> Failure | None:
    """Send one short request and return its failure, or None.

    Raises EndpointError if the server ignored the length limit.
    """
    if chat and client.chat_route is Route.RESPONSES:
        sampling = replace(sampling, max_tokens=max(sampling.max_tokens, LEAST_TOKENS))
    request = short(chat=chat, sampling=sampling, extra=extra)
    limits = client.limits
    try:
        async with asyncio.timeout(
            limits.stall_timeout_s + max(limits.connect_timeout_s, limits.outage_timeout_s)
        ):
            result = await client.send(request)
    except TimeoutError:
        return Failure(
            kind=FailureKind.TIMEOUT, message=f"nothing for {limits.stall_timeout_s:g} s"
        )
    if isinstance(result, Failure):
        return result
    if (given := result.usage.shown_tokens) > sampling.max_tokens + LENGTH_SLACK:
        raise _length_ignored(client, chat, sampling.max_tokens, given)
    return None


def _length_ignored(client: Client, chat: bool, asked: int, given: int) -> EndpointError:
    field = client.max_tokens_field if chat else "max_tokens"
    other = field == "max_completion_tokens"
    hint = (
        "Use the other field name: --set connection.max_tokens_field=max_tokens."
        if other
        else "Answers would not be limited in length."
    )
    return EndpointError(
        f"the endpoint ignored {field}: requested {asked} tokens, received {given}", hint=hint
    )


async def refuse(
    client: Client, failure: Failure, *, chat: bool, extra: Mapping[str, object]
) -> NoReturn:
    """Raise EndpointError for a failed short request, with advice; of an unknown model its own."""
    listed = await client.models() if failure.kind is FailureKind.HTTP_ERROR else []
    served = [] if isinstance(listed, Failure) else listed
    address = client.endpoint.base_url + (client.chat_route if chat else COMPLETIONS)
    hint = await _misunderstood(client, failure)
    hint = (
        hint
        or _explain_refused_field(failure, client, extra)
        or _hint(failure, client, served, chat)
    )
    told = shorten(failure.message)
    unknown = hint == _explain_unknown_model(client, served)
    kind = UnknownModelError if unknown else EndpointError
    raise kind(f"{address} does not answer a short request: {told}", hint=hint)


def short(*, chat: bool, sampling: SamplingParams, extra: Mapping[str, object]) -> Request:
    """Return a request that costs almost no time, of the kind that the tasks send."""
    prompt: Prompt = (Message(role="user", content=PING),) if chat else PING
    return Request(sample_id="preflight", prompt=prompt, sampling=sampling, extra=extra)


def pick_model(served: Sequence[str], named: str | None) -> str | None:
    """Return the only model that is served, or of several the named one; None if neither is."""
    if len(served) == 1:
        return served[0]
    return named if named in served else None


async def discover_model(client: Client, named: str | None = None) -> str:
    """Return the only model that the endpoint serves, or of several the named one.

    Raises EndpointError if it lists none or several others, or with the status if it refuses to
    list them.
    """
    served = await client.models()
    if isinstance(served, Failure):
        await refuse_listing(client, served)
    if (model := pick_model(served, named)) is not None:
        return model
    if served:
        raise EndpointError(
            f"the endpoint serves {len(served)} models: {', '.join(served)}",
            hint="Choose one with --model.",
        )
    raise EndpointError(
        f"{client.endpoint.base_url}/models lists no model; name it with --model",
        hint=(
            "Older disaggregated orchestrators list none: name the model with --model, or check the"
            " path of the URL."
        ),
    )


async def refuse_listing(client: Client, failure: Failure) -> NoReturn:
    """Raise EndpointError for an endpoint that was asked for its models in vain, with advice."""
    hint = await _misunderstood(client, failure) or _explain_unlisted(client, failure)
    refused = failure.kind is FailureKind.HTTP_ERROR
    told = "does not list the models" if refused else "does not answer"
    advice = "; name the model with --model" if failure.status in NOT_LISTED else ""
    message = f"{client.endpoint.base_url}/models {told}: {failure.message}{advice}"
    raise EndpointError(message, hint=hint)


async def _misunderstood(client: Client, failure: Failure) -> str:
    """Return a hint if one side speaks http and the other https, else an empty text."""
    odd = failure.kind in (
        FailureKind.DISCONNECTED,
        FailureKind.INVALID_RESPONSE,
        FailureKind.TIMEOUT,
    )
    return await client.other_scheme() if odd or failure.status == 400 else ""


def _explain_unlisted(client: Client, failure: Failure) -> str:
    """Return a hint for an endpoint that does not say which model it serves."""
    if liveness.SAID in failure.message or client.start.in_vain in failure.message:
        return liveness.HINT
    match failure.status:
        case 401 | 403:
            return key_advice(client)
        case int(status) if status < 400:
            return _explain_redirect(client)
        case int(status) if status in NOT_LISTED:
            return (
                "Older disaggregated orchestrators list none: name the model with --model, or check"
                " the path of the URL."
            )
        case 429:
            return (
                "The endpoint limits its request rate: try again later, or name the model with"
                " --model."
            )
        case 503:
            return (
                "The server may still be loading its model, or the orchestrator may have no context"
                " server: try again later, or name the model with --model."
            )
        case None:
            return _hint(failure, client, (), chat=False)
        case _:
            return "Name the model with --model. The server's log may say more."


def _explain_redirect(client: Client) -> str:
    """Return the hint for a server that names another address."""
    return f"Find the address with curl -sI {client.endpoint.base_url}/models and give that one."


def key_advice(client: Client) -> str:
    """Return a hint for a 401 or a 403."""
    if client.sends_key:
        return (
            "The endpoint refuses the key: check OPENAI_API_KEY, or the variable that --api-key-env"
            " names."
        )
    return "No key was sent: set OPENAI_API_KEY, or name another variable with --api-key-env."


def _explain_refused_field(failure: Failure, client: Client, extra: Mapping[str, object]) -> str:
    """Return a hint for a field or a value that the refusal names, else an empty text."""
    if failure.status not in (400, 422):
        return ""
    message = failure.message
    if hint := _explain_length_field(client, message):
        return hint
    found = find_refused(message, (*extra, "temperature", "top_p", "'stop'"))
    if found is not None:
        return _explain_value(found.name, extra) if found.by_value else _explain_field(found.name)
    if client.limits.stream and "stream" in message.lower().replace("upstream", ""):
        return "The server refuses to stream: add --set limits.stream=false. Scores do not change."
    return ""


def _explain_length_field(client: Client, message: str) -> str:
    """Return a hint if the server expects max_tokens under its other name, else an empty text."""
    if "max_completion_tokens" not in message.lower():
        return ""
    found = find_refused(message, (client.max_tokens_field,))
    if found is not None and found.by_value:
        return ""
    other = (
        "max_tokens"
        if client.max_tokens_field == "max_completion_tokens"
        else "max_completion_tokens"
    )
    return f"The server uses the other field name: add --set connection.max_tokens_field={other}."


def _explain_field(name: str) -> str:
    if name not in _OPTIONS:
        return (
            f"The server refuses the field {name}: remove the option that sends it"
            f" ({_SENT_BY.get(name, _EXTRA_BODY)})."
        )
    return (
        f"The server refuses the field {name}: omit it with {_write_omission(name)}"
        f" --allow-mismatch {name}. The report then notes that the protocol differs."
    )


def _explain_value(name: str, extra: Mapping[str, object]) -> str:
    """Return the hint for a value: it names the value if a task or the user added the field."""
    value = f" {extra[name]!r}" if name in extra else ""
    if name not in _OPTIONS:
        return (
            f"The server knows the field {name} and refuses its value{value}: change the option"
            f" that sends it ({_SENT_BY.get(name, _EXTRA_BODY)})."
        )
    return (
        f"The server knows the field {name} and refuses its value{value}: choose another with"
        f" --set TASK.{name}=VALUE, or omit it with {_write_omission(name)}. Both need"
        f" --allow-mismatch {name}; the report then notes that the protocol differs."
    )


def _write_omission(name: str) -> str:
    return f"--set TASK.{name}={'[]' if name == 'stop' else 'null'}"


def _explain_connection(failure: Failure, client: Client) -> str:
    """Return a hint for a failure of the connection, else an empty text.

    Servers demand a client certificate by an alert, by the body of an error, or only by ending the
    connection.
    """
    ended = failure.kind is FailureKind.DISCONNECTED
    if ended:
        return explain_unreachable(client, failure.message)
    if not client.endpoint.base_url.startswith("https") or client.shows_certificate:
        return ""
    refused = failure.status in (400, 401, 403, 495, 496)
    if refused and "certificate" in failure.message.lower():
        return (
            "The server demands one: name a client certificate with --set"
            " connection.client_cert=FILE and --set connection.client_key=FILE."
        )
    return ""


def _explain_unknown_model(client: Client, served: Collection[str]) -> str:
    """Return a hint if the endpoint lists other models than the named one, else an empty text."""
    model = client.endpoint.model
    if not served or model in served:
        return ""
    return f"The endpoint does not list the model {model!r}.{nearest(model or '', served)}"


def _hint(failure: Failure, client: Client, served: Collection[str], chat: bool) -> str:
    if advice := _explain_connection(failure, client):
        return advice
    if failure.kind is FailureKind.INVALID_RESPONSE:
        if failure.message.startswith(FOREIGN):
            return (
                "Check that this is the port of an OpenAI-compatible server. The base URL should"
                " end in /v1."
            )
        return (
            "The server answered in a way that gives no score; its log may say why. serve-eval"
            " smoke shows what it sends."
        )
    if failure.kind is FailureKind.TIMEOUT:
        return "The server accepts connections but does not answer. Check its log."
    if failure.status in (401, 403):
        return key_advice(client)
    if failure.status is not None and failure.status < 400:
        return _explain_redirect(client)
    if liveness.SAID in failure.message:
        return liveness.HINT
    if unknown := _explain_unknown_model(client, served):
        return unknown
    if failure.status in NO_ROUTE and chat and client.chat_route is Route.RESPONSES:
        return _NO_RESPONSES
    return (
        _explain_missing(client, chat)
        if failure.status == 404
        else "The server's log may say more."
    )


def _explain_missing(client: Client, chat: bool) -> str:
    """Return the hint for a 404."""
    kind = "chat" if chat else "text"
    base_url = client.endpoint.base_url
    usual = "" if base_url.endswith("/v1") else f" Most base URLs end in /v1: try {base_url}/v1"
    return (
        f"The server has no route for {kind} requests, or does not know the model: check the"
        f" base URL and the model name.{usual}"
    )
