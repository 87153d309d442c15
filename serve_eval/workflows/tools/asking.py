"""Ask the set in each form at each load, and check single fields.

Also find out which kinds of requests the endpoint accepts at all.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from serve_eval.client.client import Client
from serve_eval.client.connection import connect
from serve_eval.errors import EndpointError
from serve_eval.evaluation.capabilities.probe_request import (
    describe_cut,
    ping,
    send_probe,
    send_with_room,
)
from serve_eval.evaluation.passes import PassSettings, ask_pass, prepare_passes
from serve_eval.plan.prepared_task import PreparedTask
from serve_eval.schema import (
    Endpoint,
    Failure,
    FailureKind,
    Message,
    Plan,
    Response,
    Sample,
    ToolForm,
    ToolProbe,
)
from serve_eval.storage.report_file import has_report
from serve_eval.tasks._tool_shapes import TOOLS, offer_everyday
from serve_eval.tasks.tool_calls import KIND, KINDS
from serve_eval.workflows.tools.answers import ToolPass, read_pass

FORMS: tuple[ToolForm, ...] = ("whole", "stream")
ALL = 1_000_000
"""More prompts than any set has."""


def name_folder(form: ToolForm, load: int) -> str:
    """Return the name of the folder of a pass."""
    return f"{form}_{load}"


def choose_kinds(plan: Plan, kinds: Sequence[str]) -> Plan:
    """Return the plan with the task restricted to these kinds of requests."""
    [spec] = plan.tasks
    options = {**spec.options, "kinds": list(kinds)}
    return replace(plan, tasks=(replace(spec, options=options),))


def list_kinds(plan: Plan) -> tuple[str, ...]:
    """Return the kinds of requests that a plan names, or all of them."""
    chosen = plan.tasks[0].options.get("kinds")
    return tuple(KINDS) if chosen is None else tuple(str(kind) for kind in chosen)  # type: ignore[attr-defined]


async def prepare_set(
    plan: Plan, out_dir: Path, loads: Sequence[int], environ: Mapping[str, str]
) -> tuple[Plan, PreparedTask]:
    """Return the plan that the passes vary, and the task.

    The task requires no ability, so that an endpoint that answers badly is asked too.
    """
    first = out_dir / name_folder(FORMS[0], loads[0])
    plan, [prepared] = await prepare_passes(plan, out_dir, first, environ, ALL)
    return plan, replace(prepared, task=replace(prepared.task, requires=frozenset()))


async def probe_endpoint(
    plan: Plan,
    loads: tuple[int, ...],
    samples: Sequence[Sample],
    endpoint: Endpoint,
    environ: Mapping[str, str],
) -> ToolsPlan:
    """Return the plan with the kinds of requests that the endpoint answers, and its fields."""
    limits = replace(plan.limits, stream=False)
    async with connect(replace(plan, limits=limits), endpoint, environ) as client:
        kinds, unsupported = await find_kinds(client, samples)
        parameters = await check_parameters(client, kinds)
    return ToolsPlan(
        plan=choose_kinds(plan, kinds),
        loads=loads,
        unsupported=unsupported,
        parameters=parameters,
    )


class ToolsPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The plan of a folder, its loads, and what the endpoint was found to support."""

    plan: Plan
    loads: tuple[int, ...]
    unsupported: tuple[ToolProbe, ...]
    parameters: tuple[ToolProbe, ...]


def order_passes(loads: Sequence[int], seed: int) -> list[tuple[ToolForm, int]]:
    """Return all passes in a random order, the same for the same seed."""
    order = [(form, load) for form in FORMS for load in loads]
    random.Random(f"{seed}:tools").shuffle(order)
    return order


async def ask_passes(
    asked: ToolsPlan,
    prepared: PreparedTask,
    endpoint: Endpoint,
    shared: PassSettings,
    seed: int,
) -> tuple[list[ToolPass], list[str]]:
    """Ask what is left of all passes. Return those that are finished, and why others are not."""
    gave_up = []
    order = order_passes(asked.loads, seed)
    for form, load in order:
        name = name_folder(form, load)
        if has_report(shared.out_dir / name):
            continue
        limits = replace(asked.plan.limits, concurrency=load, stream=form == "stream")
        plan = replace(asked.plan, limits=limits)
        try:
            await ask_pass(name, plan, [prepared], endpoint, shared, seed)
        except EndpointError as error:
            if not await _answers_probe(plan, endpoint, shared.environ):
                raise
            gave_up.append(f"{form} at {load}: given up: {error}")
            shared.notify(gave_up[-1])
    return read_passes(shared.out_dir, asked.loads, prepared.dataset.samples), gave_up


async def _answers_probe(plan: Plan, endpoint: Endpoint, environ: Mapping[str, str]) -> bool:
    async with connect(plan, endpoint, environ) as client:
        return not isinstance(await send_probe(client, ping(chat=True)), Failure)


def read_passes(folder: Path, loads: Sequence[int], samples: Sequence[Sample]) -> list[ToolPass]:
    """Return the finished passes of a folder, whole answers first. Raises RunFolderError."""
    return [
        read_pass(folder / name, form, load, samples)
        for form in FORMS
        for load in loads
        if has_report(folder / (name := name_folder(form, load)))
    ]


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
