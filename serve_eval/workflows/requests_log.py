"""Say what a log of requests holds, and which of their fields an endpoint refuses.

The probe sends a few tiny requests: the shortest body of each route with a limit of one token, then
with all fields that the log has, and, if that is refused, with each of them alone.
"""

from __future__ import annotations

import os
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec

from serve_eval.client.client import Client
from serve_eval.client.connection import connect
from serve_eval.datasets.recorded_requests import RecordedLog, Steps, list_uncompared, mask_body
from serve_eval.errors import EndpointError
from serve_eval.frozen import freeze_places
from serve_eval.report.document.listing import ListEntry, Listing
from serve_eval.schema import Endpoint, Failure, Plan, RecordedBody, Request, Route, SamplingParams
from serve_eval.shell_words import quote_path
from serve_eval.storage.json_files import pretty_json

TIMEOUT_S = 30.0
"""Time limit of a request of the probe."""
_LIMITS = ("max_tokens", "max_completion_tokens", "max_output_tokens")
_PROMPTS = ("messages", "prompt", "input")
_NEVER_ALONE = {"stream_options": "stream", "tool_choice": "tools", "top_logprobs": "logprobs"}
"""Fields that servers take only with another one."""


@freeze_places
class RefusedLogField:
    """A field of a route that the endpoint refuses, with its words ("" for `field`: any request).

    `requests` counts those of the log that have it.
    """

    route: Route
    field: str
    requests: int
    message: str


def describe_log(log: RecordedLog, refused: Sequence[RefusedLogField], *, asked: str) -> Listing:
    """Return what a log holds, as a list. `asked` is the address that was probed ("": none)."""
    entries = [ListEntry(name, text, keep=True) for name, text in _describe(log)]
    entries += [
        ListEntry(
            f"refused {one.field}" if one.field else f"refused {one.route}",
            f"{one.route}, requests with it: {one.requests}: {one.message}",
            wrong=True,
        )
        for one in refused
    ]
    entries += [ListEntry(f"line {one.line}", one.reason, wrong=True) for one in log.broken]
    if asked and not refused:
        entries.append(ListEntry("refused", f"no field, by {asked}", keep=True))
    broken = f", lines that are no request: {len(log.broken)}" if log.broken else ""
    sent = "" if asked else "; nothing was sent"
    file = quote_path(log.source.path)
    return Listing(
        f"{len(log.requests)} requests{broken}{sent}",
        entries,
        next=f"compare two endpoints: serve-eval compare A B --requests {file}",
        result=pretty_json(
            {
                "requests": len(log.requests),
                "facts": dict(_describe(log)),
                "fields": {route: dict(found) for route, found in count_fields(log).items()},
                "refused": _rows(refused),
                "broken": [{"line": one.line, "reason": one.reason} for one in log.broken],
                "sha256": log.source.sha256,
            }
        ),
    )


def _rows(refused: Sequence[RefusedLogField]) -> list[dict[str, object]]:
    return [
        {
            "route": one.route,
            "field": one.field,
            "requests": one.requests,
            "message": one.message,
        }
        for one in refused
    ]


def _describe(log: RecordedLog) -> Iterator[tuple[str, str]]:
    """Yield the facts of a log, each with its name."""
    asked, total = log.requests, len(log.requests)
    routes = Counter(one.body.route.removeprefix("/") for one in asked)
    yield "routes", ", ".join(f"{route} {count}" for route, count in routes.most_common())
    models = Counter(one.model or "none named" for one in asked)
    yield "models", ", ".join(f"{name} {count}" for name, count in models.most_common(5))
    yield "streamed", f"{sum(one.body.streamed for one in asked)} of {total}"
    lengths = sorted(_count_characters(one.body.fields) for one in asked)
    yield (
        "prompts",
        (f"{lengths[0]:,} to {lengths[-1]:,} characters, median {statistics.median(lengths):,.0f}"),
    )
    limits = [n for one in asked if (n := find_limit(one.body.fields)) is not None]
    if limits:
        yield "limits", f"{min(limits):,} to {max(limits):,} tokens in {len(limits)} of {total}"
    drawn = sum(not _is_greedy(one.body.fields) for one in asked)
    if drawn:
        yield "sampled", f"{drawn} of {total} not at temperature 0: answers differ by chance"
    if log.duplicates:
        yield "duplicates", f"{log.duplicates} have the body of an earlier one"
    if said := sum(one.answer is not None for one in asked):
        yield "answers", f"{said} of {total} have a recorded answer"
    times = [one.at_s for one in asked if one.at_s is not None]
    if times:
        span = max(times) - min(times)
        rate = f", {len(times) / span:.3g} per second" if span > 0 else ""
        yield "arrivals", f"{len(times)} of {total} have a time: {span:,.1f} s in all{rate}"
    for line in list_uncompared([one.body for one in asked]):
        yield "compared", line
    names = Counter(name for found in count_fields(log).values() for name in found.elements())
    yield "fields", ", ".join(f"{name} {count}" for name, count in names.most_common())


