"""Check single fields: those that must be refused are, and those that must work change something.

Also find out which kinds of requests the endpoint accepts at all.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from serve_eval.client.client import Client
from serve_eval.errors import EndpointError
from serve_eval.evaluation.capabilities.probe_request import (
    describe_cut,
    send_probe,
    send_with_room,
)
from serve_eval.schema import Failure, FailureKind, Message, Response, Sample, ToolProbe
from serve_eval.tasks._tool_calls.everyday import TOOLS, offer_everyday
from serve_eval.tasks._tool_calls.requests import KIND

_OFFERED = offer_everyday("get_weather")
_PROMPT = (Message(role="user", content="What is the weather in Oslo for 3 days?"),)
_UNKNOWN = {"type": "function", "function": {"name": "no_such_tool"}}
REFUSED: Mapping[str, Mapping[str, Any]] = {
    "tool_choice of an unknown word": {"tools": _OFFERED, "tool_choice": "sometimes"},
    "tool_choice of a tool that is not offered": {"tools": _OFFERED, "tool_choice": _UNKNOWN},
    "tool_choice required without tools": {"tool_choice": "required"},
    "a tool without a name": {"tools": [{"type": "function", "function": {"parameters": {}}}]},
    "response_format of an unknown type": {"response_format": {"type": "xml"}},
    "json_schema without a schema": {"response_format": {"type": "json_schema"}},
    "a negative temperature": {"temperature": -1.0},
}
"""Fields that a server should refuse, since it ignores them otherwise."""
REFUSALS = "refusals"
"""The name under which a user requires all of them to be refused."""
MOST_TOKENS = 64
Ask = Callable[..., Awaitable[Response | Failure]]


async def find_kinds(
    client: Client, samples: Sequence[Sample]
) -> tuple[tuple[str, ...], tuple[ToolProbe, ...]]:
    """Return the kinds of requests that are answered, and why others are not.

    Asks the first request of each kind. Raises EndpointError if nothing answers at all.
    """
    first: dict[str, Sample] = {}
    for sample in samples:
        first.setdefault(sample.metadata[KIND], sample)
    found, refused = list[str](), list[ToolProbe]()
    for kind, sample in first.items():
        assert sample.override is not None
        extra = dict(sample.override.extra)
        result = await send_probe(client, sample.prompt, max_tokens=MOST_TOKENS, extra=extra)
        if isinstance(result, Failure) and result.kind is not FailureKind.INVALID_RESPONSE:
            refused.append(ToolProbe(name=kind, outcome="UNSUPPORTED", said=result.message))
        else:
            found.append(kind)
    if not found:
        raise EndpointError(
            f"the endpoint answers no kind of request of this check: {refused[0].said}"
        )
    return tuple(found), tuple(refused)


async def check_parameters(client: Client, kinds: Sequence[str]) -> tuple[ToolProbe, ...]:
    """Return a row for each field that was tried."""

    async def ask(**extra: Any) -> Response | Failure:
        return await send_probe(client, _PROMPT, max_tokens=MOST_TOKENS, extra=extra)

    async def roomy(**extra: Any) -> Response | Failure:
        return await send_with_room(client, _PROMPT, max_tokens=MOST_TOKENS, extra=extra)

    tooled = "auto" in kinds
    rows = [
        await _check_refusal(ask, name, fields)
        for name, fields in REFUSED.items()
        if tooled or "tool" not in name
    ]
    if tooled:
        rows += [await _check_cost(ask), await _check_constancy(ask), await _check_none(roomy)]
    return tuple(rows)


async def _check_refusal(ask: Ask, name: str, fields: Mapping[str, Any]) -> ToolProbe:
    result = await ask(**fields)
    name = f"refused: {name}"
    if isinstance(result, Response):
        return ToolProbe(name=name, outcome="IGNORED", said="accepted and answered")
    if result.status is not None and result.status < 500:
        return ToolProbe(name=name, outcome="PASS", said=f"HTTP {result.status}")
    said = f"refused, but as an error of the server: {result.message}"
    return ToolProbe(name=name, outcome="UNSUPPORTED", said=said)


async def _check_cost(ask: Ask) -> ToolProbe:
    """Check that tools reach the prompt: they must add tokens to it."""
    name = "works: tools add prompt tokens"
    bare, one = await ask(), await ask(tools=_OFFERED)
    more = await ask(tools=offer_everyday(*TOOLS))
    counts = [_count(result) for result in (bare, one, more)]
    if not all(counts):
        return ToolProbe(name=name, outcome="UNSUPPORTED", said="no token counts")
    said = f"{counts[0]} without tools, {counts[1]} with one, {counts[2]} with {len(TOOLS)}"
    rises = counts[0] < counts[1] < counts[2]
    return ToolProbe(name=name, outcome="PASS" if rises else "FAIL", said=said)


async def _check_constancy(ask: Ask) -> ToolProbe:
    name = "works: the same request has the same prompt tokens"
    counts = [_count(await ask(tools=_OFFERED)) for _ in range(3)]
    if not all(counts):
        return ToolProbe(name=name, outcome="UNSUPPORTED", said="no token counts")
    same = len(set(counts)) == 1
    said = ", ".join(map(str, counts))
    return ToolProbe(name=name, outcome="PASS" if same else "FAIL", said=said)


async def _check_none(roomy: Ask) -> ToolProbe:
    """Check that `tool_choice: none` prevents a call that `auto` makes."""
    name = "works: tool_choice none prevents a call"
    free, barred = await roomy(tools=_OFFERED), await roomy(tools=_OFFERED, tool_choice="none")
    if isinstance(barred, Failure):
        return ToolProbe(name=name, outcome="UNSUPPORTED", said=barred.message)
    if barred.tool_calls:
        return ToolProbe(name=name, outcome="FAIL", said="a tool was called")
    if cut := [one for one in (free, barred) if isinstance(one, Response) and one.truncated]:
        return ToolProbe(name=name, outcome="UNSUPPORTED", said=describe_cut(cut[0]))
    if isinstance(free, Failure) or not free.tool_calls:
        return ToolProbe(name=name, outcome="UNSUPPORTED", said="auto calls none either")
    return ToolProbe(name=name, outcome="PASS", said="auto calls, none does not")


def _count(result: Response | Failure) -> int:
    return 0 if isinstance(result, Failure) else result.usage.prompt_tokens
