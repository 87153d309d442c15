"""One short request before thousands: what would fail for every sample is said once, with what to do about it."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from serve_eval.client.client import UNREACHABLE_HINT, Client
from serve_eval.client.wire import COMPLETIONS, route
from serve_eval.errors import EndpointError
from serve_eval.folders import nearest
from serve_eval.schema import Failure, FailureKind, Message, Prompt, Request, SamplingParams

_PING = "1 + 1 ="


async def check(client: Client, *, chat: bool, extra: Mapping[str, object]) -> None:
    """Sends one request of 2 tokens of the kind that the tasks will send. Raises EndpointError with the cause."""
    prompt: Prompt = (Message(role="user", content=_PING),) if chat else _PING
    sampling = SamplingParams(max_tokens=2)
    result = await client.send(Request(sample_id="preflight", prompt=prompt, sampling=sampling, extra=extra))
    if isinstance(result, Failure):
        served = await client.models() if result.kind is FailureKind.HTTP_ERROR else []
        address = client.endpoint.base_url + route(prompt)
        raise EndpointError(
            f"{address} does not answer a short request: {result.message}",
            hint=_hint(
                result, client.endpoint.model, served, extra, "chat" if route(prompt) != COMPLETIONS else "text"
            ),
        )


async def discover_model(client: Client) -> str:
    """The one model that the endpoint serves. Raises EndpointError when there is none to be seen, or several."""
    served = await client.models()
    if len(served) == 1:
        return served[0]
    if served:
        raise EndpointError(
            f"the endpoint serves {len(served)} models: {', '.join(served)}", hint="Choose one: --model."
        )
    raise EndpointError(
        f"{client.endpoint.base_url}/models lists no model",
        hint="A disaggregated orchestrator lists none: give the name with --model. Or is the path of the URL wrong?",
    )


def _hint(failure: Failure, model: str | None, served: Collection[str], extra: Mapping[str, object], kind: str) -> str:
    message = failure.message.lower()
    refused_field = next((name for name in extra if name in message), None)
    if failure.kind is FailureKind.DISCONNECTED:
        return UNREACHABLE_HINT
    if failure.kind is FailureKind.INVALID_RESPONSE:
        return "Is this the port of an OpenAI-compatible server? The base URL should end in /v1."
    if failure.kind is FailureKind.TIMEOUT:
        return "The server accepts connections but does not answer; see its log."
    if refused_field:
        return (
            f"The server refuses the field {refused_field}: leave it out with --set TASK.{refused_field}=null "
            f"--allow-mismatch {refused_field}."
        )
    if failure.status in (401, 403):
        return "Put the key into OPENAI_API_KEY, or name another variable with --api-key-env."
    if served and model not in served:
        return f"The endpoint does not list the model {model!r}.{nearest(model or '', served)}"
    if failure.status == 404:
        return f"No such route for {kind} requests: check the base URL, or a model name that the server does not know."
    return "The server's log may say more."