def _count_characters(fields: Mapping[str, Any]) -> int:
    given = next((fields[name] for name in _PROMPTS if name in fields), "")
    return len(given) if isinstance(given, str) else len(msgspec.json.encode(given).decode())


def find_limit(fields: Mapping[str, Any]) -> int | None:
    """Return the limit of tokens of a body, or None."""
    return next((n for name in _LIMITS if isinstance(n := fields.get(name), int)), None)


def _is_greedy(fields: Mapping[str, Any]) -> bool:
    return fields.get("temperature") == 0


def count_fields(log: RecordedLog) -> dict[Route, Counter[str]]:
    """Return the fields of the bodies beyond their prompts, with their numbers, by route."""
    found: dict[Route, Counter[str]] = defaultdict(Counter)
    for one in log.requests:
        found[one.body.route].update(name for name in one.body.fields if name not in _PROMPTS)
    return found


async def find_refused(
    log: RecordedLog,
    masked: Sequence[Steps],
    plan: Plan,
    environ: Mapping[str, str] = os.environ,
) -> list[RefusedLogField]:
    """Return the fields that the endpoint of a plan refuses.

    Raises EndpointError if it cannot be reached, and PlanError for an invalid connection.
    """
    limits = replace(plan.limits, connect_timeout_s=5.0, sample_timeout_s=TIMEOUT_S)
    limits = replace(limits, outage_timeout_s=0.0, stall_timeout_s=TIMEOUT_S, max_attempts=1)
    plan = replace(plan, limits=limits)
    base_url = str(plan.launcher.options["base_url"])
    async with connect(plan, Endpoint(base_url=base_url, model=plan.model), environ) as client:
        listed = await client.models()
    if isinstance(listed, Failure) and listed.status is None:
        raise EndpointError(f"{base_url}: {listed.message}")
    models = () if isinstance(listed, Failure) else tuple(listed)
    model = plan.model or next(iter(models), None)
    async with connect(plan, Endpoint(base_url=base_url, model=model), environ) as client:
        return [
            one
            for route in count_fields(log)
            for one in await _probe(client, [one.body for one in log.requests], route, masked)
        ]


async def _probe(
    client: Client, bodies: Sequence[RecordedBody], route: Route, masked: Sequence[Steps]
) -> list[RefusedLogField]:
    """Return the fields of a route that are refused; one without a name if all requests are."""
    of_route = [mask_body(one, masked)[0] for one in bodies if one.route == route]
    shortest = min(of_route, key=lambda one: len(msgspec.json.encode(one.fields)))
    limit = next((one for one in _LIMITS if one in shortest.fields), _LIMITS[0])
    bare = {name: shortest.fields[name] for name in _PROMPTS if name in shortest.fields}
    least = 16 if route is Route.RESPONSES else 1
    bare[_LIMITS[2] if route is Route.RESPONSES else limit] = least
    if (message := await _refusal(client, route, bare)) is not None:
        return [RefusedLogField(route, "", len(of_route), message)]
    examples: dict[str, Any] = {}
    counts: Counter[str] = Counter()
    for one in of_route:
        for name, value in one.fields.items():
            if name not in (*_PROMPTS, *_LIMITS):
                examples.setdefault(name, value)
                counts[name] += 1
    if not examples or await _refusal(client, route, {**bare, **examples}) is None:
        return []
    found = []
    for name, value in examples.items():
        with_it = {} if (other := _NEVER_ALONE.get(name)) is None else {other: examples.get(other)}
        if (message := await _refusal(client, route, {**bare, **with_it, name: value})) is not None:
            found.append(RefusedLogField(route, name, counts[name], message))
    return found


async def _refusal(client: Client, route: Route, fields: Mapping[str, Any]) -> str | None:
    """Return the words with which a body is refused, or None; an answer of any form is none."""
    body = RecordedBody(route=route, fields=fields)
    request = Request(
        sample_id="probe", prompt="", sampling=SamplingParams(max_tokens=1), recorded=body
    )
    result = await client.send(request, once=True)
    if isinstance(result, Failure) and result.status is not None and result.status >= 400:
        return result.message
    return None
